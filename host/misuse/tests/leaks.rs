// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Leaked objects end with the registration, and are not called afterwards. Invalid calls fail.

use ib_core::{dmabuf, registry, uverbs::Process};
use kernel::{
    error::code::*,
    pci::slot::Slot,
    sim::{self, Policy},
};

/// Length of a dma-buf in bytes.
const LENGTH: u64 = 8192;
/// `IB_ACCESS_LOCAL_WRITE`.
const LOCAL_WRITE: u32 = 1;

#[test]
fn a_device_without_dma_has_no_memory_for_it() {
    sim::run(Policy::Sequential, || {
        registry::start();
        let module = misuse::load().unwrap();
        assert_eq!(misuse::take_buffer_error(), Some(EINVAL));
        drop(module);
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

/// The driver core does not release what is added while it releases the resources of a device.
#[test]
fn a_value_attached_during_the_unbind_is_dropped() {
    sim::run(Policy::Sequential, || {
        registry::start();
        let module = misuse::load().unwrap();
        let mut slot = Slot::new(misuse::late::DEVICE as u16);
        slot.probe().unwrap();
        assert_eq!(misuse::late::dropped(), 0);
        slot.remove();
        assert_eq!(misuse::late::dropped(), 2);
        assert_eq!(misuse::late::late_error(), Some(ENODEV));
        assert!(slot.is_clean());
        drop(module);
    });
}
