// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults that rules inject.

use std::{mem, time::Duration};

use efa_hw::{admin::Status, io::CompStatus};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::{
    death::Death,
    names::{Named, RuleError},
    when::When,
};

/// Delay of a held completion. It exceeds every `delay_ms`.
pub(crate) const HELD: Duration = Duration::MAX;

/// Limit on the length of the name in `hold`, in bytes. Each held completion has its own copy.
const MAX_NAME: usize = 64;

/// Makes a fault from its parts, each with the condition that it fits. `$kind` is whether what matches is of that kind.
macro_rules! parts {
    ($self:ident, $($kind:ident)*: $($(#[$doc:meta])* $name:ident: $type:ty where $fits:expr,)*) => {
        /// Fault that a rule injects. Each field applies to one or two kinds of matches.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct Then {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Then {
            /// Replaces the parts that another fault has.
            fn replace(&mut self, other: &Self) {
                let none = Self::default();
                $(if other.$name != none.$name {
                    self.$name.clone_from(&other.$name);
                })*
            }

            /// Returns the name of a part that does not fit.
            fn misfit(&$self, [$($kind),*]: [bool; 4]) -> Option<&'static str> {
                let none = Self::default();
                let parts = [$(($self.$name != none.$name && !$fits, stringify!($name))),*];
                parts.into_iter().find_map(|(is_misfit, name)| is_misfit.then_some(name))
            }
        }
    };
}

parts! {
    self, command work register reset:
    /// The completion or the response to a register read is not written. The command is still executed.
    silence: bool where command || work || register,
    /// Status of the completion. A command is then executed only if it is success, a send work request only with `executed`.
    status: Option<StatusCode> where self.status_fits(command, work),
    /// Delay of the completion in ms.
    delay_ms: Option<u64> where command || work,
    /// Name under which the completion is held until it is [released](crate::Device::release).
    hold: Option<String> where command || work,
    /// The completion is written twice.
    duplicate: bool where command || work,
    /// The completion has the id of another command.
    wrong_id: bool where command,
    /// The completion has a wrong checksum.
    wrong_checksum: bool where command,
    /// The completion has the phase of the previous round, so that it looks stale.
    wrong_phase: bool where command,
    /// The completion raises no interrupt, or no completion event for a program that waits for it.
    no_interrupt: bool where command || work,
    /// The completion is withheld until the session after the next reset.
    after_reset: bool where command,
    /// Number of commands that this session completes before the completion is written; 1 if absent.
    after_commands: Option<u64> where self.after_reset,
    /// Bytes of the completion to overwrite. The checksum covers the new values.
    corrupt: Vec<Corruption> where command || work,
    /// The work request is executed in spite of its status.
    executed: bool where work && self.status.is_some(),
    /// The queue pair enters the error state, and its other work requests are flushed.
    qp_error: bool where work,
    /// Value of the register in the response to a read.
    value: Option<u32> where register,
    /// The response to a register read has the offset of another register.
    wrong_offset: bool where register,
    /// The response to a register read has the id of another request.
    wrong_req_id: bool where register,
    /// The device never reports the reset as in progress.
    never_starts: bool where reset,
    /// The device reports the reset as in progress forever.
    never_ends: bool where reset,
    /// A keep-alive event is posted, with its interrupt, immediately before the reset.
    with_event: bool where reset,
    /// The device dies first: it executes no command or work request, but answers a register read and counts a reset.
    die: Option<Death> where true,
    /// The device is hot-unplugged first.
    unplug: bool where true,
}

impl Then {
    /// Adds the fault of another rule. Where both have a value, that of the other rule takes precedence.
    pub(super) fn merge(&mut self, other: &Self) {
        // Each offset is kept once, so the size of a completion bounds the list for any number of rules.
        let mut corrupt = mem::take(&mut self.corrupt);
        let replaced = offsets(&other.corrupt);
        corrupt.retain(|byte| replaced & bit(byte.offset) == 0);
        corrupt.extend_from_slice(&other.corrupt);
        self.replace(other);
        self.corrupt = corrupt;
    }

    fn status_fits(&self, command: bool, work: bool) -> bool {
        match self.status {
            Some(StatusCode::Command(_)) => command,
            Some(StatusCode::Work(_)) => work,
            Some(StatusCode::Number(_)) | None => command || work,
        }
    }

    /// Whether the fault kills or unplugs the device.
    pub(crate) fn is_fatal(&self) -> bool {
        self.die.is_some() || self.unplug
    }

    /// How often the completion is written.
    pub(crate) fn copies(&self) -> u32 {
        if self.duplicate { 2 } else { 1 }
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
        let kinds = match when {
            When::Command { .. } => [true, false, false, false],
            When::Work { .. } => [false, true, false, false],
            When::Register(_) => [false, false, true, false],
            When::Reset => [false, false, false, true],
        };
        if let Some(misfit) = self.misfit(kinds) {
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
        let size = if kinds[1] { 32 } else { 64 };
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

impl Named for StatusCode {
    const KIND: &'static str = "status";

    fn all() -> Vec<Self> {
        let commands = Status::ALL.iter().copied().map(Self::Command);
        let works = CompStatus::ALL.iter().copied().map(Self::Work);
        commands.chain(works).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Number(_) => "",
            Self::Command(status) => status.name(),
            Self::Work(status) => status.name(),
        }
    }
}

impl StatusCode {
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
#[serde(untagged, expecting = "a status is a name, such as RESOURCE_BUSY, or a number up to 255")]
enum RawStatus {
    Number(u8),
    Name(#[schemars(schema_with = "statuses")] String),
}

impl TryFrom<RawStatus> for StatusCode {
    type Error = RuleError;

    fn try_from(raw: RawStatus) -> Result<Self, RuleError> {
        match raw {
            RawStatus::Number(number) => Ok(Self::Number(number)),
            RawStatus::Name(name) => Self::find(&name),
        }
    }
}

/// The schema of the name of a status, of a command or of a work request.
fn statuses(_: &mut SchemaGenerator) -> Schema {
    let mut names: Vec<_> = StatusCode::all().into_iter().map(Named::name).collect();
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
            all.merge(&Then { corrupt: corrupt.collect(), ..Then::default() });
        }
        assert_eq!(all.corrupt.len(), 64);
        assert!(all.corrupt.iter().all(|byte| byte.value == 99));
    }
}
