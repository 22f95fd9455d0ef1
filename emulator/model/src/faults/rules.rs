// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rules that inject faults into a device when their conditions match.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error};

use super::{
    then::Then,
    when::{Occasion, When},
};

/// Limit on the rules for work requests, and on all other rules of a device. Beyond it, the oldest rule is dropped.
const MAX_RULES: usize = 1024;

/// Number of a rule, unique for the lifetime of the device.
pub type RuleId = u64;

/// A fault, and the condition under which it is injected.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Rule {
    /// Condition of the rule.
    pub when: When,
    /// Fault to inject.
    pub then: Then,
    /// Number of matches to skip first.
    #[serde(default)]
    pub skip: u64,
    /// Number of matches to hit after these; unlimited if absent.
    pub times: Option<u64>,
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // The derived function for a remote type, as which this is declared.
        let rule = Self::deserialize(from)?;
        let checked = rule.then.check(rule.when).map_err(D::Error::custom);
        checked.map(|()| rule)
    }
}

/// Rules of a device.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: VecDeque<Rule>,
    hits: u64,
}

impl Faults {
    pub(crate) fn inject(&mut self, rule: Rule) {
        if self.rules.len() == MAX_RULES {
            self.rules.pop_front();
        }
        self.rules.push_back(rule);
    }

    /// Removes all rules, but keeps the counter of hits.
    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    /// Number of rules, including exhausted ones.
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Total number of hits of all rules.
    pub(crate) fn hits(&self) -> u64 {
        self.hits
    }

    /// Returns the combined fault of all rules that hit, or `None` if no rule hits.
    pub(crate) fn hit(&mut self, occasion: Occasion) -> Option<Then> {
        let mut hit = None;
        for rule in &mut self.rules {
            if !rule.when.matches(occasion) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            match &mut rule.times {
                Some(0) => continue,
                Some(times) => *times -= 1,
                None => {}
            }
            self.hits += 1;
            hit.get_or_insert_with(Then::default).merge(&rule.then);
        }
        hit
    }
}
