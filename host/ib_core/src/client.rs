// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Clients of the core.

use std::{ptr::null_mut, rc::Rc};

use kernel::{
    error::{code::ENOMEM, to_result, Result},
    ffi::{c_int, c_void},
    sim, warn,
};

use crate::{
    ffi,
    registry::{core, state, State},
};

/// A client of the core, written in Rust.
pub trait Client {
    /// Returns whether the client takes devices that have no verbs for the kernel.
    fn takes_all(&self) -> bool {
        false
    }

    /// Called when a device is registered. After an error the client is not called for it again.
    ///
    /// # Errors
    ///
    /// Errors of the client.
    fn add(&self, device: *mut ffi::ib_device) -> Result<*mut c_void>;

    /// Called before the end of the device or the client, with the `data` of [`Client::add`].
    fn remove(&self, device: *mut ffi::ib_device, data: *mut c_void);
}

/// A client and its number.
#[derive(Clone)]
pub(crate) struct Known(pub(crate) u32, Rc<dyn Client>);

/// Adds a device to a client.
pub(crate) fn add_client(
    device: *mut ffi::ib_device,
    state: &State,
    Known(number, client): &Known,
) {
    // SAFETY: The callers hold `devices_rwsem`, so that the device stays registered.
    if unsafe { (*device).kverbs_provider() } == 0 && !client.takes_all() {
        return;
    }
    state.client_data_rwsem.write();
    if state.client_data.borrow().contains_key(number) {
        state.client_data_rwsem.end_write();
        return;
    }
    state.references.set(state.references.get() + 1);
    state.client_data.borrow_mut().insert(*number, (0, false));
    state.client_data_rwsem.downgrade();
    match client.add(device) {
        Ok(data) => {
            let mut all = state.client_data.borrow_mut();
            let entry = all.get_mut(number).expect("it was put there");
            // A client in C has set its data itself.
            entry.0 = if data.is_null() {
                entry.0
            } else {
                data as usize
            };
            entry.1 = true;
        }
        // No other callback of the client is called for this device.
        Err(_) => {
            state.client_data.borrow_mut().remove(number);
            state.put();
        }
    }
    state.client_data_rwsem.end_read();
}

/// Removes a device from a client.
pub(crate) fn remove_client(
    device: *mut ffi::ib_device,
    state: &State,
    Known(number, client): &Known,
) {
    state.client_data_rwsem.write();
    let data = match state.client_data.borrow_mut().get_mut(number) {
        Some((data, is_added)) if *is_added => {
            *is_added = false;
            Some(*data)
        }
        _ => None,
    };
    state.client_data_rwsem.end_write();
    if let Some(data) = data {
        client.remove(device, data as *mut c_void);
        state.client_data.borrow_mut().remove(number);
        state.put();
    }
}

/// Registers a client, and adds all devices to it. Returns its number.
pub fn register_client(client: Rc<dyn Client>) -> u32 {
    let core = core();
    let number = core.next_client.get();
    core.next_client.set(number + 1);
    let known = Known(number, client);
    core.devices_rwsem.read();
    core.clients_rwsem.write();
    core.clients.borrow_mut().push(known.clone());
    core.clients_rwsem.downgrade();
    let devices = core.registered.borrow().clone();
    for device in devices {
        add_client(device, &state(device), &known);
    }
    core.clients_rwsem.end_read();
    core.devices_rwsem.end_read();
    number
}

/// Unregisters a client, and removes all devices from it.
pub fn unregister_client(number: u32) {
    let core = core();
    core.clients_rwsem.write();
    let mut clients = core.clients.borrow_mut();
    let place = clients
        .iter()
        .position(|known| known.0 == number)
        .expect("a client");
    let known = clients.remove(place);
    drop(clients);
    core.clients_rwsem.end_write();
    let states: Vec<_> = core.states.borrow().values().cloned().collect();
    for state in states {
        // The unregistration of a device removes its clients itself.
        if state.try_get() {
            remove_client(state.raw, &state, &known);
            state.put();
        }
    }
}

/// A client that was registered by `ib_register_client`.
struct ClientOfC(*mut ffi::ib_client);

impl Client for ClientOfC {
    fn takes_all(&self) -> bool {
        // SAFETY: The client is valid, as it stays registered while `clients_rwsem` is held.
        unsafe { (*self.0).no_kverbs_req() != 0 }
    }

    fn add(&self, device: *mut ffi::ib_device) -> Result<*mut c_void> {
        // SAFETY: The client is valid while it is registered, `clients_rwsem` is held, and the device is registered.
        let result = unsafe { (*self.0).add.expect("a function")(device) };
        to_result(result)?;
        Ok(null_mut())
    }

    fn remove(&self, device: *mut ffi::ib_device, data: *mut c_void) {
        // SAFETY: The client is valid, as it is not unregistered while it leaves a device; the data is what it has set.
        unsafe { (*self.0).remove.expect("a function")(device, data) };
    }
}

#[no_mangle]
unsafe extern "C" fn ib_register_client(client: *mut ffi::ib_client) -> c_int {
    sim::might_sleep("a client is registered");
    if !sim::may_allocate() {
        return ENOMEM.to_errno();
    }
    // The number has to be known when the first device is added, as `ib_set_client_data` needs it.
    // SAFETY: By the contract of `ib_register_client`, the client is valid until it is unregistered.
    unsafe { (*client).client_id = core().next_client.get() };
    register_client(Rc::new(ClientOfC(client)));
    0
}

#[no_mangle]
unsafe extern "C" fn ib_unregister_client(client: *mut ffi::ib_client) {
    // SAFETY: By the contract of `ib_unregister_client`, the client is registered, and so valid.
    unregister_client(unsafe { (*client).client_id });
}

#[no_mangle]
unsafe extern "C" fn ib_set_client_data(
    device: *mut ffi::ib_device,
    client: *mut ffi::ib_client,
    data: *mut c_void,
) {
    // SAFETY: By the contract of `ib_set_client_data`, the client is registered, and so valid.
    let number = unsafe { (*client).client_id };
    let state = state(device);
    let mut all = state.client_data.borrow_mut();
    match all.get_mut(&number) {
        Some(entry) => entry.0 = data as usize,
        None => warn("ib_set_client_data: the client has not been added".into()),
    }
}
