// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completions that are returned to clients in the kernel.

use core::{
    mem::MaybeUninit,
    ptr::null_mut,
    slice, //
};

use kernel::{
    ffi::c_int,
    prelude::*,
    sync::{
        atomic::{
            self,
            Atomic, //
        },
        Arc, //
    }, //
};

use super::{
    wc::{
        WcOpcode,
        WcStatus, //
    },
    work::WrToken,
    wr_layout::SendWrLayout, //
};
use crate::{
    ffi,
    sys::atomic::{
        AtomicPtr,
        Relaxed, //
    },
};

/// Reference of completions to a queue pair, which it may outlive.
///
/// A poll that starts after the destruction of the queue pair returns none of its completions. One that
/// runs meanwhile may, as if it had ended before. So a client must not follow their pointer then.
pub(crate) struct QpRef {
    qp: AtomicPtr<ffi::ib_qp>,
    /// Number of its send queue, which no other queue gets. That of its receive queue is the next.
    first_queue: u64,
    /// Addresses of the completion queues of both. They exist as long as the queue pair does.
    cqs: [usize; 2],
    /// Structure of its send work requests.
    pub(super) layout: Option<&'static SendWrLayout>,
}

/// Number of the next queue.
static NEXT_QUEUE: Atomic<u64> = Atomic::new(0);

impl QpRef {
    /// Wraps a queue pair of the core.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        qp: *mut ffi::ib_qp,
        cqs: [*mut ffi::ib_cq; 2],
        layout: Option<&'static SendWrLayout>,
    ) -> Result<Arc<Self>> {
        let this = Self {
            qp: AtomicPtr::new(qp),
            first_queue: NEXT_QUEUE.fetch_add(2, atomic::Relaxed),
            cqs: cqs.map(|cq| cq.addr()),
            layout,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Returns the numbers of the send queue and of the receive queue.
    #[inline]
    pub(super) fn queues(&self) -> [u64; 2] {
        [self.first_queue, self.first_queue.wrapping_add(1)]
    }

    /// Clears the reference. No completion of the queue pair is added from now on.
    pub(super) fn forget(&self) {
        self.qp.store(null_mut(), Relaxed);
    }
}

/// Result of a work request of a queue pair.
pub(crate) struct WorkCompletion<'c> {
    /// Queue pair of the work request.
    pub(crate) qp: &'c QpRef,
    /// Port of the queue pair.
    pub(crate) port_num: u8,
    /// Status of the work request.
    pub(crate) status: WcStatus,
    /// Device-specific error code.
    pub(crate) vendor_err: u32,
}

/// Details of a received message.
pub(crate) struct Received {
    /// Length in bytes.
    pub(crate) byte_len: u32,
    /// Queue pair of the peer.
    pub(crate) src_qp: u32,
    /// LID of the peer, or the device's substitute for it.
    pub(crate) slid: u16,
    /// Whether the peer has written to memory by RDMA, instead of sending to the buffer.
    pub(crate) is_rdma_write: bool,
    /// Immediate data, if there is any.
    pub(crate) imm_data: Option<u32>,
}

/// Room for the completions that a client polls.
pub(crate) struct WorkCompletions<'w> {
    /// Address of the completion queue.
    cq: usize,
    room: &'w mut [MaybeUninit<ffi::ib_wc>],
    /// Number of completions in `room`.
    count: usize,
}

impl<'w> WorkCompletions<'w> {
    /// Converts the argument of the core.
    ///
    /// # Safety
    ///
    /// `wc` must point to room for `count` completions, valid for the lifetime of the returned
    /// value.
    #[inline]
    pub(super) unsafe fn new(cq: *mut ffi::ib_cq, wc: *mut ffi::ib_wc, count: c_int) -> Self {
        let room: &mut [_] = match usize::try_from(count) {
            // SAFETY: The caller guarantees that there is room.
            Ok(count) if count > 0 => unsafe { slice::from_raw_parts_mut(wc.cast(), count) },
            _ => &mut [],
        };
        Self {
            cq: cq.addr(),
            room,
            count: 0,
        }
    }

    /// Returns the number of completions.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns room for the next completion, if there is any.
    #[inline]
    pub(crate) fn place(&mut self) -> Option<WcPlace<'_, 'w>> {
        // INVARIANT: There is room for one more.
        (self.count < self.room.len()).then_some(WcPlace(self))
    }
}

/// Room for a completion.
///
/// # Invariants
///
/// There are fewer completions than places.
pub(crate) struct WcPlace<'p, 'w>(&'p mut WorkCompletions<'w>);

impl<'p> WcPlace<'p, '_> {
    /// Completes a work request.
    #[inline]
    pub(crate) fn complete(self, request: WrToken, completion: &WorkCompletion<'_>) {
        let opcode = request.opcode();
        self.fill(request, opcode, completion);
    }

    /// Completes a receive work request that has received a message. Clients rely on the length, so
    /// it fails if the message exceeds the buffers. An RDMA write does not use them.
    #[inline]
    pub(crate) fn receive(
        self,
        request: WrToken,
        completion: &WorkCompletion<'_>,
        received: &Received,
    ) {
        let opcode = if received.is_rdma_write {
            WcOpcode::RecvRdmaWithImm as ffi::ib_wc_opcode
        } else {
            WcOpcode::Recv as ffi::ib_wc_opcode
        };
        let fits = received.is_rdma_write || request.has_room(received.byte_len);
        let Some(wc) = self.fill(request, opcode, completion) else {
            return;
        };
        if !fits && matches!(completion.status, WcStatus::Success) {
            wc.status = WcStatus::LocLenErr as ffi::ib_wc_status;
            return;
        }
        wc.byte_len = received.byte_len;
        wc.src_qp = received.src_qp;
        wc.slid = received.slid.into();
        if let Some(imm_data) = received.imm_data {
            // SAFETY: All variants of the union are integers.
            unsafe { (&raw mut wc.ex).cast::<u32>().write(imm_data.to_be()) };
            // CAST: The flag fits in a `c_int`.
            wc.wc_flags = ffi::ib_wc_flags_IB_WC_WITH_IMM as c_int;
        }
    }

    /// Fills the place, unless the queue pair was destroyed, or the work request is of another queue.
    #[inline]
    fn fill(
        self,
        request: WrToken,
        opcode: ffi::ib_wc_opcode,
        completion: &WorkCompletion<'_>,
    ) -> Option<&'p mut ffi::ib_wc> {
        let QpRef {
            qp,
            first_queue,
            cqs,
            ..
        } = completion.qp;
        let qp = qp.load(Relaxed);
        let WorkCompletions {
            cq: own,
            room,
            count,
        } = self.0;
        // CAST: `usize` has 64 bits on every architecture that has EFA.
        let cq = cqs.get(request.queue().wrapping_sub(*first_queue) as usize);
        if qp.is_null() || cq != Some(own) {
            return None;
        }
        // SAFETY: By the type invariant, this is the index of a place.
        let place = unsafe { room.get_unchecked_mut(*count) };
        // It is at most the number of places.
        *count = count.wrapping_add(1);
        let wc = place.write(ffi::ib_wc::default());
        // SAFETY: Both variants of the union, an integer and a pointer, have 64 bits.
        unsafe {
            (&raw mut wc.__bindgen_anon_1)
                .cast::<u64>()
                .write(request.into_wr_id())
        };
        wc.status = completion.status as ffi::ib_wc_status;
        wc.opcode = opcode;
        wc.vendor_err = completion.vendor_err;
        wc.qp = qp;
        wc.port_num = completion.port_num.into();
        Some(wc)
    }
}
