// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device, which combines the parts of the model. Each submodule has the methods for one subject.

mod commands;
mod data_path;
mod events;
mod life;
mod operator;
mod registers;
mod run;
pub(crate) mod snapshot;
pub(crate) mod state;

use crate::{
    Config, Host, Overrides, ProtocolError,
    admin::{
        aenq::Aenq, features::Features, interrupts::Interrupts, late::Late, queue::AdminQueue, registers::Registers,
        reset::Resets,
    },
    data_path::DataPath,
    faults::{
        death::{Dead, StrayWrites},
        rules::{Faults, RuleId},
        storm::AllStorms,
    },
    profile::bars::Bars,
};

/// An EFA device.
///
/// All times are readings of one monotonic clock with an arbitrary start.
#[derive(Debug)]
pub struct Device {
    config: Config,
    overrides: Overrides,
    bars: Bars,

    registers: Registers,
    resets: Resets,
    admin: AdminQueue,
    features: Features,
    aenq: Aenq,
    interrupts: Interrupts,
    fatal_error: bool,

    data: DataPath,
    doorbells: u64,
    /// Whether no command was executed since a reset destroyed queues. Until then, programs may still ring their doorbells.
    stale: bool,
    stale_doorbells: u64,

    /// Whether the device is plugged into its slot.
    plugged: bool,
    /// State of a dead device.
    dead: Option<Dead>,
    stray_writes: StrayWrites,
    late: Late,
    storms: AllStorms,
    /// Fault rules, except those for work requests, which are in `data`.
    faults: Faults,
    /// Number of the last rule that was added.
    last_rule: RuleId,

    register_reads: u64,
    commands_when_fatal: u64,
}

impl Device {
    /// Creates a device in its state after power on.
    pub fn new(config: Config) -> Self {
        let attributes = config.attributes();
        Self {
            overrides: Overrides::default(),
            bars: Bars::new(&attributes),
            registers: Registers::default(),
            resets: Resets::default(),
            admin: AdminQueue::default(),
            features: Features::default(),
            aenq: Aenq::default(),
            interrupts: Interrupts::default(),
            fatal_error: false,
            data: DataPath::new(attributes),
            doorbells: 0,
            stale: false,
            stale_doorbells: 0,
            plugged: true,
            dead: None,
            stray_writes: StrayWrites::default(),
            late: Late::default(),
            storms: AllStorms::default(),
            faults: Faults::default(),
            last_rule: 0,
            register_reads: 0,
            commands_when_fatal: 0,
            config,
        }
    }

    /// Configuration with which the device was created.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Number of the doorbell BAR. Later overrides do not change it.
    pub fn doorbell_bar(&self) -> u16 {
        self.config.attributes().db_bar
    }

    /// Size of the doorbell BAR in bytes, a power of two.
    pub fn doorbell_bar_size(&self) -> u64 {
        self.bars.doorbell_size()
    }

    /// Size of the memory BAR in bytes, a power of two.
    pub fn memory_bar_size(&self) -> u64 {
        self.bars.memory_size()
    }

    fn report(&mut self, host: &mut dyn Host, error: impl Into<ProtocolError>) {
        self.data.errors.report(host, error.into());
    }
}
