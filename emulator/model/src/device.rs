// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device: its parts put together. Each file below has what it does about one subject.

mod commands;
mod data_path;
mod events;
mod life;
mod looking;
mod operator;
mod registers;
mod run;

use crate::{
    Config, Host, Overrides, TraceEvent,
    admin::{
        aenq::Aenq, features::Features, interrupts::Interrupts, late::Late, queue::AdminQueue,
        registers::Registers, reset::Resets,
    },
    data_path::DataPath,
    faults::{
        death::{Dead, StrayWrites},
        rules::{Faults, RuleId},
        storm::AllStorms,
    },
    profile::bars::Bars,
    reporter::Reporter,
};

/// An EFA device.
///
/// All times are times of one monotonic clock, which may start anywhere.
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
    /// Whether programs may not know yet that a reset has ended their queues.
    stale: bool,
    stale_doorbells: u64,

    /// Whether it is in its slot.
    plugged: bool,
    /// If it has died.
    dead: Option<Dead>,
    stray_writes: StrayWrites,
    late: Late,
    storms: AllStorms,
    /// Rules for all but the data path, which has its own.
    faults: Faults,
    /// The last rule that was added.
    last_rule: RuleId,

    errors: Reporter,
    register_reads: u64,
    commands_when_fatal: u64,
}

impl Device {
    /// Makes a device that was just powered on.
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
            errors: Reporter::default(),
            register_reads: 0,
            commands_when_fatal: 0,
            config,
        }
    }

    /// How the device was made.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// BAR of the doorbells, as the device was made.
    pub fn doorbell_bar(&self) -> u16 {
        self.config.attributes().db_bar
    }

    /// Bytes of the doorbell BAR, a power of two.
    pub fn doorbell_bar_size(&self) -> u64 {
        self.bars.doorbell_size()
    }

    /// Bytes of the memory BAR, a power of two.
    pub fn memory_bar_size(&self) -> u64 {
        self.bars.memory_size()
    }

    /// Reports what the data path met.
    fn report_errors(&mut self, host: &mut dyn Host) {
        let (errors, more) = self.data.take_errors();
        for error in errors {
            self.errors.report(host, error);
        }
        self.errors.count_only(host, more);
        for error in self.data.take_program_errors() {
            host.trace(&TraceEvent::ProgramError(error));
        }
    }
}
