// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A safe layer over the RDMA core, for kernel clients, which use devices through the verbs.
//!
//! A client implements [`Client`], and keeps a [`Registration`] as long as it is loaded. For each [`Device`] it
//! is asked for its data, which lives until the device or the client is removed. On a device it creates a [`Pd`],
//! and what belongs to one: a [`Buffer`], an [`AddressHandle`], a [`FastRegion`] of a buffer, a [`QueuePair`];
//! and the [`CompletionQueue`] of queue pairs.
//!
//! # Lifetimes
//!
//! The lifetime `'a` is everywhere the presence of a device: from the client's add callback until its remove
//! callback drops the device. All of the above borrows from the device for that long and cannot be kept for longer.
//! An object holds references to the objects that it needs. The protection domain therefore lives at least as
//! long as the queue pair, and they may be dropped in any order.
//!
//! The hardware uses memory long after the function that posted the work request has returned. A work request
//! in flight therefore keeps its buffer, region and address handle; its [`Completion`] returns them. What has
//! not completed is kept until the queue pair is destroyed, after which the device uses none of it. As the
//! device may write to a buffer at any time, there are no references to what is in there, just copies.
//!
//! # Leaks
//!
//! Safe code may leak objects, by [`core::mem::forget`] or a circle of references. What is leaked is destroyed
//! when the device is removed, after the client's data was dropped, and the log states the number of objects. Their
//! completion handlers are not called any more then, and never dropped, as they may know of what was destroyed. The
//! memory of buffers that were leaked is lost. The same happens with an object that the provider fails to destroy,
//! which the core calls a bug: what it needs is leaked.
//!
//! # What is trusted
//!
//! The provider of the device: that it completes each work request once, and calls and writes nothing any more
//! on behalf of what it has destroyed. A completion of what was not posted, or has completed already, is dropped.
//!
//! # Examples
//!
//! A client that sends a message with each device that has EFA's reliable datagrams. The whole of one is
//! `samples/rdma_exchange`.
//!
//! ```ignore
//! struct Greeter;
//!
//! client_slot!(Greeter);
//!
//! impl Client for Greeter {
//!     const NAME: &'static CStr = c"greeter";
//!
//!     type Data<'a> = QueuePair<'a>;
//!
//!     fn add<'a>(device: &'a Device) -> impl PinInit<QueuePair<'a>, Error> + 'a {
//!         pin_init::pin_init_scope(move || {
//!             let pd = Pd::new(device)?;
//!             let cq = CompletionQueue::new(device, 32, 0, Arc::new(Nobody, GFP_KERNEL)?)?;
//!             let mut qp = QueuePair::new(&pd, &cq, &cq, Transport::EFA_SRD, CAP)?;
//!             qp.bring_up(&ATTR)?;
//!
//!             let ah = AddressHandle::new(&pd, 1, &PEER_GID)?;
//!             let peer = Peer { ah: &ah, qpn: PEER_QPN, qkey: ATTR.qkey };
//!             let buffer = Buffer::new(&pd, 4096)?;
//!             buffer.write(0, b"hello")?;
//!             // The buffer and the address handle may go from here on: the work request has them.
//!             qp.post_send(0, peer, Slice::new(&buffer, 0, 5)?, Operation::Send)?;
//!             Ok(Ok::<_, Error>(qp))
//!         })
//!     }
//! }
//! ```
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

mod ah;
mod buffer;
mod cq;
mod device;
mod handler;
mod object;
mod pd;
mod posted;
mod qp;
mod region;
mod registration;
mod transport;

pub(crate) use self::{
    ah::AddressHandle,
    buffer::{
        Buffer,
        Slice, //
    },
    cq::{
        Completion,
        CompletionQueue,
        Received, //
    },
    device::Device,
    handler::CompletionHandler,
    pd::Pd,
    posted::Held,
    qp::{
        BringUpAttr,
        Operation,
        Peer,
        QueuePair, //
    },
    region::FastRegion,
    registration::{
        client_slot,
        Client,
        HasSlot,
        Registration,
        Slot, //
    },
    transport::Transport,
};
pub(crate) use super::wr_layout::RemoteMemory;
