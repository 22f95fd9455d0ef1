// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The vfio-user protocol, by which a virtual machine monitor (VMM) uses a device in another process.
//!
//! [`serve`] handles the requests of a VMM on one connection, with the help of a [`Backend`]. The VMM is not trusted:
//!
//! - a request that can't be carried out fails with an errno, and the connection stays open;
//! - an invalid message ends its connection, as the start of the next one is unknown;
//! - the memory, the descriptors and the time that a connection takes are limited, by constants of this crate and [`Limits`].
//!
//! One `recvmsg` takes all queued bytes, up to the largest size of a message. Writes that need no reply are passed to the backend
//! together with those that follow them. Replies are sent together, when no complete request is left in the buffer.
//!
//! [`Client`] is the client side, for tests and attacks.
//!
//! The specification is QEMU's `docs/interop/vfio-user.rst`. Migration, DMA by messages and I/O descriptors are not implemented.

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
