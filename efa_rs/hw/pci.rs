// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! PCI ids and BARs of EFA devices.

/// Vendor id of Amazon.com, Inc.
pub const VENDOR: u16 = 0x1d0f;

/// Device ids of the generations of virtual functions, oldest first.
pub const DEVICES: [u16; 5] = [0xefa0, 0xefa1, 0xefa2, 0xefa3, 0xefa4];

/// BAR with the registers of [`regs`](super::regs).
pub const REGISTER_BAR: u8 = 0;

/// BAR with the memory of low-latency send queues.
///
/// The BAR with the doorbells is an attribute of the device:
/// [`DeviceAttr::db_bar`](super::features::DeviceAttr::db_bar).
pub const MEMORY_BAR: u8 = 2;
