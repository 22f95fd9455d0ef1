// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A device fails in each phase of its life, while a client waits for it. Each wait ends, and the
//! device works again or is given up.

use std::{
    cell::{Cell, RefCell},
    ptr::null_mut,
    rc::Rc,
};

use driver::{
    client::{Objects, Request, WORKQUEUE},
    fault::{always, command as of_command, rule, then},
    hardware::Shared,
    rig::SECOND,
};
use efa_model::{Death, Profile};
use ib_core::{client, cq, ffi::ib_device, registry::registered};
use kernel::{
    error::Result,
    ffi::c_void,
    sim::{self, RawLock},
};

use crate::{command, messages, run_with};

/// What the client waits for does not happen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Dies,
    /// Registers are still read, but keep-alives are missing.
    Freezes,
    /// Each command takes a little less than its timeout.
    Slow,
    /// The interrupts of a completion vector are lost.
    LosesVector,
    /// Posted work requests are not flushed.
    HoldsRequests,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Probe,
    Recovery,
    Use,
    Removal,
    Reset,
    Sleep,
}

/// A client that waits for the device in one phase.
struct Waiter {
    shared: Shared,
    fault: Fault,
    phase: Phase,
    added: Cell<u32>,
    kept: RefCell<Option<Objects>>,
    /// Held while the kept objects are in use.
    lock: RawLock,
}

impl Waiter {
    /// Waits with the kept objects, until the device is removed or later.
    fn wait_in_use(&self) {
        self.lock.lock(true);
        self.wait(self.kept.borrow().as_ref().unwrap());
        self.lock.unlock(true);
    }

    fn occur(&self) {
        let death = |silent| Death {
            silent,
            ..Death::default()
        };
        self.shared.with(|device, machine, now| match self.fault {
            Fault::Dies => device.die(machine, now, death(false)),
            Fault::Freezes => device.die(machine, now, death(true)),
            Fault::Slow => drop(device.inject(slow())),
            Fault::HoldsRequests => drop(device.inject(rule(
                r#"{"when": {"work": "SEND"}, "then": {"hold": "for ever"}}"#,
            ))),
            Fault::LosesVector => (),
        });
        if self.fault == Fault::LosesVector {
            sim::disable_line(1);
        }
    }

    /// Lets the fault occur, and waits for the completion of a request.
    fn wait(&self, objects: &Objects) {
        // The receive may be flushed after the return.
        let [request, recv] = [(); 2].map(|()| &*Box::leak(Request::new(0)));
        match self.fault {
            Fault::Dies | Fault::Freezes => {
                objects.post_recv(request).unwrap();
                self.occur();
            }
            Fault::Slow | Fault::LosesVector | Fault::HoldsRequests => {
                self.occur();
                objects.post_recv(recv).unwrap();
                objects.post_send(request).unwrap();
            }
        }
        if self.fault == Fault::HoldsRequests {
            sim::sleep(SECOND);
            // SAFETY: The queue pair exists.
            unsafe { cq::drain(objects.qp) };
        }
        while request.status.get().is_none() {
            sim::sleep(SECOND);
        }
    }
}

impl client::Client for Waiter {
    fn add(&self, device: *mut ib_device) -> Result<*mut c_void> {
        let objects = Objects::new(device, WORKQUEUE)?;
        self.added.set(self.added.get() + 1);
        let round = match self.phase {
            Phase::Probe => 1,
            Phase::Recovery => 2,
            _ => 0,
        };
        if self.added.get() == round {
            // The device is monitored by keep-alives after the third one.
            sim::sleep(5 * SECOND);
            self.wait(&objects);
        }
        *self.kept.borrow_mut() = Some(objects);
        Ok(null_mut())
    }

    fn remove(&self, _: *mut ib_device, _: *mut c_void) {
        self.lock.lock(true);
        let kept = self.kept.take();
        self.lock.unlock(true);
        if let Some(objects) = kept {
            if self.phase == Phase::Removal && self.added.get() == 1 {
                self.wait(&objects);
            }
        }
    }
}

/// Each command takes a little less than its timeout.
fn slow() -> efa_model::Rule {
    always(of_command(None), then(r#"{"delay_ms": 29000}"#))
}

fn fails_in(phase: Phase, fault: Fault) {
    run_with(Profile::Efa3, |rig| {
        sim::keep_log(true);
        let waiter = Rc::new(Waiter {
            shared: rig.shared.clone(),
            fault,
            phase,
            added: Cell::new(0),
            kept: RefCell::default(),
            lock: RawLock::new(),
        });
        let number = client::register_client(waiter.clone());
        let is_over = Rc::new(Cell::new(false));
        let is_seen = is_over.clone();
        sim::spawn("watchdog", move || {
            sim::sleep(900 * SECOND);
            assert!(is_seen.get(), "a device that {fault:?} in {phase:?}");
        });
        rig.probe().unwrap();
        sim::sleep(5 * SECOND);
        match phase {
            Phase::Probe => (),
            Phase::Recovery => rig.die(Death::default()),
            Phase::Use => waiter.wait_in_use(),
            Phase::Removal => rig.remove(),
            Phase::Reset => {
                waiter.occur();
                rig.reset();
            }
            Phase::Sleep => {
                waiter.occur();
                rig.sleep();
            }
        }
        if phase == Phase::Removal {
            rig.heal();
            rig.probe().unwrap();
        }
        sim::sleep(600 * SECOND);
        is_over.set(true);
        let state = rig.state("state");
        let is_up = state.as_deref() == Some("up");
        let has_ended = is_up || state.as_deref() == Some("failed");
        assert!(has_ended, "{phase:?} {fault:?}: {state:?}");
        let count = |what: &str| {
            let log = rig.slot.uevents().into_iter().chain(messages(""));
            log.filter(|line| line.contains(what)).count()
        };
        assert!(count("EFA_EVENT=reset") <= 2, "{phase:?} {fault:?}");
        rig.heal();
        rig.reset();
        rig.check_quiet();
        assert!(command().0.is_ok(), "{phase:?} {fault:?}");
        assert!(registered().is_some());
        client::unregister_client(number);
    });
}

#[test]
fn a_wait_for_a_device_that_fails_ends() {
    for phase in [
        Phase::Probe,
        Phase::Recovery,
        Phase::Use,
        Phase::Removal,
        Phase::Reset,
        Phase::Sleep,
    ] {
        for fault in [
            Fault::Dies,
            Fault::Freezes,
            Fault::Slow,
            Fault::LosesVector,
            Fault::HoldsRequests,
        ] {
            fails_in(phase, fault);
        }
    }
}
