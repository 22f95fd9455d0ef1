// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests of clients in the kernel.
//!
//! A provider inspects the next work request of a list, and accepts it once nothing can fail any
//! more. It receives a token, which the completion consumes. So each accepted work request has at
//! most one completion, and the client learns exactly which ones were not accepted.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::prelude::*;

use super::{
    object,
    wc::WcOpcode,
    wr_data::{
        InlineData,
        MrOf,
        MrRegistration,
        SendData,
        Sge, //
    },
    wr_layout::{
        RemoteMemory,
        SendWrLayout, //
    },
};
use crate::ffi;

/// A work request that was accepted and has not completed.
pub(crate) struct WrToken {
    wr_id: u64,
    /// Number of the queue.
    queue: u64,
    /// A [`WcOpcode`]. All values are allowed here, so that `None` of a token is a flag of its own.
    opcode: ffi::ib_wc_opcode,
    /// Bytes of the buffers of a receive.
    room: u32,
}

impl WrToken {
    /// Returns the number of the queue to which it was posted.
    pub(super) fn queue(&self) -> u64 {
        self.queue
    }

    /// Returns whether `length` bytes fit into the buffers of a receive.
    #[inline]
    pub(super) fn has_room(&self, length: u32) -> bool {
        length <= self.room
    }

    /// Returns the opcode for the completion.
    pub(super) fn opcode(&self) -> ffi::ib_wc_opcode {
        self.opcode
    }

    /// Returns the client's id, for its completion.
    pub(super) fn into_wr_id(self) -> u64 {
        self.wr_id
    }
}

/// Operation of a send work request.
pub(crate) enum SendOp<'w, Ah, Mr> {
    /// Sends to a receive buffer of the peer.
    Send(PeerWr<'w, Ah>),
    /// Writes to memory of the peer. Immediate data, if any, consumes a receive buffer.
    RdmaWrite(PeerWr<'w, Ah>, RemoteMemory),
    /// Reads from memory of the peer to the buffers. Inline data is not possible.
    RdmaRead(PeerWr<'w, Ah>, RemoteMemory),
    /// Registers memory.
    RegMr(MrRegistration<'w, Mr>),
    /// Invalidates a registration.
    LocalInv {
        /// Remote key of the region.
        rkey: u32,
    },
}

/// A send work request for a queue pair of a peer, with an address handle `Ah`.
///
/// # Invariants
///
/// `raw` begins a structure of the given layout. It is valid for `'w`, as are all its pointers. Until
/// an RDMA operation is known to have an address handle, it may be the core's own `ib_rdma_wr`.
pub(crate) struct PeerWr<'w, Ah> {
    raw: NonNull<ffi::ib_send_wr>,
    layout: &'static SendWrLayout,
    lifetime: PhantomData<(&'w ffi::ib_send_wr, &'w Ah)>,
}

impl<'w, Ah> PeerWr<'w, Ah> {
    #[inline]
    fn raw(&self) -> &'w ffi::ib_send_wr {
        // SAFETY: By the type invariant the work request is valid.
        unsafe { self.raw.as_ref() }
    }

    /// Reads the field of the structure at an offset.
    ///
    /// # Safety
    ///
    /// The offset must be one of the layout, and that of a `T`.
    #[inline]
    unsafe fn field<T: Copy>(&self, offset: usize) -> T {
        // SAFETY: The caller guarantees that the offset is within the structure.
        let field = unsafe { self.raw.byte_add(offset) };
        // SAFETY: The caller guarantees that this is a `T`. By the type invariant the structure is valid.
        unsafe { field.cast::<T>().read() }
    }

    /// Returns the address handle of the peer.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is no address handle.
    #[inline]
    pub(crate) fn ah(&self) -> Result<&'w Ah> {
        // SAFETY: The offset is of the layout.
        let ah: *mut ffi::ib_ah = unsafe { self.field(self.layout.ah) };
        if ah.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: The client has created the address handle, and does not destroy it before its work requests have
        // completed.
        Ok(unsafe { object::Object::<ffi::ib_ah, (), Ah>::data(ah) })
    }

    /// Returns the number of the peer's queue pair.
    #[inline]
    pub(crate) fn remote_qpn(&self) -> u32 {
        // SAFETY: The offset is of the layout.
        unsafe { self.field(self.layout.remote_qpn) }
    }

    /// Returns the Q_Key of the peer's queue pair.
    #[inline]
    pub(crate) fn remote_qkey(&self) -> u32 {
        // SAFETY: The offset is of the layout.
        unsafe { self.field(self.layout.remote_qkey) }
    }

    /// Returns the immediate data, if there is any.
    #[inline]
    pub(crate) fn imm_data(&self) -> Option<u32> {
        let raw = self.raw();
        let has_imm = matches!(
            raw.opcode,
            ffi::ib_wr_opcode_IB_WR_SEND_WITH_IMM | ffi::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM
        );
        // SAFETY: All variants of the union are integers.
        has_imm.then(|| u32::from_be(unsafe { (&raw const raw.ex).cast::<u32>().read() }))
    }

    /// Returns the data or, for an RDMA read, the buffers that are written.
    #[inline]
    pub(crate) fn data(&self) -> SendData<'w> {
        let raw = self.raw();
        // SAFETY: By the type invariant the buffers are valid.
        let sges = unsafe { Sge::list(raw.sg_list, raw.num_sge) };
        if is_inline(raw) {
            // INVARIANT: For inline data, a client passes kernel addresses. By the type invariant,
            // they are valid as long as the work request.
            SendData::Inline(InlineData(sges))
        } else {
            SendData::Sges(sges)
        }
    }

    /// Returns the memory of the peer.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the transport has no RDMA, or if there is no address handle.
    ///
    /// # Safety
    ///
    /// The work request must be an RDMA operation.
    #[inline]
    unsafe fn remote_memory(&self) -> Result<RemoteMemory> {
        let (addr, rkey) = self.layout.remote_memory.ok_or(EINVAL)?;
        // The core's own RDMA write ends after its address, which is zero: it has no address handle.
        self.ah()?;
        Ok(RemoteMemory {
            // SAFETY: The offset is of the layout, of which RDMA has this part.
            addr: unsafe { self.field(addr) },
            // SAFETY: The offset is of the layout, of which RDMA has this part.
            rkey: unsafe { self.field(rkey) },
        })
    }
}

#[inline]
fn is_inline(wr: &ffi::ib_send_wr) -> bool {
    wr.send_flags & ffi::ib_send_flags_IB_SEND_INLINE != 0
}

/// A send work request of a transport with address handles `Ah` and memory regions `Mr`.
///
/// # Invariants
///
/// `raw` begins a structure of the given layout, or of a registration, or is an RDMA write of the
/// core: an `ib_rdma_wr` with an address of zero. The structure is valid for `'w`, as are all its
/// pointers. `mr_of` can be called with the regions that the structure names.
pub(crate) struct SendWr<'w, Ah, Mr> {
    raw: NonNull<ffi::ib_send_wr>,
    layout: &'static SendWrLayout,
    mr_of: MrOf<'w, Mr>,
    lifetime: PhantomData<(&'w ffi::ib_send_wr, &'w Ah)>,
}

impl<'w, Ah, Mr> SendWr<'w, Ah, Mr> {
    #[inline]
    fn raw(&self) -> &'w ffi::ib_send_wr {
        // SAFETY: By the type invariant the work request is valid.
        unsafe { self.raw.as_ref() }
    }

    /// Returns whether its success must be reported.
    #[inline]
    pub(crate) fn is_signaled(&self) -> bool {
        self.raw().send_flags & ffi::ib_send_flags_IB_SEND_SIGNALED != 0
    }

    /// Returns the operation.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is none of [`SendOp`], has unsupported flags, lacks its memory region, or
    ///   needs RDMA that the transport lacks.
    #[inline]
    pub(crate) fn operation(&self) -> Result<SendOp<'w, Ah, Mr>> {
        let raw = self.raw();
        // A solicited send is a hint for the peer's events, which come for all completions.
        let known = ffi::ib_send_flags_IB_SEND_SIGNALED
            | ffi::ib_send_flags_IB_SEND_SOLICITED
            | ffi::ib_send_flags_IB_SEND_INLINE;
        if raw.send_flags & !known != 0 {
            return Err(EINVAL);
        }
        // INVARIANT: This is only used for sends and RDMA operations, which have the layout.
        let wr = PeerWr {
            raw: self.raw,
            layout: self.layout,
            lifetime: PhantomData,
        };
        Ok(match raw.opcode {
            ffi::ib_wr_opcode_IB_WR_SEND | ffi::ib_wr_opcode_IB_WR_SEND_WITH_IMM => {
                SendOp::Send(wr)
            }
            ffi::ib_wr_opcode_IB_WR_RDMA_WRITE | ffi::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => {
                // SAFETY: This is an RDMA operation.
                let remote = unsafe { wr.remote_memory() }?;
                SendOp::RdmaWrite(wr, remote)
            }
            // The operations below have no inline data: an RDMA read writes to its buffers.
            _ if is_inline(raw) => return Err(EINVAL),
            ffi::ib_wr_opcode_IB_WR_RDMA_READ => {
                // SAFETY: This is an RDMA operation.
                let remote = unsafe { wr.remote_memory() }?;
                SendOp::RdmaRead(wr, remote)
            }
            // SAFETY: A work request with this opcode is a registration.
            ffi::ib_wr_opcode_IB_WR_REG_MR => SendOp::RegMr(unsafe { self.registration() }?),
            ffi::ib_wr_opcode_IB_WR_LOCAL_INV => SendOp::LocalInv {
                // SAFETY: All variants of the union are integers.
                rkey: unsafe { (&raw const raw.ex).cast::<u32>().read() },
            },
            _ => return Err(EINVAL),
        })
    }

    /// Returns the registration of the work request.
    ///
    /// # Safety
    ///
    /// The work request must be a registration.
    unsafe fn registration(&self) -> Result<MrRegistration<'w, Mr>> {
        // SAFETY: The caller guarantees that the work request is in this structure.
        let wr = unsafe { self.raw.cast::<ffi::ib_reg_wr>().as_ref() };
        let region = NonNull::new(wr.mr).ok_or(EINVAL)?;
        // INVARIANT: By the invariant of this type, the function can be called with this region. The
        // client does not deregister it before the work request has completed.
        Ok(MrRegistration {
            wr,
            region,
            mr_of: self.mr_of,
        })
    }
}

/// Opcodes in the completions of send work requests, by their opcodes. Clients read it even if the
/// request has failed: some interpret the id by it.
static COMPLETED_AS: [Option<WcOpcode>; 33] = {
    let mut opcodes = [None; 33];
    opcodes[ffi::ib_wr_opcode_IB_WR_SEND as usize] = Some(WcOpcode::Send);
    opcodes[ffi::ib_wr_opcode_IB_WR_SEND_WITH_IMM as usize] = Some(WcOpcode::Send);
    opcodes[ffi::ib_wr_opcode_IB_WR_RDMA_WRITE as usize] = Some(WcOpcode::RdmaWrite);
    opcodes[ffi::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM as usize] = Some(WcOpcode::RdmaWrite);
    opcodes[ffi::ib_wr_opcode_IB_WR_RDMA_READ as usize] = Some(WcOpcode::RdmaRead);
    opcodes[ffi::ib_wr_opcode_IB_WR_REG_MR as usize] = Some(WcOpcode::RegMr);
    opcodes[ffi::ib_wr_opcode_IB_WR_LOCAL_INV as usize] = Some(WcOpcode::LocalInv);
    opcodes
};

/// Send work requests of a client's list that were not accepted yet.
pub(crate) struct SendWrs<'w, Ah, Mr> {
    next: *const ffi::ib_send_wr,
    layout: &'static SendWrLayout,
    queue: u64,
    mr_of: MrOf<'w, Mr>,
    lifetime: PhantomData<(&'w ffi::ib_send_wr, &'w Ah)>,
}

impl<'w, Ah, Mr> SendWrs<'w, Ah, Mr> {
    /// Converts the argument of the core. `queue` is the number of the queue.
    ///
    /// # Safety
    ///
    /// The list must be valid for `'w`, as must be the pointers in its work requests. Each work
    /// request must be in a structure of that layout, or of a registration, or an `ib_rdma_wr` with
    /// an address of zero. `mr_of` must be callable with the regions that they name.
    pub(super) unsafe fn new(
        first: *const ffi::ib_send_wr,
        layout: &'static SendWrLayout,
        queue: u64,
        mr_of: MrOf<'w, Mr>,
    ) -> Self {
        Self {
            next: first,
            layout,
            queue,
            mr_of,
            lifetime: PhantomData,
        }
    }

    /// Returns the first work request that was not accepted, or null.
    pub(super) fn as_raw(&self) -> *const ffi::ib_send_wr {
        self.next
    }

    /// Returns the next work request.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<NextSend<'_, 'w, Ah, Mr>> {
        // INVARIANT: By the requirements of `new`, the work request is in such a structure.
        let wr = SendWr {
            raw: NonNull::new(self.next.cast_mut())?,
            layout: self.layout,
            mr_of: self.mr_of,
            lifetime: PhantomData,
        };
        Some(NextSend {
            next: &mut self.next,
            wr,
            queue: self.queue,
        })
    }
}

/// The next send work request of a list.
pub(crate) struct NextSend<'l, 'w, Ah, Mr> {
    next: &'l mut *const ffi::ib_send_wr,
    wr: SendWr<'w, Ah, Mr>,
    queue: u64,
}

impl<'w, Ah, Mr> NextSend<'_, 'w, Ah, Mr> {
    /// Returns the work request.
    #[inline]
    pub(crate) fn wr(&self) -> &SendWr<'w, Ah, Mr> {
        &self.wr
    }

    /// Accepts the work request.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if its operation is none of [`SendOp`].
    #[inline]
    pub(crate) fn accept(self) -> Result<WrToken> {
        let raw = self.wr.raw();
        // CAST: `usize` has more bits on every architecture.
        let known = COMPLETED_AS.get(raw.opcode as usize);
        let opcode = known.copied().flatten().ok_or(EINVAL)?;
        *self.next = raw.next;
        Ok(WrToken {
            // SAFETY: Both variants of the union, an integer and a pointer, have 64 bits.
            wr_id: unsafe { (&raw const raw.__bindgen_anon_1).cast::<u64>().read() },
            queue: self.queue,
            opcode: opcode as ffi::ib_wc_opcode,
            room: 0,
        })
    }
}

/// Receive work requests of a client's list that were not accepted yet.
pub(crate) struct RecvWrs<'w> {
    next: *const ffi::ib_recv_wr,
    queue: u64,
    lifetime: PhantomData<&'w ffi::ib_recv_wr>,
}

impl<'w> RecvWrs<'w> {
    /// Converts the argument of the core. `queue` is the number of the queue.
    ///
    /// # Safety
    ///
    /// The list, and the pointers in its work requests, must be valid for the lifetime of the
    /// returned value.
    pub(super) unsafe fn new(first: *const ffi::ib_recv_wr, queue: u64) -> Self {
        Self {
            next: first,
            queue,
            lifetime: PhantomData,
        }
    }

    /// Returns the first work request that was not accepted, or null.
    pub(super) fn as_raw(&self) -> *const ffi::ib_recv_wr {
        self.next
    }

    /// Returns the next work request.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<NextRecv<'_, 'w>> {
        // SAFETY: By the requirement of `new` the work request is valid.
        let raw = unsafe { self.next.as_ref() }?;
        Some(NextRecv {
            next: &mut self.next,
            raw,
            // SAFETY: By the requirement of `new` the buffers are valid.
            sges: unsafe { Sge::list(raw.sg_list, raw.num_sge) },
            queue: self.queue,
        })
    }
}

/// The next receive work request of a list.
pub(crate) struct NextRecv<'l, 'w> {
    next: &'l mut *const ffi::ib_recv_wr,
    raw: &'w ffi::ib_recv_wr,
    sges: &'w [Sge],
    queue: u64,
}

impl<'w> NextRecv<'_, 'w> {
    /// Returns the buffers of the work request.
    #[inline]
    pub(crate) fn sges(&self) -> &'w [Sge] {
        self.sges
    }

    /// Accepts the work request.
    #[inline]
    pub(crate) fn accept(self) -> WrToken {
        let room = match self.sges {
            [sge] => sge.length(),
            // No device has so much room that this wraps. If it did, fewer messages would fit.
            sges => sges.iter().map(Sge::length).fold(0, u32::wrapping_add),
        };
        *self.next = self.raw.next;
        WrToken {
            // SAFETY: Both variants of the union, an integer and a pointer, have 64 bits.
            wr_id: unsafe { (&raw const self.raw.__bindgen_anon_1).cast::<u64>().read() },
            queue: self.queue,
            opcode: WcOpcode::Recv as ffi::ib_wc_opcode,
            room,
        }
    }
}
