// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults: rules that make a device misbehave when something matches.

use efa_hw::{
    admin::{Opcode, Status},
    features::FeatureId,
    regs::Register,
    stats::StatsType,
};
use serde::Deserialize;

use crate::Death;

/// Number of a rule, unique as long as the device exists.
pub type RuleId = u64;

/// A fault and when it happens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawRule")]
pub struct Rule {
    /// What it matches.
    pub when: When,
    /// What happens then.
    pub then: Then,
    /// How many matches are let through first.
    pub skip: u64,
    /// How many matches are hit after these; all of them if absent.
    pub times: Option<u64>,
}

/// What a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// A command.
    Command {
        /// With this opcode; any if absent.
        opcode: Option<Opcode>,
        /// For this feature.
        feature: Option<FeatureId>,
        /// For these statistics.
        stats: Option<StatsType>,
    },
    /// A read of a register; of any if absent, also of one that does not exist.
    Register(Option<Register>),
    /// A reset.
    Reset,
}

/// What happens when a rule matches. Each field is for one or two kinds of matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Then {
    /// The completion or the answer to a register read does not come. The command is executed.
    pub silence: bool,
    /// The completion has this status. The command is not executed if that is not success.
    pub status: Option<StatusCode>,
    /// The completion comes later, in ms.
    pub delay_ms: Option<u64>,
    /// The completion comes twice.
    pub duplicate: bool,
    /// The completion has the id of another command.
    pub wrong_id: bool,
    /// The completion has a checksum that does not match.
    pub wrong_checksum: bool,
    /// The completion has the phase of the round before, so that it looks old.
    pub wrong_phase: bool,
    /// The completion comes without an interrupt.
    pub no_interrupt: bool,
    /// The completion does not come before the next reset, but in the session after that.
    pub after_reset: bool,
    /// How many commands that session is to have completed then; one if absent.
    pub after_commands: Option<u64>,
    /// Some bytes of the completion have other values; its checksum is made of these.
    pub corrupt: Vec<Corruption>,
    /// The register has this value.
    pub value: Option<u32>,
    /// The answer to a register read is for another register.
    pub wrong_offset: bool,
    /// The answer to a register read is for another request.
    pub wrong_req_id: bool,
    /// The device does not say that the reset is in progress.
    pub never_starts: bool,
    /// The device says for ever that the reset is in progress.
    pub never_ends: bool,
    /// A keep-alive event comes with its interrupt at the very last moment before the reset.
    pub with_event: bool,
    /// The device dies first: it does not execute the command, answers the register read, or has one reset less to go.
    pub die: Option<Death>,
    /// The device is pulled out of its slot first.
    pub unplug: bool,
}

impl Then {
    /// Adds what another rule does; where both have a value, the other's counts.
    fn merge(&mut self, other: &Self) {
        self.silence |= other.silence;
        self.status = other.status.or(self.status);
        self.delay_ms = other.delay_ms.or(self.delay_ms);
        self.duplicate |= other.duplicate;
        self.wrong_id |= other.wrong_id;
        self.wrong_checksum |= other.wrong_checksum;
        self.wrong_phase |= other.wrong_phase;
        self.no_interrupt |= other.no_interrupt;
        self.after_reset |= other.after_reset;
        self.after_commands = other.after_commands.or(self.after_commands);
        self.corrupt.extend_from_slice(&other.corrupt);
        self.value = other.value.or(self.value);
        self.wrong_offset |= other.wrong_offset;
        self.wrong_req_id |= other.wrong_req_id;
        self.never_starts |= other.never_starts;
        self.never_ends |= other.never_ends;
        self.with_event |= other.with_event;
        self.die = other.die.or(self.die);
        self.unplug |= other.unplug;
    }

    /// Whether the device can't carry out anything then.
    pub(crate) fn is_fatal(&self) -> bool {
        self.die.is_some() || self.unplug
    }

    /// How many commands the session after the next reset is to have completed when the completion comes, if it comes so late.
    pub(crate) fn late(&self) -> Option<u64> {
        self.after_reset.then_some(self.after_commands.unwrap_or(1))
    }

    /// Names what does not fit a condition.
    fn misfit(&self, when: When) -> Option<&'static str> {
        let (command, register, reset) = match when {
            When::Command { .. } => (true, false, false),
            When::Register(_) => (false, true, false),
            When::Reset => (false, false, true),
        };
        [
            (self.silence, command || register, "silence"),
            (self.status.is_some(), command, "status"),
            (self.delay_ms.is_some(), command, "delay_ms"),
            (self.duplicate, command, "duplicate"),
            (self.wrong_id, command, "wrong_id"),
            (self.wrong_checksum, command, "wrong_checksum"),
            (self.wrong_phase, command, "wrong_phase"),
            (self.no_interrupt, command, "no_interrupt"),
            (self.after_reset, command, "after_reset"),
            (
                self.after_commands.is_some(),
                self.after_reset,
                "after_commands",
            ),
            (!self.corrupt.is_empty(), command, "corrupt"),
            (self.value.is_some(), register, "value"),
            (self.wrong_offset, register, "wrong_offset"),
            (self.wrong_req_id, register, "wrong_req_id"),
            (self.never_starts, reset, "never_starts"),
            (self.never_ends, reset, "never_ends"),
            (self.with_event, reset, "with_event"),
        ]
        .into_iter()
        .find_map(|(given, fits, name)| (given && !fits).then_some(name))
    }
}

/// A byte of a completion that has another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corruption {
    /// Position of the byte in the entry.
    pub offset: u8,
    /// Its value.
    pub value: u8,
}

/// A status, by its name or by its number, which may have no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawStatus")]
pub struct StatusCode(pub u8);

impl From<Status> for StatusCode {
    fn from(status: Status) -> Self {
        Self(status.into())
    }
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a status is a name, such as RESOURCE_BUSY, or a number up to 255"
)]
enum RawStatus {
    Number(u8),
    Name(String),
}

impl TryFrom<RawStatus> for StatusCode {
    type Error = RuleError;

    fn try_from(raw: RawStatus) -> Result<Self, RuleError> {
        match raw {
            RawStatus::Number(number) => Ok(Self(number)),
            RawStatus::Name(name) => {
                by_name("status", Status::ALL, Status::name, &name).map(Self::from)
            }
        }
    }
}

/// A rule does not make sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A name is unknown.
    #[error("there is no {kind} {name:?}, only {known}")]
    Unknown {
        /// What it should have been.
        kind: &'static str,
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// The condition is not one of those that there are.
    #[error("`when` needs exactly one of `opcode`, `register` and `\"reset\":true`")]
    When,
    /// The condition contradicts itself.
    #[error("`{selector}` in `when` needs {opcodes} as `opcode`")]
    Selector {
        /// The name of the part that does not fit.
        selector: &'static str,
        /// The opcodes that it fits.
        opcodes: &'static str,
    },
    /// The fault does not fit the condition.
    #[error("`{0}` in `then` does not fit what `when` matches")]
    Then(&'static str),
    /// A byte is outside of the completion.
    #[error("a completion has 64 bytes and none at offset {0}")]
    Offset(u8),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    when: RawWhen,
    then: Then,
    #[serde(default)]
    skip: u64,
    times: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWhen {
    opcode: Option<String>,
    feature: Option<String>,
    stats: Option<String>,
    register: Option<String>,
    #[serde(default)]
    reset: bool,
}

impl TryFrom<RawWhen> for When {
    type Error = RuleError;

    fn try_from(raw: RawWhen) -> Result<Self, RuleError> {
        let opcode = match raw.opcode.as_deref() {
            None => None,
            Some("ANY") => Some(None),
            Some(name) => Some(Some(by_name("opcode", Opcode::ALL, Opcode::name, name)?)),
        };
        let feature = match raw.feature {
            None => None,
            Some(_) if !matches!(opcode, Some(Some(Opcode::GetFeature | Opcode::SetFeature))) => {
                return Err(RuleError::Selector {
                    selector: "feature",
                    opcodes: "GET_FEATURE or SET_FEATURE",
                });
            }
            Some(name) => Some(by_name("feature", FeatureId::ALL, FeatureId::name, &name)?),
        };
        let stats = match raw.stats {
            None => None,
            Some(_) if opcode != Some(Some(Opcode::GetStats)) => {
                return Err(RuleError::Selector {
                    selector: "stats",
                    opcodes: "GET_STATS",
                });
            }
            Some(name) => Some(by_name(
                "statistics",
                StatsType::ALL,
                StatsType::name,
                &name,
            )?),
        };
        match (opcode, raw.register, raw.reset) {
            (Some(opcode), None, false) => Ok(Self::Command {
                opcode,
                feature,
                stats,
            }),
            (None, Some(name), false) if name == "ANY" => Ok(Self::Register(None)),
            (None, Some(name), false) => {
                let register = by_name("register", Register::ALL, Register::name, &name)?;
                Ok(Self::Register(Some(register)))
            }
            (None, None, true) => Ok(Self::Reset),
            _ => Err(RuleError::When),
        }
    }
}

impl TryFrom<RawRule> for Rule {
    type Error = RuleError;

    fn try_from(raw: RawRule) -> Result<Self, RuleError> {
        let when = When::try_from(raw.when)?;
        if let Some(misfit) = raw.then.misfit(when) {
            return Err(RuleError::Then(misfit));
        }
        if let Some(corruption) = raw.then.corrupt.iter().find(|byte| byte.offset >= 64) {
            return Err(RuleError::Offset(corruption.offset));
        }
        Ok(Self {
            when,
            then: raw.then,
            skip: raw.skip,
            times: raw.times,
        })
    }
}

fn by_name<T: Copy>(
    kind: &'static str,
    all: &[T],
    name_of: fn(T) -> &'static str,
    name: &str,
) -> Result<T, RuleError> {
    all.iter()
        .copied()
        .find(|value| name_of(*value) == name)
        .ok_or_else(|| RuleError::Unknown {
            kind,
            name: name.to_owned(),
            known: all
                .iter()
                .map(|value| name_of(*value))
                .collect::<Vec<_>>()
                .join(", "),
        })
}

/// Something that a rule may match.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Occasion {
    /// A command, with the code of the feature or the statistics that it is for.
    Command {
        opcode: u8,
        selector: Option<u8>,
    },
    /// A read of a register, if there is one.
    Register(Option<Register>),
    Reset,
}

impl When {
    fn matches(self, occasion: Occasion) -> bool {
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
            _ => false,
        }
    }
}

/// The rules of a device.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<(RuleId, Rule)>,
    last_id: RuleId,
    hits: u64,
}

impl Faults {
    pub(crate) fn inject(&mut self, rule: Rule) -> RuleId {
        self.last_id += 1;
        self.rules.push((self.last_id, rule));
        self.last_id
    }

    /// Removes all rules. What they hit so far stays counted.
    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    /// How many rules there are, including those that hit as often as they were to.
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// How often a rule hit, in all.
    pub(crate) fn hits(&self) -> u64 {
        self.hits
    }

    /// Returns what is to happen, from all rules together, or nothing if no rule hits.
    pub(crate) fn hit(&mut self, occasion: Occasion) -> Option<Then> {
        let mut hit = None;
        for (_, rule) in &mut self.rules {
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
