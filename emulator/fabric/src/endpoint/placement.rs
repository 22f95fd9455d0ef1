// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The place of payload, and the result of copying it.

use efa_model::{Arrival, Delivery, DmaError};

use crate::{
    memory::Memory,
    packet::{Header, Packet, Reader},
    quota::Quota,
};

/// Destination of the payload of a part of a message.
#[derive(Debug)]
pub(crate) struct Placement<M> {
    pub(crate) memory: M,
    /// The byte in which the network flips a bit, and the number of that bit.
    pub(super) flipped: Option<(M, u8)>,
    pub(super) purpose: Purpose,
}

/// Reason why payload was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unplaced {
    /// The sender has waited for copies since the payload was located, so its location may be stale.
    Busy,
    /// The sender has no such message.
    Gone,
    /// The sender's memory was revoked.
    Lost,
}

/// Result of writing payload, or the reason why it was not copied.
pub(crate) type Written = Result<Result<(), DmaError>, Unplaced>;

/// A part of a message whose payload was copied, or whose copy failed. The endpoint has to process it.
#[derive(Debug)]
pub(crate) struct Copied<M> {
    pub(crate) packet: Packet,
    pub(crate) header: Header,
    pub(crate) remembered: Quota,
    pub(crate) placement: Placement<M>,
    pub(crate) written: Written,
}

/// Purpose of received payload.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Data of a send or write, for the device to deliver; empty for the request of a read.
    Delivery(Arrival, Delivery),
    /// Part of the response to a read.
    Response(Reader),
}

impl<M: Memory> Placement<M> {
    /// Applies the bit error of the network to written payload, if there is one.
    pub(crate) fn flip_bit(&self) {
        flip_bit(self.flipped.as_ref());
    }
}

/// Flips a bit of a byte.
pub(super) fn flip_bit(flipped: Option<&(impl Memory, u8)>) {
    if let Some((memory, bit)) = flipped {
        let mut byte = [0];
        if memory.read(&mut byte).is_ok() {
            // The byte was just written successfully.
            let _ = memory.write(&[byte[0] ^ (1 << bit)]);
        }
    }
}
