// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices, their managed resources and uevents.

use core::{
    cell::{Cell, RefCell},
    ptr::null_mut,
};

use super::{ENOENT, ENOMEM};
use crate::ffi::{c_char, c_int, c_uint, c_void};

#[derive(Default)]
pub struct kobject {
    pub events: RefCell<Vec<String>>,
}

type Action = (unsafe extern "C" fn(*mut c_void), *mut c_void);

pub struct device {
    pub init_name: *const c_char,
    pub kobj: kobject,
    pub parent: *mut device,
    pub dma_mask: *mut u64,
    pub dma_parms: *mut c_void,
    pub driver_data: *mut c_void,
    pub actions: RefCell<Vec<Action>>,
    pub references: Cell<u32>,
    /// Called when the last reference is put.
    pub release: Option<unsafe fn(*mut device)>,
}

impl device {
    /// Creates a device with this name, and one reference.
    pub fn new(name: *const c_char) -> Self {
        Self {
            init_name: name,
            kobj: kobject::default(),
            parent: null_mut(),
            dma_mask: null_mut(),
            dma_parms: null_mut(),
            driver_data: null_mut(),
            actions: RefCell::default(),
            references: Cell::new(1),
            release: None,
        }
    }

    /// Releases managed resources: removes all actions and runs them, the last one first. Actions that
    /// they add remain, as in `devres_release_all`.
    pub fn release_resources(&self) {
        for (action, data) in self.actions.take().into_iter().rev() {
            // SAFETY: The caller of `devm_add_action_or_reset` guarantees that the action can be run once.
            unsafe { action(data) };
        }
    }
}

pub unsafe fn get_device(dev: *mut device) -> *mut device {
    // SAFETY: The caller guarantees that the device is valid.
    let references = unsafe { &(*dev).references };
    assert_ne!(references.get(), 0, "a reference to a freed device");
    references.set(references.get() + 1);
    dev
}

pub unsafe fn put_device(dev: *mut device) {
    // SAFETY: As above.
    unsafe {
        let references = &(*dev).references;
        references.set(references.get() - 1);
        if references.get() == 0 {
            if let Some(release) = (*dev).release {
                release(dev);
            }
        }
    }
}

pub unsafe fn devm_add_action_or_reset(
    dev: *mut device,
    action: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> c_int {
    let action = action.expect("an action");
    // SAFETY: The caller guarantees that the device is valid.
    unsafe {
        if !sim::may_allocate() {
            action(data);
            return -ENOMEM;
        }
        (*dev).actions.borrow_mut().push((action, data));
    }
    0
}

pub unsafe fn devm_remove_action_nowarn(
    dev: *mut device,
    action: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> c_int {
    let action = action.expect("an action");
    // SAFETY: The caller guarantees that the device is valid.
    let mut actions = unsafe { (*dev).actions.borrow_mut() };
    let is_same = |(added, other): &(_, _)| core::ptr::fn_addr_eq(*added, action) && *other == data;
    let place = actions.iter().rposition(is_same);
    match place {
        Some(place) => {
            actions.remove(place);
            0
        }
        None => -ENOENT,
    }
}

pub unsafe fn devm_is_action_added(
    dev: *mut device,
    action: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> bool {
    let action = action.expect("an action");
    // SAFETY: The caller guarantees that the device is valid.
    let actions = unsafe { (*dev).actions.borrow() };
    let is_same = |(added, other): &(_, _)| core::ptr::fn_addr_eq(*added, action) && *other == data;
    actions.iter().any(is_same)
}

pub const kobject_action_KOBJ_CHANGE: c_uint = 2;

pub unsafe fn kobject_uevent_env(kobj: *mut kobject, _: c_uint, facts: *mut *mut c_char) -> c_int {
    // SAFETY: The list ends with null.
    unsafe {
        let mut facts = facts;
        while !(*facts).is_null() {
            let fact = core::ffi::CStr::from_ptr((*facts).cast());
            (*kobj)
                .events
                .borrow_mut()
                .push(fact.to_string_lossy().into_owned());
            facts = facts.add(1);
        }
    }
    0
}
