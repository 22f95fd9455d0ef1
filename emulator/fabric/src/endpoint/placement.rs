// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The place of payload, and the result of copying it.

use efa_model::{Arrival, Delivery, DmaError};

use crate::{
    memory::Memory,
    packet::{Header, Packet, Reader},
    quota::Quota,
};

/// Where the payload of a part of a message is to be written.
#[derive(Debug)]
pub(crate) struct Placement<M> {
    pub(crate) memory: M,
    /// The byte that the network makes wrong, and its bit.
    pub(super) flipped: Option<(M, u8)>,
    pub(super) purpose: Purpose,
}

/// Why payload was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unplaced {
    /// The sender waits for copies, so that no other can begin now.
    Busy,
    /// The sender has no such message.
    Gone,
    /// The sender's memory was taken away.
    Lost,
}

/// Whether payload was written, if it was copied.
pub(crate) type Written = Result<Result<(), DmaError>, Unplaced>;

/// A part of a message whose payload was copied, or could not be. The endpoint has to process it.
#[derive(Debug)]
pub(crate) struct Copied<M> {
    pub(crate) packet: Packet,
    pub(crate) header: Header,
    pub(crate) remembered: Quota,
    pub(crate) placement: Placement<M>,
    pub(crate) written: Written,
}

/// What payload is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// It is something for a program.
    Delivery(Arrival, Delivery),
    /// It is a part of what a read reads.
    Response(Reader),
}

impl<M: Memory> Placement<M> {
    /// Does to what was written what the network does.
    pub(crate) fn spoil(&self) {
        spoil(self.flipped.as_ref());
    }
}

/// Makes a bit wrong.
pub(super) fn spoil(flipped: Option<&(impl Memory, u8)>) {
    if let Some((memory, bit)) = flipped {
        let mut byte = [0];
        if memory.read(&mut byte).is_ok() {
            // It was just written.
            let _ = memory.write(&[byte[0] ^ (1 << bit)]);
        }
    }
}
