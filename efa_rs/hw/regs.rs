// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registers of BAR 0.
//!
//! The host only writes to BAR 0. To read a register, it writes a [`MmioRegRead`], and polls a
//! [`ReadlessResponse`] in host memory, whose address it has set, for the request id.

use core::cmp::Ordering;

use super::wire::{
    self,
    bits,
    codes,
    layout, //
};

codes! {
    /// A register; its number is its byte offset in BAR 0. All are 32 bits wide.
    pub enum Register: u16 {
        /// Version of the admin interface, a [`Version`].
        Version = 0x00 => "VERSION",
        /// Version of the controller, a [`ControllerVersion`].
        ControllerVersion = 0x04 => "CONTROLLER_VERSION",
        /// Capabilities and timeouts of the device, a [`Caps`].
        Caps = 0x08 => "CAPS",
        /// Bus address of the admin submission queue, low half.
        AqBaseLo = 0x10 => "AQ_BASE_LO",
        /// Bus address of the admin submission queue, high half.
        AqBaseHi = 0x14 => "AQ_BASE_HI",
        /// Geometry of the admin submission queue, an [`AqCaps`].
        AqCaps = 0x18 => "AQ_CAPS",
        /// Bus address of the admin completion queue, low half.
        AcqBaseLo = 0x20 => "ACQ_BASE_LO",
        /// Bus address of the admin completion queue, high half.
        AcqBaseHi = 0x24 => "ACQ_BASE_HI",
        /// Geometry and vector of the admin completion queue, an [`EventRingCaps`].
        AcqCaps = 0x28 => "ACQ_CAPS",
        /// Doorbell: number of commands ever submitted, modulo 2^16.
        AqProdDb = 0x2c => "AQ_PROD_DB",
        /// Geometry and vector of the asynchronous event queue, an [`EventRingCaps`].
        AenqCaps = 0x34 => "AENQ_CAPS",
        /// Bus address of the asynchronous event queue, low half.
        AenqBaseLo = 0x38 => "AENQ_BASE_LO",
        /// Bus address of the asynchronous event queue, high half.
        AenqBaseHi = 0x3c => "AENQ_BASE_HI",
        /// Doorbell: number of asynchronous events ever consumed, modulo 2^32.
        AenqConsDb = 0x40 => "AENQ_CONS_DB",
        /// Whether admin interrupts are masked, an [`IntrMask`].
        IntrMask = 0x4c => "INTR_MASK",
        /// Starts and ends a reset, a [`DevCtl`].
        DevCtl = 0x54 => "DEV_CTL",
        /// State of the device, a [`DevSts`].
        DevSts = 0x58 => "DEV_STS",
        /// Requests the value of a register, a [`MmioRegRead`].
        MmioRegRead = 0x5c => "MMIO_REG_READ",
        /// Bus address of the [`ReadlessResponse`], low half.
        MmioRespLo = 0x60 => "MMIO_RESP_LO",
        /// Bus address of the [`ReadlessResponse`], high half.
        MmioRespHi = 0x64 => "MMIO_RESP_HI",
        /// Arms an event queue, an [`EqDb`].
        EqDb = 0x68 => "EQ_DB",
    }
}

bits! {
    /// Version of the admin interface that the device implements.
    pub struct Version(u32) {
        /// Minor version. From 0.2 on, completions carry a [checksum](super::checksum); from 0.3 on,
        /// commands have the format of [`Protocol::V2`](super::admin::Protocol::V2).
        7:0 minor => u8,
        /// Major version.
        15:8 major => u8,
    }
}

/// Orders older versions before newer ones.
impl Ord for Version {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        (self.major, self.minor).cmp(&(other.major, other.minor))
    }
}

impl PartialOrd for Version {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

bits! {
    /// Version of the controller.
    pub struct ControllerVersion(u32) {
        /// Sub-minor version.
        7:0 subminor => u8,
        /// Minor version.
        15:8 minor => u8,
        /// Major version.
        23:16 major => u8,
        /// Id of the implementation; not part of the version proper.
        31:24 implementation => u8,
    }
}

bits! {
    /// Capabilities and timeouts.
    pub struct Caps(u32) {
        /// Whether each queue has to be contiguous in memory.
        0:0 contiguous_queue_required => bool,
        /// Timeout of each half of a reset, in units of 100 ms.
        5:1 reset_timeout => u8,
        /// Number of bits of a bus address that the device uses.
        15:8 dma_addr_width => u8,
        /// Timeout of an admin command, in units of 100 ms; 0 if the device states none.
        19:16 admin_cmd_timeout => u8,
    }
}

bits! {
    /// Geometry of the admin submission queue.
    pub struct AqCaps(u32) {
        /// Number of entries, a power of two.
        15:0 depth => u16,
        /// Bytes in one entry.
        31:16 entry_size => u16,
    }
}

bits! {
    /// Geometry and interrupt of a queue that the device writes: ACQ or AENQ.
    pub struct EventRingCaps(u32) {
        /// Number of entries, a power of two.
        15:0 depth => u16,
        /// Bytes in one entry.
        23:16 entry_size => u8,
        /// Index of the MSI-X vector that signals a new entry.
        31:24 msix_vector => u8,
    }
}

bits! {
    /// Mask of the admin completion queue's interrupts.
    pub struct IntrMask(u32) {
        /// Whether the interrupts are masked.
        0:0 masked => bool,
    }
}

bits! {
    /// Control of the device.
    pub struct DevCtl(u32) {
        /// 1 starts a reset; 0, once it is in progress, ends it.
        0:0 dev_reset => bool,
        /// Restarts the admin queue only.
        1:1 aq_restart => bool,
        /// Reason for the reset, a [`ResetReason`].
        31:28 reset_reason => u8 as ResetReason,
    }
}

bits! {
    /// State of the device.
    pub struct DevSts(u32) {
        /// The device can be used and reset.
        0:0 ready => bool,
        /// The admin queue is restarting.
        1:1 aq_restart_in_progress => bool,
        /// The admin queue has restarted.
        2:2 aq_restart_finished => bool,
        /// A reset was started and has not finished.
        3:3 reset_in_progress => bool,
        /// A reset has finished.
        4:4 reset_finished => bool,
        /// The device has failed and needs a reset.
        5:5 fatal_error => bool,
    }
}

bits! {
    /// Request for the value of a register.
    pub struct MmioRegRead(u32) {
        /// Echoed in the response.
        15:0 req_id => u16,
        /// The [`Register`] to read.
        31:16 reg_off => u16 as Register,
    }
}

bits! {
    /// Doorbell of the event queues.
    pub struct EqDb(u32) {
        /// Number of the event queue.
        15:0 eqn => u16 as Id,
        /// Whether the next entry raises an interrupt.
        31:31 arm => bool,
    }
}

codes! {
    /// Reasons for which a driver resets the device.
    pub enum ResetReason: u8 {
        /// The driver starts or stops.
        Normal = 0 => "NORMAL",
        /// No keep-alive event arrived in time.
        KeepAliveTimeout = 1 => "KEEP_ALIVE_TO",
        /// An admin command timed out.
        AdminTimeout = 2 => "ADMIN_TO",
        /// The initialization of the driver failed.
        InitError = 3 => "INIT_ERR",
        /// The driver detected that its own state is invalid.
        DriverInvalidState = 4 => "DRIVER_INVALID_STATE",
        /// The operating system requested the reset.
        OsTrigger = 5 => "OS_TRIGGER",
        /// The system shuts down.
        Shutdown = 6 => "SHUTDOWN",
        /// A user requested the reset.
        UserTrigger = 7 => "USER_TRIGGER",
        /// Any other reason.
        Generic = 8 => "GENERIC",
    }
}

layout! {
    /// Response to a [`MmioRegRead`], which the device writes to host memory.
    pub struct ReadlessResponse[8] {
        /// Id of the request. The device writes it last.
        req_id @ 0: u16,
        /// The [`Register`] that was read.
        reg_off @ 2: u16 as Register,
        /// Value of the register.
        reg_val @ 4: u32 as Hex,
    }
}
