// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests in flight, and the objects that they hold until their completion.

use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};

use super::{
    ah::AddressHandle,
    buffer::Buffer,
    region::FastRegion, //
};
use crate::rdma::WcOpcode;

/// Object that a work request uses, held until the request has completed.
#[derive(Clone)]
pub(crate) enum Held<'a> {
    /// No object.
    Nothing,
    /// A buffer that is read or written.
    Buffer(Arc<Buffer<'a>>),
    /// A region that is registered or invalidated.
    Region(Arc<FastRegion<'a>>),
}

/// A work request that was posted.
pub(super) struct Posted<'a> {
    pub(super) id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) held: Held<'a>,
    /// Address handle of the peer.
    pub(super) ah: Option<Arc<AddressHandle<'a>>>,
}

/// A place in a queue. Each use has its own generation, so that stale numbers are detected.
struct Place<'a> {
    generation: u32,
    posted: Option<Posted<'a>>,
}

/// The places of a queue, and the indices of the free ones.
struct Places<'a> {
    places: KVec<Place<'a>>,
    free: KVec<u32>,
}

/// Send or receive queue of a queue pair.
#[pin_data]
pub(super) struct Queue<'a> {
    #[pin]
    places: SpinLockIrq<Places<'a>>,
}

/// Bits of a work request's number: its queue, then the generation; the low half is the index.
const IS_RECV: u64 = 1 << 63;
const GENERATION_SHIFT: u32 = 32;
const GENERATION_MASK: u32 = 0x7fff_ffff;

impl<'a> Queue<'a> {
    /// Makes a queue for `depth` work requests.
    fn new(depth: u32) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            // CAST: `usize` has 64 bits on every architecture that has RDMA.
            let mut places = KVec::with_capacity(depth as usize, GFP_KERNEL)?;
            let mut free = KVec::with_capacity(depth as usize, GFP_KERNEL)?;
            for index in 0..depth {
                let place = Place {
                    generation: 0,
                    posted: None,
                };
                places.push(place, GFP_KERNEL)?;
                free.push(index, GFP_KERNEL)?;
            }
            let places = Places { places, free };
            Ok(try_pin_init!(Self {
                places <- new_spinlock_irq!(places, "rdma_client_queue"),
            }? Error))
        })
    }

    /// Stores a work request, and returns its number.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if the queue is full.
    pub(super) fn put(&self, posted: Posted<'a>) -> Result<u64> {
        let mut guard = self.places.lock();
        let Places { places, free } = &mut *guard;
        let index = free.pop().ok_or(ENOMEM)?;
        let place = places.get_mut(index as usize).ok_or(EINVAL)?;
        place.generation = place.generation.wrapping_add(1) & GENERATION_MASK;
        place.posted = Some(posted);
        Ok(u64::from(place.generation) << GENERATION_SHIFT | u64::from(index))
    }

    /// Removes and returns the work request with this number, if there is one.
    pub(super) fn take(&self, number: u64) -> Option<Posted<'a>> {
        // CAST: The low half is the index; the generation is masked.
        let index = number as u32;
        let generation = (number >> GENERATION_SHIFT) as u32 & GENERATION_MASK;
        let mut guard = self.places.lock();
        let Places { places, free } = &mut *guard;
        let place = places.get_mut(index as usize)?;
        if place.generation != generation {
            return None;
        }
        let posted = place.posted.take()?;
        // This can't fail: the capacity is that for all indices.
        let _ = free.push_within_capacity(index);
        Some(posted)
    }
}

/// Work requests in flight of a queue pair.
#[pin_data]
pub(super) struct Outstanding<'a> {
    #[pin]
    sends: Queue<'a>,
    #[pin]
    recvs: Queue<'a>,
}

impl<'a> Outstanding<'a> {
    /// Makes queues for these numbers of sends and receives.
    pub(super) fn new(sends: u32, recvs: u32) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                sends <- Queue::new(sends),
                recvs <- Queue::new(recvs),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Stores a work request, and calls `post` with its number. Removes the request if that fails.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if the queue is full.
    /// - Those of `post`.
    pub(super) fn post(&self, posted: Posted<'a>, post: impl FnOnce(u64) -> Result) -> Result {
        let (queue, mark) = match posted.opcode {
            WcOpcode::Recv | WcOpcode::RecvRdmaWithImm => (&self.recvs, IS_RECV),
            _ => (&self.sends, 0),
        };
        let number = queue.put(posted)?;
        post(number | mark).inspect_err(|_| drop(queue.take(number)))
    }

    /// Removes and returns a work request that has completed.
    pub(super) fn take(&self, number: u64) -> Option<Posted<'a>> {
        let queue = if number & IS_RECV != 0 {
            &self.recvs
        } else {
            &self.sends
        };
        queue.take(number & !IS_RECV)
    }
}
