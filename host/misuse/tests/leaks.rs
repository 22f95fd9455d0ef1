// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Leaked objects end with the registration, and are not called afterwards. Invalid calls fail.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{Mutex, PoisonError},
};

use driver::{
    hardware::Shared,
    rig::{self, SECOND},
};
use efa_model::{Config, Profile};
use ib_core::{
    dmabuf,
    ffi::{ib_cq, ib_cq_init_attr, ib_mr, ib_udata, uverbs_attr_bundle},
    registry,
    uverbs::Process,
};
use kernel::{
    devlink,
    error::code::*,
    ffi::c_int,
    pci::slot::Slot,
    sim::{self, Policy},
};

/// Length of a dma-buf in bytes.
const LENGTH: u64 = 8192;
/// `IB_ACCESS_LOCAL_WRITE`.
const LOCAL_WRITE: u32 = 1;
/// A client is registered once in a process, so that one test at a time has it.
static HOARDER: Mutex<()> = Mutex::new(());

#[test]
fn a_device_without_dma_has_no_memory_for_it() {
    sim::run(Policy::Sequential, || {
        registry::start();
        let module = misuse::load().unwrap();
        assert_eq!(misuse::take_buffer_error(), Some(EINVAL));
        drop(module);
    });
}

/// Devices whose registrations have ended are registered in the same order, as far as they come back.
#[test]
fn devices_that_come_back_keep_their_order() {
    sim::run(Policy::Sequential, || {
        registry::start();
        let module = misuse::load().unwrap();
        let [first, second] = [(); 2].map(|()| Rc::new(misuse::Repeated::new().unwrap()));
        let order = Rc::new(RefCell::new(Vec::new()));
        let both =
            |first: &misuse::Repeated| first.during(|| second.during(|| ()).unwrap()).unwrap();
        both(&first);
        let task = {
            let (second, order) = (second.clone(), order.clone());
            sim::spawn("second", move || {
                second.during(|| order.borrow_mut().push("second")).unwrap();
            })
        };
        sim::sleep(SECOND);
        first.during(|| order.borrow_mut().push("first")).unwrap();
        sim::join(task);
        assert_eq!(*order.borrow(), ["first", "second"]);
        both(&first);
        let wait = || {
            let start = sim::now();
            second.during(|| sim::now() - start).unwrap()
        };
        assert!((5 * SECOND..6 * SECOND).contains(&wait()));
        assert_eq!(wait(), 0);
        both(&first);
        drop(first);
        assert_eq!(wait(), 0);
        drop((second, module));
    });
}

#[test]
fn a_leaked_region_ends_with_a_leaked_registration() {
    sim::run(Policy::Sequential, || {
        registry::start();
        let module = misuse::load().unwrap();
        let process = Process::open().unwrap();
        process.alloc_context(&[], &mut []).unwrap();
        let pd = process.alloc_pd(&[], &mut []).unwrap();
        let buffers: Vec<_> = (0..3).map(|_| dmabuf::export(LENGTH as usize)).collect();
        for number in &buffers {
            process
                .register_dmabuf(pd, *number, LENGTH, LOCAL_WRITE)
                .unwrap();
        }
        let (kept, _) = process
            .register_dmabuf(pd, buffers[0], LENGTH, LOCAL_WRITE)
            .unwrap();
        process.destroy(kept).unwrap();
        assert_eq!(misuse::take_revoked(), 0);

        dmabuf::revoke(buffers[1]);
        assert_eq!(misuse::take_revoked(), 1);

        // The end of the device revokes the others. The deregistered region was leaked, too.
        drop(module);
        assert_eq!(misuse::take_revoked(), 3);
        assert_eq!(process.alloc_pd(&[], &mut []), Err(EIO));
        for number in &buffers {
            dmabuf::revoke(*number);
        }
        assert_eq!(misuse::take_revoked(), 0);
        drop(process);
        assert_eq!(kernel::take_warnings(), [""; 0]);
    });
}

/// A program may use a device from the moment it is visible, although its registration then fails.
#[test]
fn a_leaked_region_ends_with_a_failed_registration() {
    sim::run(Policy::Sequential, || {
        registry::start();
        let buffer = dmabuf::export(LENGTH as usize);
        registry::fail_late(move || {
            let process = Process::open().unwrap();
            process.alloc_context(&[], &mut []).unwrap();
            let pd = process.alloc_pd(&[], &mut []).unwrap();
            process
                .register_dmabuf(pd, buffer, LENGTH, LOCAL_WRITE)
                .unwrap();
            // It keeps the device open.
            core::mem::forget(process);
        });
        assert_eq!(misuse::load().err(), Some(ENOMEM));
        assert_eq!(misuse::take_revoked(), 1);
        dmabuf::revoke(buffer);
        assert_eq!(misuse::take_revoked(), 0);
    });
}

/// The driver core does not release what is added while it releases the resources of a device. An interrupt may
/// be another driver's once it is released.
#[test]
fn a_value_attached_during_the_unbind_is_dropped() {
    sim::run(Policy::Sequential, || {
        registry::start();
        sim::attach(Box::new(Shared::new(Config::new(Profile::Efa3, 1))));
        let module = misuse::load().unwrap();
        let mut slot = Slot::new(misuse::late::DEVICE as u16);
        slot.probe().unwrap();
        assert_eq!(misuse::late::dropped(), 0);
        assert_eq!(devlink::dump(), Ok(Vec::new()));
        slot.remove();
        assert_eq!(devlink::dump(), Err(ENODEV));
        assert_eq!(misuse::late::dropped(), 2);
        assert_eq!(misuse::late::late_error(), Some(ENODEV));
        assert!(slot.is_clean());
        assert_eq!(kernel::take_warnings(), [""; 0]);
        drop(module);
        sim::detach();
    });
}

type Create =
    unsafe extern "C" fn(*mut ib_cq, *const ib_cq_init_attr, *mut uverbs_attr_bundle) -> c_int;
type Destroy = unsafe extern "C" fn(*mut ib_cq, *mut ib_udata) -> c_int;

thread_local! {
    static CREATE: Cell<Option<Create>> = const { Cell::new(None) };
    static DESTROY: Cell<Option<Destroy>> = const { Cell::new(None) };
    static CQ: Cell<Option<*mut ib_cq>> = const { Cell::new(None) };
    static DESTRUCTIONS: Cell<u32> = const { Cell::new(0) };
}

/// Reports completions of a queue.
fn notify(cq: *mut ib_cq) {
    // SAFETY: The queue exists, and its client has set a handler with a context.
    unsafe { (*cq).comp_handler.unwrap()(cq, (*cq).cq_context) };
}

unsafe extern "C" fn created(
    cq: *mut ib_cq,
    attr: *const ib_cq_init_attr,
    attrs: *mut uverbs_attr_bundle,
) -> c_int {
    CQ.set(Some(cq));
    // SAFETY: The arguments are those of the driver's function.
    unsafe { CREATE.get().unwrap()(cq, attr, attrs) }
}

unsafe extern "C" fn destroyed(cq: *mut ib_cq, udata: *mut ib_udata) -> c_int {
    DESTRUCTIONS.set(DESTRUCTIONS.get() + 1);
    notify(cq);
    // SAFETY: The arguments are those of the driver's function.
    unsafe { DESTROY.get().unwrap()(cq, udata) }
}

unsafe extern "C" fn refuses(_: *mut ib_mr, _: *mut ib_udata) -> c_int {
    EIO.to_errno()
}

/// The core would free the domain of a region that a provider does not deregister.
#[test]
fn a_domain_is_not_freed_before_its_region() {
    let _alone = HOARDER.lock().unwrap_or_else(PoisonError::into_inner);
    rig::run_without_end(Profile::Efa3, Policy::Sequential, |mut rig| {
        rig.probe().unwrap();
        let client = misuse::hoarder::register().unwrap();
        // SAFETY: The device is registered.
        let ops = unsafe { &mut (*registry::registered().unwrap()).ops };
        let deregister = ops.dereg_mr.replace(refuses);
        drop(client);
        ops.dereg_mr = deregister;
        assert_eq!(kernel::take_warnings(), [""; 0]);
        rig.remove();
    });
}

/// A handler may create a queue while the client's other objects are about to be destroyed.
#[test]
fn no_handler_of_a_leaked_queue_is_called_while_objects_are_destroyed() {
    let _alone = HOARDER.lock().unwrap_or_else(PoisonError::into_inner);
    rig::run_without_end(Profile::Efa3, Policy::Sequential, |mut rig| {
        rig.probe().unwrap();
        // SAFETY: The device is registered.
        let ops = unsafe { &mut (*registry::registered().unwrap()).ops };
        CREATE.set(ops.create_cq.replace(created));
        DESTROY.set(ops.destroy_cq.replace(destroyed));
        let client = misuse::hoarder::register().unwrap();
        let cq = CQ.take().unwrap();
        sim::spawn("event", move || notify(cq));
        sim::sleep(1_000_000);
        assert_eq!(misuse::hoarder::calls(), 1);
        drop(client);
        assert_eq!(DESTRUCTIONS.get(), 2);
        assert_eq!(misuse::hoarder::calls(), 1);
        rig.remove();
    });
}
