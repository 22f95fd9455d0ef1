// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests and completions of clients in the kernel.

use core::{
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::NonNull,
    slice, //
};

use kernel::{
    ffi::c_int,
    prelude::*, //
};

use super::{
    mr_attr::Access,
    object,
    wr_layout::SendWrLayout, //
};
use crate::ffi;

/// A buffer of a work request.
#[repr(transparent)]
pub(crate) struct Sge(ffi::ib_sge);

impl Sge {
    /// Returns the address: of the device's, or for inline data the kernel's.
    pub(crate) fn addr(&self) -> u64 {
        self.0.addr
    }

    /// Returns the length in bytes.
    pub(crate) fn length(&self) -> u32 {
        self.0.length
    }

    /// Returns the local key of the memory region.
    pub(crate) fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// Takes the buffers of a work request.
    ///
    /// # Safety
    ///
    /// `list` must point to `count` buffers that are valid for `'w`, unless there are none.
    unsafe fn list<'w>(list: *const ffi::ib_sge, count: c_int) -> &'w [Self] {
        match usize::try_from(count) {
            Ok(count) if count > 0 => {
                // SAFETY: The caller guarantees that the buffers are there, of which `Sge` has the
                // layout.
                unsafe { slice::from_raw_parts(list.cast(), count) }
            }
            _ => &[],
        }
    }
}

/// What a send work request asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WrOpcode {
    /// Sends to a receive buffer.
    Send,
    /// The same with immediate data.
    SendWithImm,
    /// Writes to memory of the peer.
    RdmaWrite,
    /// The same with immediate data, for a receive buffer.
    RdmaWriteWithImm,
    /// Reads from memory of the peer.
    RdmaRead,
    /// Registers memory, see [`SendWr::registration`].
    RegMr,
    /// Ends a registration, see [`SendWr::invalidated_key`].
    LocalInv,
}

impl WrOpcode {
    /// Returns whether immediate data goes with it.
    pub(crate) fn has_imm(self) -> bool {
        matches!(self, Self::SendWithImm | Self::RdmaWriteWithImm)
    }
}

/// The peer's queue pair that a send work request is for.
pub(crate) struct Destination<'w, Ah> {
    /// Where it is.
    pub(crate) ah: &'w Ah,
    /// Its number.
    pub(crate) qpn: u32,
    /// Its Q_Key.
    pub(crate) qkey: u32,
}

/// Memory of the peer.
pub(crate) struct RemoteMemory {
    /// Address.
    pub(crate) addr: u64,
    /// Remote key of the memory region.
    pub(crate) rkey: u32,
}

/// A registration of memory.
pub(crate) struct MrRegistration<'w, Mr> {
    /// The region that it is for, which was given its pages.
    pub(crate) mr: &'w Mr,
    /// The region's local key from then on.
    pub(crate) lkey: u32,
    /// Address by which work requests refer to the first byte.
    pub(crate) iova: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Bytes of a page.
    pub(crate) page_size: u32,
    /// What the region may be used for.
    pub(crate) access: Access,
}

/// Finds the provider's data of a memory region.
type MrOf<'w, Mr> = unsafe fn(*mut ffi::ib_mr) -> &'w Mr;

/// A send work request of a transport with address handles `Ah` and memory regions `Mr`.
///
/// # Invariants
///
/// `raw` begins a structure of the given layout, or of a registration, which is valid for `'w` with all that it
/// points to; `mr_of` can be called with the regions that it names.
pub(crate) struct SendWr<'w, Ah, Mr> {
    raw: NonNull<ffi::ib_send_wr>,
    layout: &'static SendWrLayout,
    mr_of: MrOf<'w, Mr>,
    lifetime: PhantomData<(&'w ffi::ib_send_wr, &'w Ah)>,
}

impl<'w, Ah, Mr> SendWr<'w, Ah, Mr> {
    fn raw(&self) -> &'w ffi::ib_send_wr {
        // SAFETY: By the type invariant the work request is valid.
        unsafe { self.raw.as_ref() }
    }

    /// Reads what the structure has at an offset.
    ///
    /// # Safety
    ///
    /// The offset must be one of the layout, and that of a `T`.
    unsafe fn field<T: Copy>(&self, offset: usize) -> T {
        // SAFETY: The caller guarantees that the offset is within the structure.
        let field = unsafe { self.raw.byte_add(offset) };
        // SAFETY: The caller guarantees that this is a `T`. By the type invariant the structure is valid.
        unsafe { field.cast::<T>().read() }
    }

    /// Returns by what the client knows it.
    pub(crate) fn id(&self) -> u64 {
        // SAFETY: All variants are as large, and numbers or pointers.
        unsafe { *self.raw().__bindgen_anon_1.wr_id.as_ref() }
    }

    /// Returns what it asks for, if that is one of [`WrOpcode`].
    pub(crate) fn opcode(&self) -> Option<WrOpcode> {
        Some(match self.raw().opcode {
            ffi::ib_wr_opcode_IB_WR_SEND => WrOpcode::Send,
            ffi::ib_wr_opcode_IB_WR_SEND_WITH_IMM => WrOpcode::SendWithImm,
            ffi::ib_wr_opcode_IB_WR_RDMA_WRITE => WrOpcode::RdmaWrite,
            ffi::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => WrOpcode::RdmaWriteWithImm,
            ffi::ib_wr_opcode_IB_WR_RDMA_READ => WrOpcode::RdmaRead,
            ffi::ib_wr_opcode_IB_WR_REG_MR => WrOpcode::RegMr,
            ffi::ib_wr_opcode_IB_WR_LOCAL_INV => WrOpcode::LocalInv,
            _ => return None,
        })
    }

    /// Returns whether its success is to be reported.
    pub(crate) fn is_signaled(&self) -> bool {
        self.has_flag(ffi::ib_send_flags_IB_SEND_SIGNALED)
    }

    /// Returns whether its data is inline: see [`Self::copy_inline`].
    pub(crate) fn is_inline(&self) -> bool {
        self.has_flag(ffi::ib_send_flags_IB_SEND_INLINE)
    }

    /// Returns whether it has flags for which there is no function here.
    pub(crate) fn has_other_flags(&self) -> bool {
        self.raw().send_flags
            & !(ffi::ib_send_flags_IB_SEND_SIGNALED | ffi::ib_send_flags_IB_SEND_INLINE)
            != 0
    }

    fn has_flag(&self, flag: ffi::ib_send_flags) -> bool {
        self.raw().send_flags & flag != 0
    }

    /// Returns its buffers.
    pub(crate) fn sges(&self) -> &'w [Sge] {
        let raw = self.raw();
        // SAFETY: By the type invariant the buffers are there.
        unsafe { Sge::list(raw.sg_list, raw.num_sge) }
    }

    /// Copies the inline data, and returns how many bytes they are; nothing if it [has none](Self::is_inline), or they
    /// don't fit.
    pub(crate) fn copy_inline(&self, data: &mut [u8]) -> Option<usize> {
        if !self.is_inline() {
            return None;
        }
        let mut length = 0;
        for sge in self.sges() {
            // CAST: `usize` has 64 bits on every architecture that has EFA.
            let (addr, bytes) = (sge.addr() as *const u8, sge.length() as usize);
            let place = data.get_mut(length..)?.get_mut(..bytes)?;
            // SAFETY: A client that wants data to be inline gives addresses of the kernel, which are
            // valid until the work request is posted.
            unsafe { addr.copy_to_nonoverlapping(place.as_mut_ptr(), bytes) };
            length += bytes;
        }
        Some(length)
    }

    /// Returns the immediate data.
    pub(crate) fn imm_data(&self) -> u32 {
        // SAFETY: All variants are numbers.
        u32::from_be(unsafe { *self.raw().ex.imm_data.as_ref() })
    }

    /// Returns which queue pair it is for.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is no address handle, or the operation has no peer.
    pub(crate) fn destination(&self) -> Result<Destination<'w, Ah>> {
        // Others are in other structures.
        if matches!(
            self.opcode(),
            None | Some(WrOpcode::RegMr | WrOpcode::LocalInv)
        ) {
            return Err(EINVAL);
        }
        // SAFETY: The offset is of the layout, which such a work request has.
        let ah: *mut ffi::ib_ah = unsafe { self.field(self.layout.ah) };
        if ah.is_null() {
            return Err(EINVAL);
        }
        Ok(Destination {
            // SAFETY: The client has created the address handle, and does not destroy it before its work requests have
            // completed.
            ah: unsafe { object::Object::<ffi::ib_ah, (), Ah>::data(ah) },
            // SAFETY: The offset is of the layout, which such a work request has.
            qpn: unsafe { self.field(self.layout.remote_qpn) },
            // SAFETY: The offset is of the layout, which such a work request has.
            qkey: unsafe { self.field(self.layout.remote_qkey) },
        })
    }

    /// Returns what it registers: of [`WrOpcode::RegMr`].
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it registers nothing.
    pub(crate) fn registration(&self) -> Result<MrRegistration<'w, Mr>> {
        if self.opcode() != Some(WrOpcode::RegMr) {
            return Err(EINVAL);
        }
        // SAFETY: A work request with this opcode is in this structure.
        let wr = unsafe { self.raw.cast::<ffi::ib_reg_wr>().as_ref() };
        // SAFETY: The client does not deregister the region before the work request has completed.
        let mr = unsafe { wr.mr.as_ref() }.ok_or(EINVAL)?;
        Ok(MrRegistration {
            // SAFETY: By the type invariant the function can be called with this region.
            mr: unsafe { (self.mr_of)(wr.mr) },
            lkey: mr.lkey,
            iova: mr.iova,
            length: mr.length,
            page_size: mr.page_size,
            access: Access::from_raw(wr.access),
        })
    }

    /// Returns the key of the region whose registration it ends: of [`WrOpcode::LocalInv`].
    pub(crate) fn invalidated_key(&self) -> u32 {
        // SAFETY: All variants are numbers.
        unsafe { *self.raw().ex.invalidate_rkey.as_ref() }
    }

    /// Returns which memory of the peer it is about: of [`WrOpcode::RdmaRead`] and the writes.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is about none, or the transport has no RDMA.
    pub(crate) fn remote_memory(&self) -> Result<RemoteMemory> {
        use WrOpcode::*;

        match (self.opcode(), self.layout.remote_memory) {
            (Some(RdmaRead | RdmaWrite | RdmaWriteWithImm), Some((addr, rkey))) => {
                Ok(RemoteMemory {
                    // SAFETY: The offset is of the layout, of which RDMA has this part.
                    addr: unsafe { self.field(addr) },
                    // SAFETY: The offset is of the layout, of which RDMA has this part.
                    rkey: unsafe { self.field(rkey) },
                })
            }
            _ => Err(EINVAL),
        }
    }
}

/// Send work requests that a client posts at once.
pub(crate) struct SendWrs<'w, Ah, Mr> {
    current: *const ffi::ib_send_wr,
    next: *const ffi::ib_send_wr,
    layout: &'static SendWrLayout,
    mr_of: MrOf<'w, Mr>,
    lifetime: PhantomData<(&'w ffi::ib_send_wr, &'w Ah)>,
}

impl<'w, Ah, Mr> SendWrs<'w, Ah, Mr> {
    /// Takes what the core passes.
    ///
    /// # Safety
    ///
    /// The list must be valid for `'w`, and each of its work requests in a structure of that layout, or of a
    /// registration; so must be what they point to. `mr_of` must be callable with the regions that they name.
    pub(super) unsafe fn new(
        first: *const ffi::ib_send_wr,
        layout: &'static SendWrLayout,
        mr_of: MrOf<'w, Mr>,
    ) -> Self {
        Self {
            current: first,
            next: first,
            layout,
            mr_of,
            lifetime: PhantomData,
        }
    }

    /// Returns the work request that was taken last, or the first one.
    pub(super) fn current(&self) -> *const ffi::ib_send_wr {
        self.current
    }
}

impl<'w, Ah, Mr> Iterator for SendWrs<'w, Ah, Mr> {
    type Item = SendWr<'w, Ah, Mr>;

    fn next(&mut self) -> Option<Self::Item> {
        let raw = NonNull::new(self.next.cast_mut())?;
        self.current = self.next;
        // SAFETY: By the requirement of `new` the work request is valid.
        self.next = unsafe { raw.as_ref() }.next;

        // INVARIANT: By the requirement of `new` it is in such a structure.
        Some(SendWr {
            raw,
            layout: self.layout,
            mr_of: self.mr_of,
            lifetime: PhantomData,
        })
    }
}

/// A receive work request.
pub(crate) struct RecvWr<'w>(&'w ffi::ib_recv_wr);

impl<'w> RecvWr<'w> {
    /// Returns by what the client knows it.
    pub(crate) fn id(&self) -> u64 {
        // SAFETY: All variants are as large, and numbers or pointers.
        unsafe { *self.0.__bindgen_anon_1.wr_id.as_ref() }
    }

    /// Returns its buffers.
    pub(crate) fn sges(&self) -> &'w [Sge] {
        // SAFETY: By the requirement of `RecvWrs::new` the buffers are there.
        unsafe { Sge::list(self.0.sg_list, self.0.num_sge) }
    }
}

/// Receive work requests that a client posts at once.
pub(crate) struct RecvWrs<'w> {
    current: *const ffi::ib_recv_wr,
    next: *const ffi::ib_recv_wr,
    lifetime: PhantomData<&'w ffi::ib_recv_wr>,
}

impl RecvWrs<'_> {
    /// Takes what the core passes.
    ///
    /// # Safety
    ///
    /// The list must be valid for the lifetime that the caller gives the value, and so must be what its
    /// work requests point to.
    pub(super) unsafe fn new(first: *const ffi::ib_recv_wr) -> Self {
        Self {
            current: first,
            next: first,
            lifetime: PhantomData,
        }
    }

    /// Returns the work request that was taken last, or the first one.
    pub(super) fn current(&self) -> *const ffi::ib_recv_wr {
        self.current
    }
}

impl<'w> Iterator for RecvWrs<'w> {
    type Item = RecvWr<'w>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: By the requirement of `new` the work request is valid.
        let raw = unsafe { self.next.as_ref() }?;
        self.current = self.next;
        self.next = raw.next;
        Some(RecvWr(raw))
    }
}

/// A queue pair, as completions name it.
#[derive(Clone, Copy)]
pub(crate) struct QpRef(NonNull<ffi::ib_qp>);

// SAFETY: It is passed on to clients, and nothing is done with it.
unsafe impl Send for QpRef {}

// SAFETY: A shared reference gives access to nothing.
unsafe impl Sync for QpRef {}

impl QpRef {
    /// Takes what the core passes.
    pub(super) fn new(qp: NonNull<ffi::ib_qp>) -> Self {
        Self(qp)
    }
}

/// How a work request ended.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum WcStatus {
    /// Well.
    Success = ffi::ib_wc_status_IB_WC_SUCCESS,
    /// The data is longer than allowed.
    LocLenErr = ffi::ib_wc_status_IB_WC_LOC_LEN_ERR,
    /// The queue pair could not execute it.
    LocQpOpErr = ffi::ib_wc_status_IB_WC_LOC_QP_OP_ERR,
    /// No memory region lets the queue pair use a buffer.
    LocProtErr = ffi::ib_wc_status_IB_WC_LOC_PROT_ERR,
    /// It was not executed, as the queue pair is in error.
    WrFlushErr = ffi::ib_wc_status_IB_WC_WR_FLUSH_ERR,
    /// What the peer answered makes no sense.
    BadRespErr = ffi::ib_wc_status_IB_WC_BAD_RESP_ERR,
    /// The peer has refused it.
    RemInvReqErr = ffi::ib_wc_status_IB_WC_REM_INV_REQ_ERR,
    /// No memory region of the peer lets the queue pair use its memory.
    RemAccessErr = ffi::ib_wc_status_IB_WC_REM_ACCESS_ERR,
    /// The peer has no receive buffer.
    RnrRetryExcErr = ffi::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
    /// The peer has no such queue pair.
    RemInvRdReqErr = ffi::ib_wc_status_IB_WC_REM_INV_RD_REQ_ERR,
    /// The peer could not do it.
    RemOpErr = ffi::ib_wc_status_IB_WC_REM_OP_ERR,
    /// The peer gave up.
    RemAbortErr = ffi::ib_wc_status_IB_WC_REM_ABORT_ERR,
    /// The peer did not answer.
    RespTimeoutErr = ffi::ib_wc_status_IB_WC_RESP_TIMEOUT_ERR,
    /// Another failure.
    GeneralErr = ffi::ib_wc_status_IB_WC_GENERAL_ERR,
}

/// What a work request was.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum WcOpcode {
    /// A send.
    Send = ffi::ib_wc_opcode_IB_WC_SEND,
    /// An RDMA write.
    RdmaWrite = ffi::ib_wc_opcode_IB_WC_RDMA_WRITE,
    /// An RDMA read.
    RdmaRead = ffi::ib_wc_opcode_IB_WC_RDMA_READ,
    /// A registration of memory.
    RegMr = ffi::ib_wc_opcode_IB_WC_REG_MR,
    /// The end of one.
    LocalInv = ffi::ib_wc_opcode_IB_WC_LOCAL_INV,
    /// A receive of a send.
    Recv = ffi::ib_wc_opcode_IB_WC_RECV,
    /// A receive of an RDMA write with immediate data.
    RecvRdmaWithImm = ffi::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
}

/// The end of a work request.
pub(crate) struct WorkCompletion {
    /// By what the client knows it.
    pub(crate) wr_id: u64,
    /// How it ended.
    pub(crate) status: WcStatus,
    /// What it was.
    pub(crate) opcode: WcOpcode,
    /// The status in the device's own terms.
    pub(crate) vendor_err: u32,
    /// Its queue pair.
    pub(crate) qp: QpRef,
}

/// What was received.
pub(crate) struct Received {
    /// Bytes.
    pub(crate) byte_len: u32,
    /// Queue pair of the peer.
    pub(crate) src_qp: u32,
    /// Where the peer is.
    pub(crate) slid: u32,
    /// Immediate data, if there is any.
    pub(crate) imm_data: Option<u32>,
}

/// Room for completions that a client asks for.
pub(crate) struct WorkCompletions<'w> {
    room: &'w mut [MaybeUninit<ffi::ib_wc>],
    count: usize,
}

impl WorkCompletions<'_> {
    /// Takes what the core passes.
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

    /// Returns whether there is no more room.
    pub(crate) fn is_full(&self) -> bool {
        self.count == self.room.len()
    }

    /// Adds a completion; nothing if there is no room.
    #[inline]
    pub(crate) fn push(&mut self, completion: &WorkCompletion) -> Option<()> {
        self.add(completion).map(|_| ())
    }

    /// Adds the completion of a receive, likewise.
    #[inline]
    pub(crate) fn push_received(
        &mut self,
        completion: &WorkCompletion,
        received: &Received,
    ) -> Option<()> {
        let wc = self.add(completion)?;
        wc.byte_len = received.byte_len;
        wc.src_qp = received.src_qp;
        wc.slid = received.slid;
        if let Some(imm_data) = received.imm_data {
            // SAFETY: All variants are numbers.
            unsafe { *wc.ex.imm_data.as_mut() = imm_data.to_be() };
            // CAST: A flag of a few bits.
            wc.wc_flags = ffi::ib_wc_flags_IB_WC_WITH_IMM as c_int;
        }
        Some(())
    }

    #[inline]
    fn add(&mut self, completion: &WorkCompletion) -> Option<&mut ffi::ib_wc> {
        let place = self.room.get_mut(self.count)?;
        self.count += 1;

        *place = MaybeUninit::zeroed();
        // SAFETY: All zeroes are a completion.
        let wc = unsafe { place.assume_init_mut() };
        // SAFETY: All variants are as large, and numbers or pointers.
        unsafe { *wc.__bindgen_anon_1.wr_id.as_mut() = completion.wr_id };
        wc.status = completion.status as ffi::ib_wc_status;
        wc.opcode = completion.opcode as ffi::ib_wc_opcode;
        wc.vendor_err = completion.vendor_err;
        wc.qp = completion.qp.0.as_ptr();
        wc.port_num = 1;
        Some(wc)
    }
}
