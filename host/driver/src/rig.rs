// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A machine with the driver's module and a device.

use efa_model::{Config, Overrides, Profile, State};
use kernel::{
    bindings, module,
    pci::slot::{Neighbour, Slot},
    prelude::*,
    sim::{self, Policy},
};

use crate::hardware::{trace_device, Shared};

/// All profiles of devices.
pub const PROFILES: [Profile; 5] = [
    Profile::Efa0,
    Profile::Efa1,
    Profile::Efa2,
    Profile::Efa3,
    Profile::Efa4,
];

/// One second of virtual time, in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// Time after which the kernel reports a hung task, in nanoseconds. It bounds each call of the bus or of a program, too: others wait
/// for its locks meanwhile.
const HUNG: u64 = 120 * SECOND;

/// Returns the name of a result in the notation of the tests in a guest.
pub fn name_of(result: Result) -> String {
    match result {
        Ok(()) => "ok".into(),
        Err(error) => format!("{error:?}"),
    }
}

/// A device in its slot.
pub struct Rig {
    /// The device.
    pub shared: Shared,
    /// The slot.
    pub slot: Slot,
    live: i64,
    mapped: usize,
}

/// Runs `f` in a machine with a device, and then makes the checks of [`Rig::end`].
pub fn run<R: 'static>(profile: Profile, policy: Policy, f: impl FnOnce(&mut Rig) -> R) -> R {
    run_without_end(profile, policy, |mut rig| {
        let result = f(&mut rig);
        rig.end();
        result
    })
}

/// Runs `f` in a machine with a device.
pub fn run_without_end<R: 'static>(
    profile: Profile,
    policy: Policy,
    f: impl FnOnce(Rig) -> R,
) -> R {
    sim::memory::set_strict(true);
    let log = std::env::var_os("SIM_LOG").is_some();
    sim::keep_log(log);
    trace_device(log);
    // A machine that loads the module would behave differently from the next one with the same seed.
    if bindings::registered_driver().is_null() {
        // It is never unloaded, as its statics outlive an unload.
        crate::load().expect("memory").leak();
    }
    sim::run(policy, || f(Rig::new(Config::new(profile, 1))))
}

impl Rig {
    /// Creates a device that also makes the checks that hardware is only guessed to make.
    fn new(mut config: Config) -> Self {
        let overrides = std::mem::replace(&mut config.overrides, Overrides::guesses());
        config.overrides.merge(overrides);
        ib_core::registry::start();
        module::set_parameter("recovery", None);
        sim::fail_allocation(None);
        sim::take_failed();
        sim::take_longest_wait();
        sim::take_longest_call();
        kernel::take_warnings();
        let live = sim::live();
        let slot = Slot::new(config.profile.pci_device());
        let shared = Shared::new(config);
        sim::attach(Box::new(shared.clone()));
        let mapped = bindings::mapped();
        Self {
            shared,
            slot,
            live,
            mapped,
        }
    }

    /// Returns the state of the device model.
    pub fn device(&self) -> State {
        self.shared.with(|device, _, _| device.state())
    }

    /// Binds the device.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn probe(&mut self) -> Result {
        self.slot.probe()
    }

    /// Unbinds the device.
    pub fn remove(&mut self) {
        self.slot.remove();
    }

    /// Resets the function through sysfs.
    pub fn reset(&self) {
        // The driver checks the device, whether the reset has succeeded or not.
        let _ = self.slot.reset();
    }

    /// Suspends and resumes the device, with a power cycle in between.
    pub fn sleep(&self) {
        self.slot.sleep(|| self.power_on());
    }

    /// Hibernates the machine, and starts it again.
    pub fn hibernate(&self) {
        self.slot.hibernate(|| self.power_on());
    }

    fn power_on(&self) {
        self.shared
            .with(|device, machine, _| device.power_on(machine));
    }

    /// Reports a fatal error, after which the bus can reset the function or not.
    pub fn bus_error(&self, is_permanent: bool) {
        self.shared_bus_error(true, Neighbour::NONE, !is_permanent);
    }

    /// Reports an error to the driver and to that of a neighbour. `resets`: whether the bus can reset the functions.
    pub fn shared_bus_error(&self, is_fatal: bool, neighbour: Neighbour, resets: bool) {
        self.slot.bus_error(is_fatal, neighbour, || {
            if resets {
                self.shared.with(|device, machine, _| device.reset(machine));
            }
            resets
        });
    }

    /// Returns the value of a field in the debugfs file `state`.
    pub fn state(&self, what: &str) -> Option<String> {
        let state = kernel::debugfs::read("efa/0000:00:05.0/state")?;
        let mut lines = state.lines();
        let line = lines.find_map(|line| line.strip_prefix(what)?.strip_prefix(": "));
        line.map(str::to_owned)
    }

    /// Waits until the device is not in reset, and checks that no command is in flight, and no memory in quarantine. A device
    /// that has refused to destroy an object may keep its memory.
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
        let left = self.device().resources;
        if self.state("state").as_deref() == Some("up")
            && left.mr + left.cq + left.qp + left.event_counter == 0
        {
            let quarantine = self.state("quarantine").expect("a file in debugfs");
            assert_eq!(quarantine, "0", "memory in quarantine");
        }
    }

    /// Checks that a device in state `up` has no protocol errors, and no objects of programs.
    pub fn check_device(&self) {
        if self.state("state").as_deref() != Some("up") {
            return;
        }
        let state = self.device();
        assert_eq!(state.protocol_errors, 0, "protocol errors: {state:?}");
        let left = state.resources;
        let left = (left.ah, left.mr, left.cq, left.qp);
        assert_eq!(left, (0, 0, 0, 0), "objects are left in the device");
        self.check_quiet();
    }

    /// Returns the problems of an unbound device: warnings, DMA to unmapped memory, hung tasks, and
    /// leaked BARs, interrupts and managed resources.
    fn complaints(&self) -> Vec<String> {
        let mut complaints = kernel::take_warnings();
        complaints.extend(sim::memory::take_violations());
        let longest = sim::take_longest_wait();
        if longest >= HUNG {
            complaints.push(format!("a task has waited for {} ms", longest / 1_000_000));
        }
        let (what, took) = sim::take_longest_call();
        if took >= HUNG {
            complaints.push(format!("{what} has taken {} ms", took / 1_000_000));
        }
        if !self.slot.is_clean() {
            complaints.push("the driver leaks resources".into());
        }
        complaints
    }

    /// Unbinds the device, and checks for all complaints but leaked memory.
    pub fn remove_checked(&mut self) {
        self.remove();
        check_none(&self.complaints());
    }

    /// Unbinds the device, and checks for leaked memory, mappings and resources, and for warnings.
    pub fn end(mut self) {
        if self.slot.is_bound() {
            self.remove();
        }
        check_none(&self.complaints());
        assert_eq!(sim::memory::mappings(), 0, "mappings are left");
        assert_eq!(bindings::mapped(), self.mapped, "parts of BARs are mapped");
        assert_eq!(sim::live(), self.live, "memory is left");
    }
}

fn check_none(complaints: &[String]) {
    let some = &complaints[..complaints.len().min(3)];
    assert!(
        complaints.is_empty(),
        "{} complaints: {some:?}",
        complaints.len()
    );
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The driver's work items would access the function after its memory is freed.
        if self.slot.is_bound() && !std::thread::panicking() {
            self.remove();
        }
    }
}
