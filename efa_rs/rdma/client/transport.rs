// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Transports of queue pairs that are not connected.

use super::device::Device;
use crate::{
    ffi,
    rdma::SendWrLayout, //
};

/// Transport of queue pairs whose work requests each name a peer.
#[derive(Clone, Copy)]
pub(crate) struct Transport {
    pub(super) qp_type: ffi::ib_qp_type,
    pub(super) layout: SendWrLayout,
    /// Bits of a region's keys that count its registrations.
    pub(super) generation: u32,
    /// Driver that defines the queue pair type, if the core does not.
    driver: Option<ffi::rdma_driver_id>,
}

impl Transport {
    /// Unreliable datagrams.
    pub(crate) const UD: Self = Self {
        qp_type: ffi::ib_qp_type_IB_QPT_UD,
        layout: SendWrLayout::UD,
        generation: 0xff,
        driver: None,
    };

    /// EFA's reliable datagrams, `include/efa_verbs.h`.
    pub(crate) const EFA_SRD: Self = Self {
        qp_type: ffi::ib_qp_type_IB_QPT_RESERVED1,
        layout: SendWrLayout::EFA_SRD,
        generation: ffi::EFA_MR_GEN_MASK,
        driver: Some(ffi::rdma_driver_id_RDMA_DRIVER_EFA),
    };

    /// Returns whether the device's driver may support this transport.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        // SAFETY: The device is registered, so this number does not change.
        let driver = unsafe { (*device.ops()).driver_id };
        self.driver.is_none_or(|own| own == driver)
    }

    /// Returns the key for the next registration after `key`.
    pub(super) fn next_key(&self, key: u32) -> u32 {
        let one = self.generation & self.generation.wrapping_neg();
        key & !self.generation | key.wrapping_add(one) & self.generation
    }
}
