// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Short constructors of the device faults that tests inject.

use core::num::NonZeroU32;

use efa_hw::{admin::Opcode, regs::Register};
use efa_model::{Corruption, Death, FailedReset, Rule, Then, When};

use crate::rig::Rig;

/// Parses a rule of the [control interface](../../../Documentation/emulator-control.md#inject).
///
/// # Panics
///
/// If `text` is not a rule.
pub fn rule(text: &str) -> Rule {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Parses the fault of a [rule].
///
/// # Panics
///
/// If `text` is not a fault.
pub fn then(text: &str) -> Then {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Matches all commands, or those with an opcode.
pub fn command(opcode: Option<Opcode>) -> When {
    When::Command {
        opcode,
        feature: None,
        stats: None,
    }
}

/// Matches reads of a register.
pub fn register(register: Register) -> When {
    When::Register(Some(register))
}

/// Suppresses the response.
pub fn silence() -> Then {
    then(r#"{"silence": true}"#)
}

/// Responds with a status.
pub fn status(number: u8) -> Then {
    then(&format!(r#"{{"status": {number}}}"#))
}

/// Creates a rule without a limit on its uses.
pub fn always(when: When, then: Then) -> Rule {
    Rule {
        when,
        then,
        skip: 0,
        times: None,
    }
}

/// Creates a rule that applies once, after `skip` matching events.
pub fn once(when: When, then: Then, skip: u64) -> Rule {
    Rule {
        when,
        then,
        skip,
        times: Some(1),
    }
}

/// Returns a death that ends with the reset of this number. Earlier resets fail as `how` says.
pub fn death(resets: u32, how: FailedReset) -> Death {
    Death {
        resets: NonZeroU32::new(resets).expect("at least one"),
        how,
        ..Death::default()
    }
}

impl Rig {
    /// Injects a rule.
    pub fn inject(&self, rule: Rule) {
        self.shared.with(|device, _, _| device.inject(rule));
    }

    /// Replaces attributes of the device, in the form of the [control interface](../../../Documentation/emulator-control.md#set).
    ///
    /// # Panics
    ///
    /// If there are no such attributes.
    pub fn set(&self, attributes: &str) {
        let overrides = serde_json::from_str(attributes);
        let overrides = overrides.unwrap_or_else(|error| panic!("{attributes}: {error}"));
        self.shared.with(|device, _, _| device.set(overrides));
    }

    /// Posts an asynchronous event from the device.
    pub fn event(&self, group: u16, syndrome: u16) {
        self.shared
            .with(|device, machine, now| device.post_event(machine, now, group, syndrome));
    }

    /// Kills the device.
    pub fn die(&self, death: Death) {
        self.shared
            .with(|device, machine, now| device.die(machine, now, death));
    }

    /// Removes all injected faults.
    pub fn heal(&self) {
        self.shared.with(|device, _, _| device.clear());
    }
}

/// Returns each fault that can affect the completion of a command.
pub fn of_commands() -> Vec<Then> {
    let mut faults = vec![
        silence(),
        then(r#"{"delay_ms": 100}"#),
        then(r#"{"delay_ms": 31000}"#),
        then(r#"{"duplicate": true}"#),
        then(r#"{"wrong_id": true}"#),
        then(r#"{"wrong_checksum": true}"#),
        then(r#"{"wrong_phase": true}"#),
        then(r#"{"no_interrupt": true}"#),
        then(r#"{"after_reset": true}"#),
        then(r#"{"die": {}}"#),
        then(r#"{"die": {"silent": true}}"#),
        then(r#"{"unplug": true}"#),
    ];
    faults.extend([1, 2, 3, 4, 5, 6, 200].map(status));
    for value in [0, 0xff] {
        let corrupt = (4..64).map(|offset| Corruption { offset, value }).collect();
        faults.push(Then {
            corrupt,
            ..Then::default()
        });
    }
    faults
}
