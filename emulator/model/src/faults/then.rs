// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults that rules inject.

use std::time::Duration;

use efa_hw::{admin::Status, io::CompStatus};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::{
    death::Death,
    names::{RuleError, by_name},
    when::When,
};

/// Delay of a held completion. It exceeds every `delay_ms`.
pub(crate) const HELD: Duration = Duration::MAX;

/// Limit on the length of the name in `hold`, in bytes. Each held completion has its own copy.
const MAX_NAME: usize = 64;

/// Fault that a rule injects. Each field applies to one or two kinds of matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Then {
    /// The completion or the response to a register read is not written. The command is still executed.
    pub silence: bool,
    /// Status of the completion. A command is then executed only if it is success, a send work request only with `executed`.
    pub status: Option<StatusCode>,
    /// Delay of the completion in ms.
    pub delay_ms: Option<u64>,
    /// Name under which the completion is held until it is [released](crate::Device::release).
    pub hold: Option<String>,
    /// The completion is written twice.
    pub duplicate: bool,
    /// The completion has the id of another command.
    pub wrong_id: bool,
    /// The completion has a wrong checksum.
    pub wrong_checksum: bool,
    /// The completion has the phase of the previous round, so that it looks stale.
    pub wrong_phase: bool,
    /// The completion raises no interrupt, or no completion event for a program that waits for it.
    pub no_interrupt: bool,
    /// The completion is withheld until the session after the next reset.
    pub after_reset: bool,
    /// Number of commands that this session completes before the completion is written; 1 if absent.
    pub after_commands: Option<u64>,
    /// Bytes of the completion to overwrite. The checksum covers the new values.
    pub corrupt: Vec<Corruption>,
    /// The work request is executed in spite of its status.
    pub executed: bool,
    /// The queue pair enters the error state, and its other work requests are flushed.
    pub qp_error: bool,
    /// Value of the register in the response to a read.
    pub value: Option<u32>,
    /// The response to a register read has the offset of another register.
    pub wrong_offset: bool,
    /// The response to a register read has the id of another request.
    pub wrong_req_id: bool,
    /// The device never reports the reset as in progress.
    pub never_starts: bool,
    /// The device reports the reset as in progress forever.
    pub never_ends: bool,
    /// A keep-alive event is posted, with its interrupt, immediately before the reset.
    pub with_event: bool,
    /// The device dies first: it executes no command or work request, but answers a register read and counts a reset.
    pub die: Option<Death>,
    /// The device is hot-unplugged first.
    pub unplug: bool,
}

impl Then {
    /// Adds the fault of another rule. Where both have a value, that of the other rule takes precedence.
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
        // Each offset is kept once, so the size of a completion bounds the list for any number of rules.
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

    /// Whether the fault kills or unplugs the device.
    pub(crate) fn is_fatal(&self) -> bool {
        self.die.is_some() || self.unplug
    }

    /// Delay of the completion, if any. If several rules hit, `hold` takes precedence over `delay_ms`.
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self.hold {
            Some(_) => Some(HELD),
            None => self.delay_ms.map(Duration::from_millis),
        }
    }

    /// Number of commands that the session after the next reset completes before the completion, if withheld until then.
    pub(crate) fn late(&self) -> Option<u64> {
        self.after_reset.then_some(self.after_commands.unwrap_or(1))
    }

    /// Checks that all fields fit a condition.
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

/// Mask of the offsets of bytes.
fn offsets(bytes: &[Corruption]) -> u64 {
    bytes.iter().fold(0, |mask, byte| mask | bit(byte.offset))
}

fn bit(offset: u8) -> u64 {
    1_u64.wrapping_shl(offset.into())
}

/// A byte of a completion to overwrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Corruption {
    /// Offset of the byte in the entry.
    pub offset: u8,
    /// New value of the byte.
    pub value: u8,
}

/// A status of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(into = "RawStatus")]
#[serde(try_from = "RawStatus")]
pub enum StatusCode {
    /// Status by its number, which may be undefined.
    Number(u8),
    /// Status of a command.
    Command(Status),
    /// Status of a work request.
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

    /// Number of the status.
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
