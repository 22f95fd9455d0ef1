// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The data path of clients in the kernel: rings of work requests and completions.
//!
//! The lock of a queue has its [`SendRing`] or [`RecvRing`], and that of a completion queue its [`CompletionRings`]. A post
//! and a poll share the [outstanding](outstanding) work requests, which need no lock. Nothing here allocates after its creation.

mod completion_rings;
pub(crate) mod outstanding;
mod recv_ring;
mod send_ring;

pub(crate) use self::{
    completion_rings::{
        CompletionRings,
        Mark, //
    },
    outstanding::{
        PollSide,
        PostSide,
        WrIndex, //
    },
    recv_ring::{
        Buffer,
        RecvRing, //
    },
    send_ring::{
        SendRing,
        Wqe, //
    },
};
