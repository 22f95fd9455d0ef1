// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The group of an asynchronous event in a request.

use efa_hw::aenq::AenqGroup;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value;

/// A group of asynchronous events, by its name or by any number, even one without a meaning.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(try_from = "Value")]
#[schemars(!try_from)]
pub(crate) struct EventGroup(#[schemars(schema_with = "event_groups")] pub(crate) u16);

fn event_groups(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = AenqGroup::ALL.iter().map(|group| group.name()).collect();
    json_schema!({
        "anyOf": [
            { "enum": names },
            { "type": "integer", "minimum": 0, "maximum": u16::MAX },
        ],
    })
}

impl TryFrom<Value> for EventGroup {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
        let named = AenqGroup::ALL.iter().find(|group| value == group.name());
        named
            .map(|group| u16::from(*group))
            .or(number)
            .map(Self)
            .ok_or_else(|| {
                let names: Vec<_> = AenqGroup::ALL.iter().map(|group| group.name()).collect();
                format!(
                    "there is no event group {value}, only {} and numbers",
                    names.join(", ")
                )
            })
    }
}
