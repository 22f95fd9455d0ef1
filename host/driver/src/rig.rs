// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A machine with the driver's module and a device.

use efa_model::{Config, Overrides, Profile};
use kernel::{
    bindings, module,
    pci::slot::{Slot, AFTER_THE_END},
    prelude::*,
    sim::{self, Policy},
};

use crate::{
    hardware::{trace_device, Shared},
    known,
};

/// All kinds of devices.
pub const PROFILES: [Profile; 5] = [
    Profile::Efa0,
    Profile::Efa1,
    Profile::Efa2,
    Profile::Efa3,
    Profile::Efa4,
];

/// A second, of virtual time.
pub const SECOND: u64 = 1_000_000_000;

/// After how long the kernel reports a task that waits.
const HUNG: u64 = 120 * SECOND;

/// What follows from an object that is not destroyed.
const FOLLOWS: [&str; 4] = [
    "restrack: ",
    " entries of mappings left",
    "the queue is in use",
    AFTER_THE_END,
];

/// A device in its slot.
pub struct Rig {
    /// The device.
    pub shared: Shared,
    /// The slot.
    pub slot: Slot,
    live: i64,
}

/// Runs `f` in a machine with a device, and [checks](Rig::end) what is left.
pub fn run<R: 'static>(profile: Profile, policy: Policy, f: impl FnOnce(&mut Rig) -> R) -> R {
    let result = run_without_end(profile, policy, |mut rig| {
        let result = f(&mut rig);
        rig.end();
        result
    });
    result.expect("a test does not abandon its machine")
}

/// Runs `f` in a machine with a device. Returns nothing if a known finding has ended it early.
pub fn run_without_end<R: 'static>(
    profile: Profile,
    policy: Policy,
    f: impl FnOnce(Rig) -> R,
) -> Option<R> {
    sim::memory::set_strict(true);
    let log = std::env::var_os("SIM_LOG").is_some();
    sim::keep_log(log);
    trace_device(log);
    // A machine that loads the module would do other things than the next one with the same seed.
    if bindings::registered_driver().is_null() {
        // For good, as its statics outlive it.
        crate::load().expect("memory").leak();
    }
    sim::run(policy, || f(Rig::new(Config::new(profile, 1))))
}

impl Rig {
    fn new(config: Config) -> Self {
        ib_core::registry::start();
        module::set_parameter("recovery", None);
        sim::fail_allocation(None);
        sim::take_failed();
        sim::take_longest_wait();
        kernel::take_warnings();
        let live = sim::live();
        let slot = Slot::new(config.profile.pci_device());
        let shared = Shared::new(config);
        sim::attach(Box::new(shared.clone()));
        Self { shared, slot, live }
    }

    /// Has the device drop packets of SRD with the wrong Q_Key.
    pub fn check_qkeys(&self) {
        let overrides = Overrides {
            check_srd_qkey: Some(true),
            ..Overrides::default()
        };
        self.shared.with(|device, _, _| device.set(overrides));
    }

    /// Binds the device.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn probe(&mut self) -> Result {
        self.slot.probe()
    }

    /// Unbinds the device.
    pub fn remove(&mut self) {
        self.slot.remove();
    }

    /// Resets the function by sysfs.
    pub fn reset(&self) {
        self.slot.reset();
    }

    /// Suspends and resumes; the power is off in between.
    pub fn sleep(&self) {
        self.slot.sleep(|| {
            self.shared
                .with(|device, machine, _| device.power_on(machine))
        });
    }

    /// Reports an error of the bus.
    pub fn bus_error(&self, is_permanent: bool) {
        let reset = || self.shared.with(|device, machine, _| device.reset(machine));
        self.slot.bus_error(is_permanent, reset);
    }

    /// Returns a line of the file `state` in debugfs.
    pub fn state(&self, what: &str) -> Option<String> {
        let state = kernel::debugfs::read("efa/0000:00:05.0/state")?;
        let mut lines = state.lines();
        let line = lines.find_map(|line| line.strip_prefix(what)?.strip_prefix(": "));
        line.map(str::to_owned)
    }

    /// Waits until the device is not being reset, and checks that no command is left in flight.
    pub fn check_quiet(&self) {
        // The work that handles a failure may not have started yet.
        sim::sleep(1_000_000);
        for _ in 0..100 {
            if self.state("state").as_deref() == Some("resetting") {
                sim::sleep(2 * SECOND);
            }
        }
        let in_flight = self.state("in_flight").expect("a file in debugfs");
        assert_eq!(in_flight, "0", "commands in flight");
    }

    /// Checks that an honest device, which is up, has nothing to complain about, and nothing left of programs.
    pub fn check_device(&self) {
        if self.state("state").as_deref() != Some("up") {
            return;
        }
        let state = self.shared.with(|device, _, _| device.state());
        assert_eq!(state.protocol_errors, 0, "protocol errors: {state:?}");
        let quarantine = self.state("quarantine").expect("a file in debugfs");
        assert_eq!(quarantine, "0", "memory in quarantine");
        let left = state.resources;
        let left = (left.ah, left.mr, left.cq, left.qp);
        assert_eq!(left, (0, 0, 0, 0), "objects are left in the device");
    }

    fn check_waits(&self) {
        let longest = sim::take_longest_wait();
        assert!(
            longest < HUNG,
            "a task has waited for {} ms",
            longest / 1_000_000
        );
    }

    /// As [`Rig::remove`], but abandons the machine if a [known finding](crate::known) explains a complaint: work of an object that is
    /// lost may run in freed memory from now on.
    pub fn remove_unless_known(&mut self) {
        self.remove();
        let mut complaints = kernel::take_warnings();
        complaints.extend(sim::memory::take_violations());
        let longest = sim::take_longest_wait();
        if longest >= HUNG {
            complaints.push(format!("a task has waited for {} ms", longest / 1_000_000));
        }
        let (known, mut unknown): (Vec<_>, Vec<_>) = complaints
            .into_iter()
            .partition(|complaint| known::explains(complaint));
        if !known.is_empty() {
            unknown.retain(|complaint| !FOLLOWS.iter().any(|part| complaint.contains(part)));
        }
        assert_eq!(unknown, [""; 0], "complaints besides {known:?}");
        if !known.is_empty() {
            sim::abandon();
        }
    }

    /// As [`Rig::end`], unless a known finding explains a complaint.
    pub fn end_unless_known(mut self) {
        if self.slot.is_bound() {
            self.remove_unless_known();
        }
        self.end();
    }

    /// Unbinds the device, and checks that no memory, mapping, IRQ, BAR or managed resource is left, that no task has
    /// waited for too long, that the device has accessed mapped memory only, and that the kernel has warned of nothing.
    pub fn end(mut self) {
        self.check_waits();
        if self.slot.is_bound() {
            self.remove();
        }
        self.check_waits();
        assert_eq!(kernel::take_warnings(), [""; 0], "warnings");
        assert!(self.slot.is_clean(), "the driver leaves something");
        // What cannot be remembered in quarantine for lack of memory is kept for good.
        if !sim::take_failed() {
            assert_eq!(sim::memory::mappings(), 0, "mappings are left");
            assert_eq!(sim::live(), self.live, "memory is left");
        }
        let violations = sim::memory::take_violations();
        let some = &violations[..violations.len().min(3)];
        assert!(
            violations.is_empty(),
            "{} accesses: {some:?}",
            violations.len()
        );
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The driver's work would use the function after its memory is freed.
        if self.slot.is_bound() && !std::thread::panicking() {
            self.remove();
        }
    }
}
