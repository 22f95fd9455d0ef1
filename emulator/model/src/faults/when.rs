// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Conditions of rules.

use std::net::Ipv6Addr;

use efa_hw::{admin::Opcode, features::FeatureId, io::OpType, regs::Register, stats::StatsType};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::names::{Named, RuleError};
use crate::ensure;

/// Condition of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "RawWhen")]
#[schemars(into = "RawWhen")]
pub enum When {
    /// An admin command.
    Command {
        /// Opcode of the command; any if absent.
        opcode: Option<Opcode>,
        /// Feature that the command is for; any if absent.
        feature: Option<FeatureId>,
        /// Kind of statistics that the command is for; any if absent.
        stats: Option<StatsType>,
    },
    /// A read of a register. If absent, any read, also of a register that does not exist.
    Register(Option<Register>),
    /// A reset.
    Reset,
    /// The start of a work request, or the reception of a message or of an RDMA write with immediate data.
    Work {
        /// Kind of work; any if absent.
        kind: Option<WorkKind>,
        /// Number of the queue pair; any if absent.
        qp: Option<u16>,
        /// Address of the peer; any if absent.
        peer: Option<[u8; 16]>,
    },
}

/// Kind of work of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A work request of a send queue.
    Request(OpType),
    /// Reception of a message, or of an RDMA write with immediate data.
    Receive,
}

impl Named for WorkKind {
    const KIND: &'static str = "work";

    fn all() -> Vec<Self> {
        let requests = OpType::ALL.iter().copied().map(Self::Request);
        requests.chain([Self::Receive]).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Request(operation) => operation.name(),
            Self::Receive => "RECEIVE",
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "When")]
struct RawWhen {
    /// Opcode of an admin command, or `ANY`.
    #[serde(default)]
    #[schemars(schema_with = "names::<Opcode, true>")]
    opcode: Option<String>,
    /// Feature that the command is for; any if absent.
    #[serde(default)]
    #[schemars(schema_with = "names::<FeatureId, false>")]
    feature: Option<String>,
    /// Kind of statistics that the command is for; any if absent.
    #[serde(default)]
    #[schemars(schema_with = "names::<StatsType, false>")]
    stats: Option<String>,
    /// Register that is read, or `ANY`.
    #[serde(default)]
    #[schemars(schema_with = "names::<Register, true>")]
    register: Option<String>,
    /// Whether to match resets.
    #[serde(default)]
    reset: bool,
    /// Kind of a work request, or `RECEIVE` for a reception, or `ANY`.
    #[serde(default)]
    #[schemars(schema_with = "names::<WorkKind, true>")]
    work: Option<String>,
    /// Number of the queue pair; any if absent.
    qp: Option<u16>,
    /// Address of the peer; any if absent.
    peer: Option<Ipv6Addr>,
}

/// The schema of an optional name of a value, or `ANY` if that is possible.
fn names<T: Named, const ANY: bool>(_: &mut SchemaGenerator) -> Schema {
    let names = T::all().into_iter().map(|value| Some(value.name()));
    let any = ANY.then_some(Some("ANY")).into_iter();
    let names: Vec<_> = any.chain(names).chain([None]).collect();
    json_schema!({ "enum": names })
}

impl TryFrom<RawWhen> for When {
    type Error = RuleError;

    fn try_from(raw: RawWhen) -> Result<Self, RuleError> {
        let opcode = raw.opcode.as_deref().map(Opcode::find_or_any);
        let opcode = opcode.transpose()?;
        let of_features = [Opcode::GetFeature, Opcode::SetFeature].map(|code| Some(Some(code)));
        let (is_feature, is_stats) = (of_features.contains(&opcode), opcode == Some(Some(Opcode::GetStats)));
        let (feature, stats) = (raw.feature.as_deref(), raw.stats.as_deref());
        let (work, features) = ("`work`", "GET_FEATURE or SET_FEATURE as `opcode`");
        for (selector, is_misfit, needed) in [
            ("feature", feature.is_some() && !is_feature, features),
            ("stats", stats.is_some() && !is_stats, "GET_STATS as `opcode`"),
            ("qp", raw.qp.is_some() && raw.work.is_none(), work),
            ("peer", raw.peer.is_some() && raw.work.is_none(), work),
        ] {
            ensure(!is_misfit, RuleError::Selector { selector, needed })?;
        }
        match (opcode, raw.register, raw.work, raw.reset) {
            (Some(opcode), None, None, false) => Ok(Self::Command {
                opcode,
                feature: feature.map(FeatureId::find).transpose()?,
                stats: stats.map(StatsType::find).transpose()?,
            }),
            (None, Some(name), None, false) => Register::find_or_any(&name).map(Self::Register),
            (None, None, Some(name), false) => Ok(Self::Work {
                kind: WorkKind::find_or_any(&name)?,
                qp: raw.qp,
                peer: raw.peer.map(|peer| peer.octets()),
            }),
            (None, None, None, true) => Ok(Self::Reset),
            _ => Err(RuleError::When),
        }
    }
}

/// An occurrence that a rule may match.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Occasion {
    /// A command, with the code of the feature or the statistics that it is for.
    Command {
        opcode: u8,
        selector: Option<u8>,
    },
    /// A read of a register, `None` if it does not exist.
    Register(Option<Register>),
    Reset,
    /// Work of a queue pair, with the address of its peer, if any.
    Work {
        kind: WorkKind,
        qp: u16,
        peer: Option<[u8; 16]>,
    },
}

impl When {
    pub(super) fn matches(self, occasion: Occasion) -> bool {
        match (self, occasion) {
            (Self::Command { opcode, feature, stats }, Occasion::Command { opcode: code, selector }) => {
                let wanted = feature.map(u8::from).or(stats.map(u8::from));
                opcode.is_none_or(|opcode| u8::from(opcode) == code) && (wanted.is_none() || wanted == selector)
            }
            (Self::Register(register), Occasion::Register(read)) => register.is_none() || register == read,
            (Self::Reset, Occasion::Reset) => true,
            (Self::Work { kind, qp, peer }, Occasion::Work { kind: work, qp: number, peer: address }) => {
                kind.is_none_or(|kind| kind == work)
                    && qp.is_none_or(|qp| qp == number)
                    && (peer.is_none() || peer == address)
            }
            _ => false,
        }
    }
}
