// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Hardware counters: `hw_counters` in sysfs and `rdma statistic`.

use kernel::{
    error::from_result,
    ffi::{
        c_int,
        c_ulong, //
    },
    prelude::*, //
};

use super::{
    ops::Ops,
    provider::Provider, //
};
use crate::ffi;

/// Name of a counter.
///
/// # Examples
///
/// ```
/// use kernel::rdma::CounterDesc;
///
/// const COUNTERS: &[CounterDesc] = &[CounterDesc::new(c"tx_bytes"), CounterDesc::new(c"rx_bytes")];
/// assert_eq!(COUNTERS.len(), 2);
/// ```
#[repr(transparent)]
pub(crate) struct CounterDesc(ffi::rdma_stat_desc);

impl CounterDesc {
    /// Describes a counter that is always on.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self(ffi::rdma_stat_desc {
            name: name.to_bytes_with_nul().as_ptr().cast(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}

/// Allocates the core's structure for the values of `counters`; null if there is no memory.
fn alloc(counters: &'static [CounterDesc]) -> *mut ffi::rdma_hw_stats {
    // CAST: Drivers have dozens of counters.
    let count = counters.len() as c_int;
    // CAST: A time in milliseconds that the core defines.
    let lifespan = ffi::RDMA_HW_STATS_DEFAULT_LIFESPAN as c_ulong;
    // SAFETY: `CounterDesc` is a transparent wrapper of `rdma_stat_desc`, and the descriptions are
    // static.
    unsafe { ffi::rdma_alloc_hw_stats_struct(counters.as_ptr().cast(), count, lifespan) }
}

/// Returns the values of the counters.
///
/// # Safety
///
/// `stats` must be valid. For `'s`, nothing else may access it.
unsafe fn values<'s>(stats: *mut ffi::rdma_hw_stats) -> &'s mut [u64] {
    // SAFETY: The caller guarantees that `stats` is valid.
    let count = unsafe { (*stats).num_counters };
    // SAFETY: The caller guarantees that `stats` is valid.
    let first = unsafe { &raw mut (*stats).value };
    // SAFETY: The core has allocated `num_counters` values. The caller guarantees that they are not in use.
    unsafe { core::slice::from_raw_parts_mut(first.cast(), usize::try_from(count).unwrap_or(0)) }
}

/// Adds the callbacks of counters to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    if P::HAS_READ_DEVICE_COUNTERS {
        ops.alloc_hw_device_stats = Some(Ops::<P>::alloc_hw_device_stats);
    }
    if P::HAS_READ_PORT_COUNTERS {
        ops.alloc_hw_port_stats = Some(Ops::<P>::alloc_hw_port_stats);
    }
    if P::HAS_READ_DEVICE_COUNTERS || P::HAS_READ_PORT_COUNTERS {
        ops.get_hw_stats = Some(Ops::<P>::get_hw_stats);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Allocates the counters of a device.
    unsafe extern "C" fn alloc_hw_device_stats(
        _device: *mut ffi::ib_device,
    ) -> *mut ffi::rdma_hw_stats {
        alloc(P::DEVICE_COUNTERS)
    }

    /// Allocates the counters of a port.
    unsafe extern "C" fn alloc_hw_port_stats(
        _device: *mut ffi::ib_device,
        _port: u32,
    ) -> *mut ffi::rdma_hw_stats {
        alloc(P::PORT_COUNTERS)
    }

    /// Reads the counters of a port, or those of the device if `port` is 0. Returns their number.
    ///
    /// # Safety
    ///
    /// The core holds the lock of `stats`, or has not published it yet.
    unsafe extern "C" fn get_hw_stats(
        device: *mut ffi::ib_device,
        stats: *mut ffi::rdma_hw_stats,
        port: u32,
        _index: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, the device is registered, or being registered.
            let device = unsafe { Self::device(device) };
            // SAFETY: By the requirement of this function, nothing else accesses `stats`.
            let values = unsafe { values(stats) };
            if port == 0 {
                P::read_device_counters(device, values)?;
            } else {
                P::read_port_counters(device, port, values)?;
            }
            // CAST: Drivers have dozens of counters.
            Ok(values.len() as c_int)
        })
    }
}
