// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Delayed work.

use core::ptr::null_mut;

use crate::{
    ffi::{c_int, c_uint, c_ulong},
    time::JIFFY,
};

pub struct work_struct {
    function: Option<unsafe extern "C" fn(*mut work_struct)>,
}

pub struct delayed_work {
    pub work: work_struct,
    timer: sim::Work,
}

pub struct workqueue_struct;

pub const wq_misc_consts_WORK_CPU_UNBOUND: c_uint = 64;

pub static mut system_dfl_long_wq: *mut workqueue_struct = null_mut();

pub unsafe fn init_delayed_work(
    slot: *mut delayed_work,
    function: Option<unsafe extern "C" fn(*mut work_struct)>,
) {
    fn run(work: usize) {
        let work = work as *mut delayed_work;
        // SAFETY: Work that runs is alive.
        unsafe { (*work).work.function.expect("a function")(&raw mut (*work).work) }
    }

    let timer = sim::Work::new(run, slot as usize);
    let work = work_struct { function };
    // SAFETY: The caller guarantees that there is room.
    unsafe { slot.write(delayed_work { work, timer }) };
}

pub unsafe fn disable_delayed_work(work: *mut delayed_work) -> bool {
    // SAFETY: The caller guarantees that the work is initialized.
    unsafe { (*work).timer.disable() };
    true
}

pub unsafe fn disable_delayed_work_sync(work: *mut delayed_work) -> bool {
    // SAFETY: As above.
    unsafe { (*work).timer.disable_sync() };
    true
}

pub unsafe fn enable_delayed_work(work: *mut delayed_work) -> bool {
    // SAFETY: As above.
    unsafe { (*work).timer.enable() };
    true
}

pub unsafe fn mod_delayed_work_on(
    _: c_int,
    _: *mut workqueue_struct,
    work: *mut delayed_work,
    delay: c_ulong,
) -> bool {
    sim::point();
    // SAFETY: As above.
    unsafe { (*work).timer.modify(delay as u64 * JIFFY) };
    true
}

pub unsafe fn queue_delayed_work_on(
    _: c_int,
    _: *mut workqueue_struct,
    work: *mut delayed_work,
    delay: c_ulong,
) -> bool {
    sim::point();
    // SAFETY: As above.
    unsafe { (*work).timer.queue(delay as u64 * JIFFY) };
    true
}
