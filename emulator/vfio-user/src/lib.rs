// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

#![doc = include_str!("../README.md")]
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
