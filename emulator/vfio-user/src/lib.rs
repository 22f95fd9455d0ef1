// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The vfio-user protocol: a device that is a program of its own, as a virtual machine monitor (VMM) sees it.
//!
//! [`serve`] answers what a VMM sends on one connection and does what it asks for with a [`Backend`]. The VMM is not trusted:
//!
//! - a request that can't be fulfilled fails with an errno, and the connection goes on;
//! - what is no message ends its connection, as nobody knows where the next one would begin;
//! - the memory, the descriptors and the time that a connection takes have limits, which are constants here.
//!
//! One `recvmsg` takes what has queued, up to a message of the largest size. Writes that need no reply are handed to the backend
//! together with those that follow them, and replies are sent together as long as no further request is there.
//!
//! [`Client`] is the other side, for tests and attacks.
//!
//! The protocol is QEMU's `docs/interop/vfio-user.rst`. Migration, DMA by messages and descriptors for I/O are left out.

#![forbid(unsafe_code)]

mod backend;
mod channel;
mod client;
mod error;
mod server;
mod version;
mod wire;

pub use backend::{Action, Backend, Device, DmaMap, Irq, IrqData, IrqSet, Region, RegionWrite};
pub use client::{Client, RegionInfo, Reply};
pub use error::Error;
pub use server::{Limits, MAX_BATCH, serve};
pub use wire::{Command, Flags, HEADER, Header, MAX_DATA, MAX_FDS, MAX_MESSAGE};
