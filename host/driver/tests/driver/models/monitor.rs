// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The monitor beside the registration, the unregistration, and the clients that wait in both.

use core::ptr::null_mut;

use driver::client::{Objects, Request, WORKQUEUE};
use ib_core::{client, ffi::ib_device, registry::registered};
use kernel::ffi::c_void;

use super::*;

/// Waits for a request that only a halt completes, when the device is added for the first time, or removed.
struct Waiter {
    waits_in_add: bool,
    rounds: Cell<u32>,
    kept: Cell<Option<Objects>>,
    ended: Cell<u32>,
}

impl Waiter {
    fn register(waits_in_add: bool) -> (Rc<Self>, u32) {
        let waiter = Rc::new(Self {
            waits_in_add,
            rounds: Cell::new(0),
            kept: Cell::new(None),
            ended: Cell::new(0),
        });
        (waiter.clone(), client::register_client(waiter))
    }

    fn wait(&self, objects: &Objects) {
        let request = Box::leak(Request::new(0));
        objects.post_recv(request).unwrap();
        let start = sim::now();
        sim::searched(|| {
            while request.status.get().is_none() {
                assert!(sim::now() - start < 100 * SECOND, "a wait without end");
                sim::sleep(SECOND / 10);
            }
        });
        self.ended.set(self.ended.get() + 1);
    }
}

impl client::Client for Waiter {
    fn add(&self, device: *mut ib_device) -> Result<*mut c_void> {
        let objects = Objects::new(device, WORKQUEUE)?;
        self.rounds.set(self.rounds.get() + 1);
        if self.waits_in_add && self.rounds.get() == 1 {
            self.wait(&objects);
        }
        self.kept.set(Some(objects));
        Ok(null_mut())
    }

    fn remove(&self, _: *mut ib_device, _: *mut c_void) {
        if let Some(objects) = self.kept.take() {
            if !self.waits_in_add && self.rounds.get() == 1 {
                self.wait(&objects);
            }
        }
    }
}

/// Kills the device after a while, from a task of its own.
fn death_after(rig: &Rig, time: u64, is_silent: bool) -> TaskId {
    let shared = rig.shared.clone();
    sim::spawn("death", move || {
        sim::sleep(time);
        let death = Death {
            silent: is_silent,
            ..Death::default()
        };
        shared.with(|device, machine, now| device.die(machine, now, death));
    })
}

/// The client waits in the probe, while nothing else than the monitor looks at the device.
#[test]
fn a_client_that_waits_in_a_probe_is_released() {
    search("death in a registration", Profile::Efa3, ONE, |rig| {
        let (waiter, number) = Waiter::register(true);
        let death = death_after(rig, SECOND, false);
        let _ = rig.probe();
        sim::join(death);
        assert_eq!(waiter.ended.get(), 1);
        comes_back(rig);
        client::unregister_client(number);
    });
}

#[test]
fn a_client_that_waits_in_a_removal_is_released() {
    explore("death in a removal", Profile::Efa3, ONE, |rig| {
        let (waiter, number) = Waiter::register(false);
        let death = death_after(rig, SECOND / 2, false);
        rig.remove();
        sim::join(death);
        assert_eq!(waiter.ended.get(), 1);
        client::unregister_client(number);
    });
}

/// The device dies at any time of the probe. Later it works, or was given up.
#[test]
fn a_device_that_dies_in_a_probe_comes_back() {
    search("death in a probe", Profile::Efa2, ONE, |rig| {
        let death = death_after(rig, 0, false);
        together([death], || {
            if rig.probe().is_err() {
                rig.heal();
                rig.probe().unwrap();
            }
        });
        comes_back(rig);
    });
}

/// The state says whether the device is registered.
#[test]
fn a_device_that_is_up_is_registered() {
    explore("state", Profile::Efa2, ONE, |rig| {
        let (shared, stops) = (rig.shared.clone(), Rc::new(Cell::new(false)));
        let stop = stops.clone();
        let reader = sim::spawn("reader", move || {
            while !stop.get() {
                let state = kernel::debugfs::read("efa/0000:00:05.0/state").unwrap();
                if state.contains("state: up") {
                    assert!(registered().is_some(), "{state}");
                }
                sim::sleep(SECOND / 1000);
            }
        });
        let death = sim::spawn("death", move || {
            shared.with(|device, machine, now| {
                device.post_event(machine, now, AenqGroup::FatalError.into(), 1)
            });
        });
        together([death], || {
            rig.check_quiet();
            stops.set(true);
        });
        sim::join(reader);
        comes_back(rig);
    });
}

/// The monitor finds the failure while a program destroys its objects and the bus removes the device.
#[test]
fn a_device_that_fails_in_a_removal_is_halted() {
    explore("failure in a removal", Profile::Efa3, ONE, |rig| {
        let objects = program::Objects::new().unwrap();
        let shared = rig.shared.clone();
        let death = sim::spawn("death", move || {
            let death = Death {
                dma: true,
                ..Death::default()
            };
            shared.set_pace(50_000_000);
            shared.with(|device, machine, now| device.die(machine, now, death));
        });
        together([death], || rig.remove());
        drop(objects);
        assert_eq!(rig.device().dma_after_reset, 0);
    });
}
