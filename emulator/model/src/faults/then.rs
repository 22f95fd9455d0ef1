// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What happens when a rule matches.

use std::time::Duration;

use efa_hw::{admin::Status, io::CompStatus};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::{
    death::Death,
    names::{RuleError, by_name},
    when::When,
};

/// How late a completion is that is held. No `delay_ms` is as long.
pub(crate) const HELD: Duration = Duration::MAX;

/// Most bytes of the name of what is held. Each held completion has its own copy.
const MAX_NAME: usize = 64;

/// What happens when a rule matches. Each field is for one or two kinds of matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Then {
    /// The completion or the answer to a register read does not come. The command is executed.
    pub silence: bool,
    /// The completion has this status. The command or work request is not executed if that is not success.
    pub status: Option<StatusCode>,
    /// The completion comes later, in ms.
    pub delay_ms: Option<u64>,
    /// The completion comes when what is held under this name is [released](crate::Device::release).
    pub hold: Option<String>,
    /// The completion comes twice.
    pub duplicate: bool,
    /// The completion has the id of another command.
    pub wrong_id: bool,
    /// The completion has a checksum that does not match.
    pub wrong_checksum: bool,
    /// The completion has the phase of the round before, so that it looks old.
    pub wrong_phase: bool,
    /// The completion comes without an interrupt, or without the event that a program waits for.
    pub no_interrupt: bool,
    /// The completion does not come before the next reset, but in the session after that.
    pub after_reset: bool,
    /// How many commands that session is to have completed then; one if absent.
    pub after_commands: Option<u64>,
    /// Some bytes of the completion have other values; its checksum is made of these.
    pub corrupt: Vec<Corruption>,
    /// The work request is executed, and has its status nevertheless.
    pub executed: bool,
    /// The queue pair is in error then: what is left of its work requests is flushed.
    pub qp_error: bool,
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
    /// The device dies first: it does not execute the command or work request, answers the register read, or has one reset less to go.
    pub die: Option<Death>,
    /// The device is pulled out of its slot first.
    pub unplug: bool,
}

impl Then {
    /// Adds what another rule does; where both have a value, the other's counts.
    pub(super) fn merge(&mut self, other: &Self) {
        self.silence |= other.silence;
        self.status = other.status.or(self.status);
        self.delay_ms = other.delay_ms.or(self.delay_ms);
        if other.hold.is_some() {
            self.hold.clone_from(&other.hold);
        }
        self.duplicate |= other.duplicate;
        self.wrong_id |= other.wrong_id;
        self.wrong_checksum |= other.wrong_checksum;
        self.wrong_phase |= other.wrong_phase;
        self.no_interrupt |= other.no_interrupt;
        self.after_reset |= other.after_reset;
        self.after_commands = other.after_commands.or(self.after_commands);
        // There are never more than a completion has bytes, however many rules there are.
        let replaced = offsets(&other.corrupt);
        self.corrupt.retain(|byte| replaced & bit(byte.offset) == 0);
        self.corrupt.extend_from_slice(&other.corrupt);
        self.executed |= other.executed;
        self.qp_error |= other.qp_error;
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

    /// How much later the completion comes, if it does. Of several rules, one that holds it counts.
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self.hold {
            Some(_) => Some(HELD),
            None => self.delay_ms.map(Duration::from_millis),
        }
    }

    /// How many commands the session after the next reset is to have completed when the completion comes, if it comes so late.
    pub(crate) fn late(&self) -> Option<u64> {
        self.after_reset.then_some(self.after_commands.unwrap_or(1))
    }

    /// Checks that all of it fits a condition.
    pub(super) fn check(&self, when: When) -> Result<(), RuleError> {
        let (command, register, reset, work) = match when {
            When::Command { .. } => (true, false, false, false),
            When::Register(_) => (false, true, false, false),
            When::Reset => (false, false, true, false),
            When::Work { .. } => (false, false, false, true),
        };
        let completes = command || work;
        let status_fits = match self.status {
            Some(StatusCode::Command(_)) => command,
            Some(StatusCode::Work(_)) => work,
            Some(StatusCode::Number(_)) | None => completes,
        };
        let misfit = [
            (self.silence, completes || register, "silence"),
            (self.status.is_some(), status_fits, "status"),
            (self.delay_ms.is_some(), completes, "delay_ms"),
            (self.hold.is_some(), completes, "hold"),
            (self.duplicate, completes, "duplicate"),
            (self.wrong_id, command, "wrong_id"),
            (self.wrong_checksum, command, "wrong_checksum"),
            (self.wrong_phase, command, "wrong_phase"),
            (self.no_interrupt, completes, "no_interrupt"),
            (self.after_reset, command, "after_reset"),
            (
                self.after_commands.is_some(),
                self.after_reset,
                "after_commands",
            ),
            (!self.corrupt.is_empty(), completes, "corrupt"),
            (self.executed, work && self.status.is_some(), "executed"),
            (self.qp_error, work, "qp_error"),
            (self.value.is_some(), register, "value"),
            (self.wrong_offset, register, "wrong_offset"),
            (self.wrong_req_id, register, "wrong_req_id"),
            (self.never_starts, reset, "never_starts"),
            (self.never_ends, reset, "never_ends"),
            (self.with_event, reset, "with_event"),
        ]
        .into_iter()
        .find_map(|(given, fits, name)| (given && !fits).then_some(name));
        if let Some(misfit) = misfit {
            return Err(RuleError::Then(misfit));
        }
        if let Some(name) = &self.hold {
            if self.delay_ms.is_some() {
                return Err(RuleError::Both("hold", "delay_ms"));
            }
            let length = name.len();
            if !(1..=MAX_NAME).contains(&length) {
                let most = MAX_NAME;
                return Err(RuleError::Name { length, most });
            }
        }
        let size = if work { 32 } else { 64 };
        for (index, &Corruption { offset, .. }) in self.corrupt.iter().enumerate() {
            if offset >= size {
                return Err(RuleError::Offset { offset, size });
            }
            if offsets(&self.corrupt[..index]) & bit(offset) != 0 {
                return Err(RuleError::Twice { offset });
            }
        }
        Ok(())
    }
}

/// The positions of bytes, each of which is its own bit.
fn offsets(bytes: &[Corruption]) -> u64 {
    bytes.iter().fold(0, |mask, byte| mask | bit(byte.offset))
}

fn bit(offset: u8) -> u64 {
    1_u64.wrapping_shl(offset.into())
}

/// A byte of a completion that has another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Corruption {
    /// Position of the byte in the entry.
    pub offset: u8,
    /// Its value.
    pub value: u8,
}

/// A status of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(into = "RawStatus")]
#[serde(try_from = "RawStatus")]
pub enum StatusCode {
    /// By its number, which may have no meaning.
    Number(u8),
    /// Of a command.
    Command(Status),
    /// Of a work request.
    Work(CompStatus),
}

impl StatusCode {
    fn name(self) -> &'static str {
        match self {
            Self::Number(_) => "",
            Self::Command(status) => status.name(),
            Self::Work(status) => status.name(),
        }
    }

    /// Its number.
    pub fn code(self) -> u8 {
        match self {
            Self::Number(number) => number,
            Self::Command(status) => status.into(),
            Self::Work(status) => status.into(),
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Status")]
#[serde(
    untagged,
    expecting = "a status is a name, such as RESOURCE_BUSY, or a number up to 255"
)]
enum RawStatus {
    Number(u8),
    Name(#[schemars(schema_with = "statuses")] String),
}

impl TryFrom<RawStatus> for StatusCode {
    type Error = RuleError;

    fn try_from(raw: RawStatus) -> Result<Self, RuleError> {
        let name = match raw {
            RawStatus::Number(number) => return Ok(Self::Number(number)),
            RawStatus::Name(name) => name,
        };
        let mut all: Vec<_> = Status::ALL.iter().copied().map(Self::Command).collect();
        all.extend(CompStatus::ALL.iter().copied().map(Self::Work));
        by_name("status", &all, Self::name, &name)
    }
}

/// The schema of the name of a status, of a command or of a work request.
fn statuses(_: &mut SchemaGenerator) -> Schema {
    let commands = Status::ALL.iter().map(|status| status.name());
    let works = CompStatus::ALL.iter().map(|status| status.name());
    let mut names: Vec<_> = commands.chain(works).collect();
    names.sort_unstable();
    names.dedup();
    json_schema!({ "enum": names })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_add_up_to_no_more_bytes_than_there_are() {
        let mut all = Then::default();
        for value in 0..100 {
            let corrupt = (0..64).map(|offset| Corruption { offset, value });
            all.merge(&Then {
                corrupt: corrupt.collect(),
                ..Then::default()
            });
        }
        assert_eq!(all.corrupt.len(), 64);
        assert!(all.corrupt.iter().all(|byte| byte.value == 99));
    }
}
