// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Conditions of rules.

use std::net::Ipv6Addr;

use efa_hw::{admin::Opcode, features::FeatureId, io::OpType, regs::Register, stats::StatsType};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::names::{RuleError, by_name};

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

impl WorkKind {
    const ALL: [Self; 6] = [
        Self::Request(OpType::Send),
        Self::Request(OpType::RdmaRead),
        Self::Request(OpType::RdmaWrite),
        Self::Request(OpType::FastReg),
        Self::Request(OpType::FastInv),
        Self::Receive,
    ];

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
    #[schemars(schema_with = "opcodes")]
    opcode: Option<String>,
    /// Feature that the command is for; any if absent.
    #[serde(default)]
    #[schemars(schema_with = "features")]
    feature: Option<String>,
    /// Kind of statistics that the command is for; any if absent.
    #[serde(default)]
    #[schemars(schema_with = "statistics")]
    stats: Option<String>,
    /// Register that is read, or `ANY`.
    #[serde(default)]
    #[schemars(schema_with = "registers")]
    register: Option<String>,
    /// Whether to match resets.
    #[serde(default)]
    reset: bool,
    /// Kind of a work request, or `RECEIVE` for a reception, or `ANY`.
    #[serde(default)]
    #[schemars(schema_with = "works")]
    work: Option<String>,
    /// Number of the queue pair; any if absent.
    qp: Option<u16>,
    /// Address of the peer; any if absent.
    peer: Option<Ipv6Addr>,
}

fn opcodes(_: &mut SchemaGenerator) -> Schema {
    optional_name(Opcode::ALL, Opcode::name, Some("ANY"))
}

fn features(_: &mut SchemaGenerator) -> Schema {
    optional_name(FeatureId::ALL, FeatureId::name, None)
}

fn statistics(_: &mut SchemaGenerator) -> Schema {
    optional_name(StatsType::ALL, StatsType::name, None)
}

fn registers(_: &mut SchemaGenerator) -> Schema {
    optional_name(Register::ALL, Register::name, Some("ANY"))
}

fn works(_: &mut SchemaGenerator) -> Schema {
    optional_name(&WorkKind::ALL, WorkKind::name, Some("ANY"))
}

/// The schema of an optional name: one of `all`, `other`, or null.
fn optional_name<T: Copy>(
    all: &[T],
    name_of: fn(T) -> &'static str,
    other: Option<&'static str>,
) -> Schema {
    let names = all.iter().map(|value| Some(name_of(*value)));
    let others = other.into_iter().map(Some);
    let names: Vec<_> = others.chain(names).chain([None]).collect();
    json_schema!({ "enum": names })
}

/// Finds a value by its name. Returns `None` for `ANY`.
fn one_or_any<T: Copy>(
    kind: &'static str,
    all: &[T],
    name_of: fn(T) -> &'static str,
    name: &str,
) -> Result<Option<T>, RuleError> {
    match name {
        "ANY" => Ok(None),
        _ => by_name(kind, all, name_of, name).map(Some),
    }
}

impl TryFrom<RawWhen> for When {
    type Error = RuleError;

    fn try_from(raw: RawWhen) -> Result<Self, RuleError> {
        let opcode = raw.opcode.as_deref();
        let opcode = opcode.map(|name| one_or_any("opcode", Opcode::ALL, Opcode::name, name));
        let opcode = opcode.transpose()?;
        let selects =
            |codes: &[Opcode]| matches!(opcode, Some(Some(code)) if codes.contains(&code));
        let fits = [
            (
                "feature",
                raw.feature.is_some(),
                selects(&[Opcode::GetFeature, Opcode::SetFeature]),
                "GET_FEATURE or SET_FEATURE as `opcode`",
            ),
            (
                "stats",
                raw.stats.is_some(),
                selects(&[Opcode::GetStats]),
                "GET_STATS as `opcode`",
            ),
            ("qp", raw.qp.is_some(), raw.work.is_some(), "`work`"),
            ("peer", raw.peer.is_some(), raw.work.is_some(), "`work`"),
        ];
        for (selector, given, fits, needed) in fits {
            if given && !fits {
                return Err(RuleError::Selector { selector, needed });
            }
        }
        let feature = raw.feature.as_deref();
        let feature = feature.map(|name| by_name("feature", FeatureId::ALL, FeatureId::name, name));
        let stats = raw.stats.as_deref();
        let stats = stats.map(|name| by_name("statistics", StatsType::ALL, StatsType::name, name));
        match (opcode, raw.register, raw.work, raw.reset) {
            (Some(opcode), None, None, false) => Ok(Self::Command {
                opcode,
                feature: feature.transpose()?,
                stats: stats.transpose()?,
            }),
            (None, Some(name), None, false) => {
                one_or_any("register", Register::ALL, Register::name, &name).map(Self::Register)
            }
            (None, None, Some(name), false) => Ok(Self::Work {
                kind: one_or_any("work", &WorkKind::ALL, WorkKind::name, &name)?,
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
            (
                Self::Command {
                    opcode,
                    feature,
                    stats,
                },
                Occasion::Command {
                    opcode: code,
                    selector,
                },
            ) => {
                let wanted = feature.map(u8::from).or(stats.map(u8::from));
                opcode.is_none_or(|opcode| u8::from(opcode) == code)
                    && (wanted.is_none() || wanted == selector)
            }
            (Self::Register(register), Occasion::Register(read)) => {
                register.is_none() || register == read
            }
            (Self::Reset, Occasion::Reset) => true,
            (
                Self::Work { kind, qp, peer },
                Occasion::Work {
                    kind: work,
                    qp: number,
                    peer: address,
                },
            ) => {
                kind.is_none_or(|kind| kind == work)
                    && qp.is_none_or(|qp| qp == number)
                    && (peer.is_none() || peer == address)
            }
            _ => false,
        }
    }
}
