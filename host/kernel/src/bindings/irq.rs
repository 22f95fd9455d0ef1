// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Interrupts.

use core::cell::RefCell;
use std::{collections::BTreeSet, rc::Rc};

use super::{function, ENODEV, ENOMEM};
use crate::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct irqreturn(pub c_uint);

pub use irqreturn as irqreturn_t;

impl irqreturn {
    pub const IRQ_HANDLED: Self = Self(1);
    pub const IRQ_WAKE_THREAD: Self = Self(2);
}

/// The number of vector 0.
pub const FIRST_IRQ: u32 = 40;

pub static mut nr_cpu_ids: c_uint = 4;

pub struct cpumask;

pub type irq_handler = unsafe extern "C" fn(c_int, *mut c_void) -> irqreturn_t;

pub unsafe fn request_threaded_irq(
    irq: c_uint,
    handler: Option<irq_handler>,
    thread: Option<irq_handler>,
    _: c_ulong,
    _: *const c_char,
    cookie: *mut c_void,
) -> c_int {
    sim::might_sleep("an interrupt is requested");
    if !sim::may_allocate() {
        return -ENOMEM;
    }
    let number = irq as c_int;
    let handler = handler.expect("a handler");
    // SAFETY: The caller guarantees that the handler can be called until the interrupt is freed.
    let call = Rc::new(move || unsafe { handler(number, cookie) } == irqreturn::IRQ_WAKE_THREAD);
    let thread = thread.map(|thread| {
        Rc::new(move || {
            // SAFETY: As above.
            unsafe { thread(number, cookie) };
        }) as Rc<dyn Fn()>
    });
    if sim::request_line(irq - FIRST_IRQ, call, thread) {
        // It is unmasked in the table of vectors.
        function().check_memory();
        0
    } else {
        -ENODEV
    }
}

pub unsafe fn free_irq(irq: c_uint, cookie: *mut c_void) -> *const c_void {
    if HINTS.with(|hints| hints.borrow_mut().remove(&irq)) {
        crate::warn(format!("free_irq: interrupt {irq} has an affinity hint"));
    }
    sim::free_line(irq - FIRST_IRQ);
    // It was masked in the table of vectors.
    function().check_memory();
    cookie
}

pub unsafe fn disable_irq(irq: c_uint) {
    if !sim::has_handler(irq - FIRST_IRQ) {
        return crate::warn(format!("disable_irq: {irq} may be another driver's"));
    }
    sim::disable_line(irq - FIRST_IRQ);
}

pub unsafe fn enable_irq(irq: c_uint) {
    sim::enable_line(irq - FIRST_IRQ);
}

/// The mask of one CPU. Its content is not used.
pub static ONE_CPU: cpumask = cpumask;

thread_local! {
    /// Interrupts that have an affinity hint.
    static HINTS: RefCell<BTreeSet<c_uint>> = const { RefCell::new(BTreeSet::new()) };
}

pub unsafe fn __irq_apply_affinity_hint(irq: c_uint, mask: *const cpumask, _: bool) -> c_int {
    HINTS.with(|hints| {
        if mask.is_null() {
            hints.borrow_mut().remove(&irq);
        } else {
            hints.borrow_mut().insert(irq);
        }
    });
    0
}
