// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A safe layer over the RDMA core, for kernel clients, which use devices through the verbs.
//!
//! A client implements [`Client`], and keeps a [`Registration`] while it is loaded. For each
//! [`Device`] it creates its data, which lives until the device or the client is removed. On a
//! device it creates a [`Pd`], and the objects of a domain: [`Buffer`], [`AddressHandle`],
//! [`FastRegion`] of a buffer, [`QueuePair`]. Queue pairs need a [`CompletionQueue`].
//!
//! # Lifetimes
//!
//! The lifetime `'a` is always the presence of a device: from the client's add callback until its
//! remove callback drops the device. The objects above borrow the device for `'a`. Each holds
//! references to the objects that it needs. A protection domain therefore outlives its queue pairs,
//! and they may be dropped in any order.
//!
//! The device uses memory long after the post function has returned. A work request in flight
//! therefore holds its buffer, region and address handle; its [`Completion`] returns them. Without
//! a completion, they are held until the queue pair is destroyed, after which the device no longer
//! uses them. As the device may write to a buffer at any time, its content is only copied.
//!
//! # Leaks
//!
//! Safe code may leak objects, by [`core::mem::forget`] or a reference cycle. Leaked objects are
//! destroyed when the device is removed, after the client's data was dropped, and their number is
//! logged. Their completion handlers are no longer called then, and never dropped, as they may
//! refer to destroyed objects. The memory of leaked buffers is lost. If the provider fails to
//! destroy an object, which the core calls a bug, its dependencies are leaked.
//!
//! # Trust
//!
//! The provider is trusted to complete each work request once, and not to call handlers or write
//! memory for destroyed objects. Completions of unposted or completed work requests are dropped.
//!
//! # Examples
//!
//! A client that sends a message on each device that has EFA's reliable datagrams. A complete
//! client is `samples/rdma_exchange`.
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
//!             let cq = CompletionQueue::new(device, 32, 0, Arc::new(NoHandler, GFP_KERNEL)?)?;
//!             let mut qp = QueuePair::new(&pd, &cq, &cq, Transport::EFA_SRD, CAP)?;
//!             qp.bring_up(&ATTR)?;
//!
//!             let ah = AddressHandle::new(&pd, 1, &PEER_GID)?;
//!             let peer = Peer { ah: &ah, qpn: PEER_QPN, qkey: ATTR.qkey };
//!             let buffer = Buffer::new(&pd, 4096)?;
//!             buffer.write(0, b"hello")?;
//!             // The buffer and the address handle may be dropped: the work request holds both.
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
