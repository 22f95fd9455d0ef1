// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! An emulated Elastic Fabric Adapter as a PCI function that a virtual machine monitor attaches over vfio-user.
//!
//! The device itself is [`efa_model::Device`]. This crate adds PCI configuration space, memory regions, DMA to the guest's
//! memory, MSI-X interrupts, time and threads. Each function has a thread that runs [`Server::run`], which starts a thread for
//! each monitor that connects. That thread handles the monitor's requests at once. All functions share threads that run
//! [`Runtime::work`], which handles the later work of the devices and of the network between them.

#![forbid(unsafe_code)]

mod bar;
mod config_space;
mod dma;
mod extents;
mod function;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod llq;
mod memory;
mod msix;
mod runtime;
mod server;
mod slot;
mod socket;

pub use bar::Bar;
pub use config_space::MAX_MSIX_VECTORS;
pub use function::Function;
pub use memory::{Allowed, MAX_BYTES, MAX_FILES};
pub use runtime::Runtime;
pub use server::{Server, descriptors};
pub use slot::Observer;
pub use socket::{Socket, accept, attempt, listen};
pub use vfio_user::Limits;
