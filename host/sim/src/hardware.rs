// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device at the other end of the bus.

use std::cell::RefCell;

use crate::{
    machine::{now, world},
    policy::point,
    Nanos,
};

/// A device on the bus. It gets the current time, and returns the time of its next action.
pub trait Hardware {
    /// Handles a write of 32 bits to a BAR.
    fn write(&mut self, now: Nanos, bar: u32, offset: u64, value: u32);

    /// Performs the actions that are due. Returns the time of the next one, if any.
    fn run(&mut self, now: Nanos) -> Option<Nanos>;

    /// Returns the size of a BAR in bytes, 0 if the BAR is missing.
    fn bar_size(&self, bar: u32) -> u64;

    /// Returns where the memory of a BAR is mapped in this process, if that BAR is memory.
    fn memory(&mut self, bar: u32) -> Option<*mut u8> {
        let _ = bar;
        None
    }

    /// Returns the number of MSI-X vectors.
    fn vectors(&self) -> u32;

    /// Enables or disables bus mastering.
    fn set_master(&mut self, on: bool);

    /// Resets the function.
    fn function_reset(&mut self);

    /// Returns whether the device answers on the bus.
    fn is_present(&self) -> bool;

    /// Returns whether the device may access these bytes on its own: the oracle of
    /// [`set_strict`](crate::memory::set_strict).
    fn knows(&self, address: u64, length: usize) -> bool {
        let _ = (address, length);
        false
    }
}

thread_local! {
    static DEVICE: RefCell<Option<Box<dyn Hardware>>> = const { RefCell::new(None) };
}

/// Connects a device.
pub fn attach(device: Box<dyn Hardware>) {
    DEVICE.with(|slot| *slot.borrow_mut() = Some(device));
    kick_device();
}

/// Disconnects the device.
pub fn detach() -> Option<Box<dyn Hardware>> {
    world(|world| world.device_due = None);
    DEVICE.with(|slot| slot.borrow_mut().take())
}

/// Calls `f` with the device, if one is connected.
pub fn device<R>(f: impl FnOnce(&mut dyn Hardware) -> R) -> Option<R> {
    DEVICE.with(|slot| slot.borrow_mut().as_mut().map(|device| f(&mut **device)))
}

/// Writes to a BAR of the device.
pub fn write_device(bar: u32, offset: u64, value: u32) {
    point();
    let now = now();
    device(|device| device.write(now, bar, offset, value));
    kick_device();
    point();
}

/// Schedules the device, as it may have actions that are due.
pub fn kick_device() {
    world(|world| world.device_due = Some(world.now));
}

/// Performs the actions of the device that are due.
pub(crate) fn run_device() {
    let now = now();
    let due = device(|device| device.run(now)).flatten();
    world(|world| world.device_due = due);
}
