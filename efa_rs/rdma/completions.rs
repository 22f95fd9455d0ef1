// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completions that are returned to clients in the kernel.

use core::{
    mem::MaybeUninit,
    ptr::{
        null_mut,
        NonNull, //
    },
    slice, //
};

use kernel::{
    ffi::c_int,
    prelude::*,
    sync::Arc, //
};

use super::{
    wc::{
        WcOpcode,
        WcStatus, //
    },
    work::WrToken, //
};
use crate::{
    ffi,
    sys::atomic::{
        AtomicPtr,
        Relaxed, //
    },
};

/// A queue pair, as completions name it. It may outlive the queue pair, which then has no more completions.
pub(crate) struct QpRef(AtomicPtr<ffi::ib_qp>);

impl QpRef {
    /// Wraps a queue pair of the core.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(qp: NonNull<ffi::ib_qp>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self(AtomicPtr::new(qp.as_ptr())), GFP_KERNEL)?)
    }

    /// Forgets the queue pair. No completion that is added from now on names it.
    pub(super) fn forget(&self) {
        self.0.store(null_mut(), Relaxed);
    }
}

/// How a work request of a queue pair ended.
pub(crate) struct WorkCompletion<'c> {
    /// Its queue pair.
    pub(crate) qp: &'c QpRef,
    /// The port of the queue pair.
    pub(crate) port_num: u8,
    /// How it ended.
    pub(crate) status: WcStatus,
    /// The status in the device's own terms.
    pub(crate) vendor_err: u32,
}

/// What was received.
pub(crate) struct Received {
    /// Bytes.
    pub(crate) byte_len: u32,
    /// Queue pair of the peer.
    pub(crate) src_qp: u32,
    /// LID of the peer, or the device's substitute for it.
    pub(crate) slid: u16,
    /// Whether the peer has written to memory, instead of sending to the buffer.
    pub(crate) is_rdma_write: bool,
    /// Immediate data, if there is any.
    pub(crate) imm_data: Option<u32>,
}

/// Room for completions that a client asks for.
pub(crate) struct WorkCompletions<'w> {
    room: &'w mut [MaybeUninit<ffi::ib_wc>],
    /// Completions in it.
    count: usize,
}

impl<'w> WorkCompletions<'w> {
    /// Converts the argument of the core.
    ///
    /// # Safety
    ///
    /// `wc` must point to room for `count` completions, valid for the lifetime that the caller gives the
    /// value.
    pub(super) unsafe fn new(wc: *mut ffi::ib_wc, count: c_int) -> Self {
        let room: &mut [_] = match usize::try_from(count) {
            // SAFETY: The caller guarantees that there is room.
            Ok(count) if count > 0 => unsafe { slice::from_raw_parts_mut(wc.cast(), count) },
            _ => &mut [],
        };
        Self { room, count: 0 }
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns room for the next completion, if there is any.
    #[inline]
    pub(crate) fn place(&mut self) -> Option<WcPlace<'_, 'w>> {
        (self.count < self.room.len()).then_some(WcPlace(self))
    }
}

/// Room for a completion.
pub(crate) struct WcPlace<'p, 'w>(&'p mut WorkCompletions<'w>);

impl<'p> WcPlace<'p, '_> {
    /// Completes a work request.
    #[inline]
    pub(crate) fn complete(self, request: WrToken, completion: &WorkCompletion<'_>) {
        let opcode = request.opcode();
        self.fill(request, opcode, completion);
    }

    /// Completes a receive work request that has received something.
    #[inline]
    pub(crate) fn receive(
        self,
        request: WrToken,
        completion: &WorkCompletion<'_>,
        received: &Received,
    ) {
        let opcode = if received.is_rdma_write {
            WcOpcode::RecvRdmaWithImm
        } else {
            WcOpcode::Recv
        };
        let Some(wc) = self.fill(request, opcode, completion) else {
            return;
        };
        wc.byte_len = received.byte_len;
        wc.src_qp = received.src_qp;
        wc.slid = received.slid.into();
        if let Some(imm_data) = received.imm_data {
            // SAFETY: All variants are numbers.
            unsafe { (&raw mut wc.ex).cast::<u32>().write(imm_data.to_be()) };
            // CAST: A flag of a few bits.
            wc.wc_flags = ffi::ib_wc_flags_IB_WC_WITH_IMM as c_int;
        }
    }

    /// Fills the place, unless the queue pair is gone.
    #[inline]
    fn fill(
        self,
        request: WrToken,
        opcode: WcOpcode,
        completion: &WorkCompletion<'_>,
    ) -> Option<&'p mut ffi::ib_wc> {
        let qp = completion.qp.0.load(Relaxed);
        if qp.is_null() {
            return None;
        }
        let WorkCompletions { room, count } = self.0;
        let place = room.get_mut(*count)?;
        *count += 1;
        *place = MaybeUninit::zeroed();
        // SAFETY: All zeroes are a completion.
        let wc = unsafe { place.assume_init_mut() };
        // SAFETY: All variants are as large, and numbers or pointers.
        unsafe {
            (&raw mut wc.__bindgen_anon_1)
                .cast::<u64>()
                .write(request.into_wr_id())
        };
        wc.status = completion.status as ffi::ib_wc_status;
        wc.opcode = opcode as ffi::ib_wc_opcode;
        wc.vendor_err = completion.vendor_err;
        wc.qp = qp;
        wc.port_num = completion.port_num.into();
        Some(wc)
    }
}
