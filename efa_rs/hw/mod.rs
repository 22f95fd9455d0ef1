// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The control interface of an EFA device, as data.
//!
//! Registers, admin commands and their completions, events, attributes and statistics cross the
//! boundary between driver and device, in both directions. [`io`] is the data path, which bypasses
//! the driver. The driver encodes commands and decodes completions; an emulated device does the
//! reverse, with these same files. Nothing in here depends on the kernel, on an allocator, on DMA
//! or on an errno.
//!
//! Three macros in [`wire`] describe everything: `layout!` for structures of bytes, `bits!` for bit
//! fields of one word and `codes!` for numbered values. All integers are little endian. Bytes and
//! bits that the interface reserves are written as zero and ignored when read. A value with a closed
//! set of meanings is kept as the integer that the other side sent. It is converted with `TryFrom`
//! where it is used. So decoding can't fail, whatever the other side writes.
//! Outside of the module, the tables are data as well: `fields` has the names, places and kinds.

// The crate root of a kernel module gets `no_std` from Kbuild and may not repeat it here.
#![cfg_attr(not(MODULE), no_std)]
#![forbid(unsafe_code)]
#![allow(
    dead_code,
    unreachable_pub,
    reason = "the driver and the emulated device each use one direction of most items, and these \
              are a module of the one and a crate for the other"
)]

pub mod admin;
pub mod aenq;
pub mod checksum;
pub mod eq;
pub mod features;
#[cfg(not(MODULE))]
pub mod fields;
pub mod host_info;
pub mod io;
pub mod pci;
pub mod regs;
pub mod stats;
pub mod wire;
