// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices: allocation, registration and unregistration, as in `device.c`.

use core::{
    cell::{Cell, RefCell},
    ptr::null_mut,
};
use std::rc::Rc;

use kernel::{
    bindings::{self, device, net},
    error::{code::*, to_result, Error, Result},
    ffi::{c_char, c_int, c_void},
    sim::{self, RawLock, Rw},
    warn,
};

use crate::{
    client::{add_client, remove_client},
    ffi,
    registry::{self, core, coredev, name, state, State},
    stats::{free_stats, setup_stats},
};

fn forget_device(device: *mut ffi::ib_device) {
    core().devices.borrow_mut().retain(|other| *other != device);
}

unsafe fn release(dev: *mut device) {
    let states = &core().states;
    let found = states
        .borrow()
        .values()
        .find(|state| &raw mut coredev(state.raw).dev == dev)
        .cloned();
    let state = found.expect("a device");
    states.borrow_mut().remove(&(state.raw as usize));
    for stats in state.stats.take() {
        free_stats(stats);
    }
    sim::count_freed(state.size);
    // SAFETY: The device is that of `_ib_alloc_device`, which has noted its size, and its last reference has been put.
    unsafe { sim::memory::free(state.raw.cast(), state.size, 8) };
}

#[no_mangle]
unsafe extern "C" fn _ib_alloc_device(size: usize, net: *mut net) -> *mut ffi::ib_device {
    sim::might_sleep("a device is allocated");
    if !sim::may_allocate() {
        return null_mut();
    }
    assert!(size_of::<ffi::ib_core_device>() <= size_of::<ffi::ib_device__bindgen_ty_1>());
    let raw: *mut ffi::ib_device = sim::memory::allocate(size, 8).cast();
    sim::count_allocated(size);
    let coredev: *mut ffi::ib_core_device = coredev(raw);
    // SAFETY: The memory is new. By the assertion above, `ib_core_device` fits into its field.
    unsafe {
        let mut dev = device::new(core::ptr::null());
        dev.release = Some(release);
        (&raw mut (*coredev).dev).write(dev);
        (*coredev).rdma_net.net = net;
        (*coredev).owner = raw;
    }
    let state = State {
        raw,
        size,
        references: Cell::new(0),
        unregistration: RawLock::new(),
        client_data_rwsem: Rw::new(),
        client_data: RefCell::default(),
        stats: RefCell::default(),
        attached: RefCell::default(),
        readers: Cell::new(0),
        tracked: RefCell::default(),
        objects: RefCell::default(),
        attr: Cell::new((0, 0)),
        ports: RefCell::default(),
        events: RefCell::default(),
        dispatching: RefCell::default(),
    };
    core()
        .states
        .borrow_mut()
        .insert(raw as usize, Rc::new(state));
    raw
}

#[no_mangle]
unsafe extern "C" fn ib_dealloc_device(device: *mut ffi::ib_device) {
    let state = state(device);
    if state.references.get() != 0 {
        warn("a device is freed that is registered".into());
    }
    core().devices_rwsem.write();
    forget_device(device);
    core().devices_rwsem.end_write();
    for (kind, count) in &*state.objects.borrow() {
        if *count != 0 {
            warn(format!("restrack: {count} {kind} left"));
        }
    }
    // SAFETY: The driver gives up the reference that it has since `_ib_alloc_device`.
    unsafe { bindings::put_device(&raw mut coredev(device).dev) };
}

#[no_mangle]
unsafe extern "C" fn ib_set_device_ops(
    device: *mut ffi::ib_device,
    ops: *const ffi::ib_device_ops,
) {
    // The core copies the fields that are set. None was set before.
    // SAFETY: By the contract of `ib_set_device_ops`, both are valid, and a table has integers and pointers only.
    unsafe { core::ptr::copy_nonoverlapping(ops, &raw mut (*device).ops, 1) };
}

fn assign_name(device: *mut ffi::ib_device, pattern: *const c_char) -> Result {
    let core = core();
    // SAFETY: By the contract of `ib_register_device`, the name is a text that ends with zero.
    let pattern = unsafe { core::ffi::CStr::from_ptr(pattern.cast()) }
        .to_str()
        .expect("a name");
    let is_taken = |wanted: &str| {
        core.devices
            .borrow()
            .iter()
            .any(|device| name(*device) == wanted)
    };
    core.devices_rwsem.write();
    let name = if pattern.contains('%') {
        // The core passes it to `sscanf` and `dev_set_name`.
        let is_number = pattern.matches('%').count() == 1 && pattern.contains("%d");
        assert!(is_number, "{pattern} is read as a format");
        (0..)
            .map(|number| pattern.replace("%d", &number.to_string()))
            .find(|name| !is_taken(name))
            .unwrap()
    } else {
        pattern.to_owned()
    };
    let result = if is_taken(&name) {
        Err(ENFILE)
    } else {
        assert!(name.len() < 64, "a name of {} bytes", name.len());
        // SAFETY: The caller guarantees the device, and the assertion above that the name and a zero fit into its array.
        unsafe {
            (*device).name = [0; 64];
            core::ptr::copy_nonoverlapping(
                name.as_ptr(),
                (&raw mut (*device).name).cast(),
                name.len(),
            );
        }
        core.devices.borrow_mut().push(device);
        Ok(())
    };
    core.devices_rwsem.end_write();
    result
}

/// Queries attributes and port of the device, and sets up its counters.
unsafe fn setup(device: *mut ffi::ib_device, state: &State) -> Result {
    // SAFETY: The caller guarantees that the driver has set the device up; its functions get valid structures of the core.
    unsafe {
        let ops = &(*device).ops;
        let mandatory = ops.query_device.is_some()
            && ops.query_port.is_some()
            && ops.alloc_pd.is_some()
            && ops.dealloc_pd.is_some()
            && ops.create_qp.is_some()
            && ops.modify_qp.is_some()
            && ops.destroy_qp.is_some()
            && ops.destroy_cq.is_some()
            && ops.get_dma_mr.is_some()
            && ops.reg_user_mr.is_some()
            && ops.dereg_mr.is_some()
            && ops.post_send.is_some()
            && ops.post_recv.is_some()
            && ops.create_cq.is_some()
            && ops.poll_cq.is_some()
            && ops.req_notify_cq.is_some()
            && ops.get_port_immutable.is_some();
        (*device).set_kverbs_provider(mandatory.into());

        // The core zeroes the attributes, and passes a `uhw` without room.
        let mut udata: ffi::ib_udata = core::mem::zeroed();
        to_result(ops.query_device.unwrap()(
            device,
            &raw mut (*device).attrs,
            &raw mut udata,
        ))?;
        let mut immutable: ffi::ib_port_immutable = core::mem::zeroed();
        to_result(ops.get_port_immutable.unwrap()(
            device,
            1,
            &raw mut immutable,
        ))?;
        state
            .attr
            .set((immutable.gid_tbl_len as u32, immutable.pkey_tbl_len as u32));
        let mut ports = state.ports.borrow_mut();
        ports.clear();
        for _ in 0..=(*device).phys_port_cnt {
            let mut port: ffi::ib_port_data = core::mem::zeroed();
            port.ib_dev = device;
            core::ptr::copy_nonoverlapping(&immutable, &raw mut port.immutable, 1);
            ports.push(port);
        }
        (*device).port_data = ports.as_mut_ptr();
        drop(ports);

        // The queries with which the core fills its cache.
        let mut attr: ffi::ib_port_attr = core::mem::zeroed();
        to_result(ops.query_port.unwrap()(device, 1, &raw mut attr))?;
        for index in 0..immutable.gid_tbl_len {
            let mut gid: ffi::ib_gid = core::mem::zeroed();
            to_result(ops.query_gid.unwrap()(device, 1, index, &raw mut gid))?;
        }
        for index in 0..immutable.pkey_tbl_len {
            let mut key = 0;
            to_result(ops.query_pkey.unwrap()(
                device,
                1,
                index as u16,
                &raw mut key,
            ))?;
        }
        setup_stats(device, state)
    }
}

#[no_mangle]
unsafe extern "C" fn ib_register_device(
    device: *mut ffi::ib_device,
    name: *const c_char,
    dma_device: *mut device,
) -> c_int {
    sim::might_sleep("a device is registered");
    let state = state(device);
    let register = || {
        if core().refuses.get() {
            return Err(ENOMEM);
        }
        assign_name(device, name)?;
        // SAFETY: By the contract of `ib_register_device`, the driver has set the device up, and nothing else registers it.
        unsafe {
            (*device).dma_device = dma_device;
            setup(device, &state)?;
            if let Err(error) = enable(device, &state) {
                // Clients that were added before the failure are removed.
                state.put();
                unregister(device, &state);
                return Err(error);
            }
        }
        state.put();
        core().registrations.set(core().registrations.get() + 1);
        Ok(())
    };
    register().err().map_or(0, Error::to_errno)
}

unsafe fn enable(device: *mut ffi::ib_device, state: &Rc<State>) -> Result {
    let core = core();
    state.references.set(2);
    core.devices_rwsem.write();
    core.registered.borrow_mut().push(device);
    // The registration cannot end while clients are added.
    core.devices_rwsem.downgrade();
    // SAFETY: The caller has set the device up, and the core has its table since `ib_set_device_ops`.
    let result = to_result(unsafe {
        (*device)
            .ops
            .enable_driver
            .map_or(0, |enable| enable(device))
    });
    if result.is_ok() {
        core.clients_rwsem.read();
        let clients = core.clients.borrow().clone();
        for client in clients {
            add_client(device, state, &client);
        }
        core.clients_rwsem.end_read();
    }
    core.devices_rwsem.end_read();
    // The core also fails here, if there is no memory for a client's data.
    registry::take_failure().map_or(result, |before| {
        before();
        Err(ENOMEM)
    })
}

/// Unregisters a device, if it is registered.
fn unregister(device: *mut ffi::ib_device, state: &Rc<State>) {
    let core = core();
    state.unregistration.lock(true);
    if state.references.get() != 0 {
        core.devices_rwsem.write();
        core.registered
            .borrow_mut()
            .retain(|other| *other != device);
        core.devices_rwsem.end_write();
        let clients = core.clients.borrow().clone();
        for client in clients.iter().rev() {
            remove_client(device, state, client);
        }
        state.put();
        while state.references.get() != 0 {
            sim::wait_for(Rc::as_ptr(state) as usize);
        }
        state.dispatching.take().into_iter().for_each(sim::join);
        // Waits for readers of counters, as the removal of the files in sysfs does.
        let all = state.stats.take();
        while state.readers.get() != 0 {
            sim::wait_for(Rc::as_ptr(state) as usize);
        }
        all.into_iter().for_each(free_stats);
    }
    state.unregistration.unlock(true);
}

#[no_mangle]
unsafe extern "C" fn ib_unregister_device(device: *mut ffi::ib_device) {
    sim::might_sleep("a device is unregistered");
    unregister(device, &state(device));
}

#[no_mangle]
unsafe extern "C" fn ib_dispatch_event(event: *const ffi::ib_event) {
    if !sim::may_allocate() {
        return;
    }
    // SAFETY: By the contract of `ib_dispatch_event`, the event is valid.
    let (device, event) = unsafe { ((*event).device, (*event).event) };
    let state = state(device);
    if state.references.get() == 0 {
        warn("an event of a device that is not registered".into());
    }
    let handlers = state.events.borrow().clone();
    let call = move || handlers.iter().for_each(|handler| handler(event));
    let task = sim::spawn("ib_wq", call);
    state.dispatching.borrow_mut().push(task);
}

/// Supports the format `%pA` only, as the driver uses no other.
#[no_mangle]
unsafe extern "C" fn ibdev_info(
    device: *const ffi::ib_device,
    _: *const c_char,
    message: *const c_void,
) {
    // SAFETY: The driver prints by `%pA` only, whose argument points to arguments of Rust.
    let message = unsafe { &*message.cast::<core::fmt::Arguments<'_>>() };
    sim::log(format_args!(
        "info {}: {message}\n",
        name(device.cast_mut())
    ));
}
