// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! C functions that drivers call, and their types.
//!
//! Each function behaves as the kernel documents it, on the machine of this thread, as far as a
//! driver can observe. Its documentation states what is left out.

#![allow(
    clippy::missing_safety_doc,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "the names and contracts are those of the headers of C"
)]

mod devices;
mod irq;
mod memory;
mod pci;
mod printk;
mod sysfs;
mod types;
mod wait;
mod work;

pub use self::{
    devices::*, irq::*, memory::*, pci::*, printk::*, sysfs::*, types::*, wait::*, work::*,
};

use crate::ffi::c_int;

pub const IORESOURCE_MEM: u32 = 0x200;
pub const PCI_COMMAND: u32 = 4;
pub const PCI_COMMAND_MEMORY: u32 = 2;
pub const PCI_COMMAND_MASTER: u32 = 4;
pub const PCI_COMMAND_INTX_DISABLE: u32 = 0x400;

const ENODEV: c_int = 19;
const ENOENT: c_int = 2;
const ENOMEM: c_int = 12;
const EBUSY: c_int = 16;
const ENOTTY: c_int = 25;
const ETIME: c_int = 62;
