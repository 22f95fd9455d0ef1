// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The data path of clients in the kernel: rings of work requests and completions.
//!
//! The lock of a queue guards its [`SendRing`], [`RecvRing`] or [`CompletionRings`]. Posts and
//! polls share the [outstanding] work requests without a lock. Nothing allocates after creation.

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
        PostState,
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
