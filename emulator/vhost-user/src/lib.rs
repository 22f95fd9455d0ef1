// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! An emulated Elastic Fabric Adapter as a PCI function that User-Mode Linux attaches over vhost-user.
//!
//! To that kernel, a PCI function is a virtio device with two queues. In one are [messages](message) that access configuration space
//! and BARs, in the other buffers, which interrupts fill. The function itself is [`efa_vfio::Function`], as for monitors of virtual
//! machines; here is only what it takes to speak another protocol to it.
//!
//! The queues are in memory that is mapped: who shares a file and then cuts it short ends this program. So it serves its own user's
//! kernels, not guests that nobody trusts.

#![forbid(unsafe_code)]

mod message;
mod pci;
mod server;
mod table;

pub use server::Server;
