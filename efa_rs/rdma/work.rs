// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests of clients in the kernel.
//!
//! A provider looks at the next work request of a list, and accepts it once nothing can fail any more. It gets a token
//! for it, which it returns with the completion. So each accepted work request has one completion at most, and the
//! client learns exactly which ones were not accepted.

use core::{
    marker::PhantomData,
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
    wc::WcOpcode,
    wr_layout::{
        RemoteMemory,
        SendWrLayout, //
    },
};
use crate::ffi;

/// A work request that was accepted and has not completed.
pub(crate) struct WrToken {
    wr_id: u64,
    opcode: WcOpcode,
}

impl WrToken {
    /// Returns what the work request is.
    pub(super) fn opcode(&self) -> WcOpcode {
        self.opcode
    }

    /// Returns the client's id, for its completion.
    pub(super) fn into_wr_id(self) -> u64 {
        self.wr_id
    }
}

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
pub(crate) enum SendOp<'w, Ah, Mr> {
    /// Sends to a receive buffer of the peer.
    Send(PeerWr<'w, Ah>),
    /// Writes to memory of the peer; with immediate data, which takes a receive buffer.
    RdmaWrite(PeerWr<'w, Ah>, RemoteMemory),
    /// Reads from memory of the peer to the buffers. There is no inline data.
    RdmaRead(PeerWr<'w, Ah>, RemoteMemory),
    /// Registers memory.
    RegMr(MrRegistration<'w, Mr>),
    /// Ends a registration.
    LocalInv {
        /// The key of the region.
        rkey: u32,
    },
}

/// A send work request that is for a queue pair of a peer, where `Ah` says the peer is.
///
/// # Invariants
///
/// `raw` begins a structure of the given layout. It is valid for `'w` with all that it points to.
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

    /// Reads what the structure has at an offset.
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

    /// Returns where the peer is.
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
        // SAFETY: All variants are numbers.
        has_imm.then(|| u32::from_be(unsafe { (&raw const raw.ex).cast::<u32>().read() }))
    }

    /// Returns the data, or for an RDMA read where it is written to.
    #[inline]
    pub(crate) fn data(&self) -> SendData<'w> {
        let raw = self.raw();
        // SAFETY: By the type invariant the buffers are there.
        let sges = unsafe { Sge::list(raw.sg_list, raw.num_sge) };
        if is_inline(raw) {
            // INVARIANT: A client that wants data to be inline gives addresses of the kernel. They are valid for as long as
            // the work request, by the type invariant.
            SendData::Inline(InlineData(sges))
        } else {
            SendData::Sges(sges)
        }
    }

    /// Returns the memory of the peer.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the transport has no RDMA.
    ///
    /// # Safety
    ///
    /// The work request must be an RDMA operation.
    #[inline]
    unsafe fn remote_memory(&self) -> Result<RemoteMemory> {
        let (addr, rkey) = self.layout.remote_memory.ok_or(EINVAL)?;
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

/// The data of a send work request.
pub(crate) enum SendData<'w> {
    /// In memory regions.
    Sges(&'w [Sge]),
    /// In the kernel's memory, and to be copied before the work request is accepted.
    Inline(InlineData<'w>),
}

impl SendData<'_> {
    /// Returns its length in bytes, if that has 32 bits.
    pub(crate) fn length(&self) -> Option<u32> {
        match self {
            Self::Sges(sges) | Self::Inline(InlineData(sges)) => length(sges),
        }
    }
}

/// Returns how many bytes buffers have, if that number has 32 bits.
pub(crate) fn length(sges: &[Sge]) -> Option<u32> {
    sges.iter()
        .try_fold(0u32, |total, sge| total.checked_add(sge.length()))
}

/// Inline data.
///
/// # Invariants
///
/// Addresses and lengths are of memory of the kernel that is valid for `'w`.
pub(crate) struct InlineData<'w>(&'w [Sge]);

impl InlineData<'_> {
    /// Copies the data, and returns how many bytes they are; nothing if they don't fit.
    pub(crate) fn copy_to(&self, buffer: &mut [u8]) -> Option<usize> {
        let mut length = 0;
        for sge in self.0 {
            // CAST: `usize` has 64 bits on every architecture that has EFA.
            let (addr, bytes) = (sge.addr() as *const u8, sge.length() as usize);
            let place = buffer.get_mut(length..)?.get_mut(..bytes)?;
            // SAFETY: By the type invariant the data is valid.
            unsafe { addr.copy_to_nonoverlapping(place.as_mut_ptr(), bytes) };
            length += bytes;
        }
        Some(length)
    }
}

/// A registration of memory.
///
/// # Invariants
///
/// `mr_of` can be called with the region.
pub(crate) struct MrRegistration<'w, Mr> {
    wr: &'w ffi::ib_reg_wr,
    region: &'w ffi::ib_mr,
    mr_of: MrOf<'w, Mr>,
}

impl<'w, Mr> MrRegistration<'w, Mr> {
    /// Returns the region of the registration, which has its pages.
    pub(crate) fn mr(&self) -> &'w Mr {
        // SAFETY: By the type invariant the function can be called with this region.
        unsafe { (self.mr_of)(self.wr.mr) }
    }

    /// Returns the region's local key from then on.
    pub(crate) fn lkey(&self) -> u32 {
        self.region.lkey
    }

    /// Returns the address by which work requests refer to the first byte.
    pub(crate) fn iova(&self) -> u64 {
        self.region.iova
    }

    /// Returns the length in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.region.length
    }

    /// Returns the bytes of a page.
    pub(crate) fn page_size(&self) -> u32 {
        self.region.page_size
    }

    /// Returns what the region may be used for.
    pub(crate) fn access(&self) -> Access {
        Access::from_raw(self.wr.access)
    }
}

/// Finds the provider's data of a memory region.
type MrOf<'w, Mr> = unsafe fn(*mut ffi::ib_mr) -> &'w Mr;

/// A send work request of a transport with address handles `Ah` and memory regions `Mr`.
///
/// # Invariants
///
/// `raw` begins a structure of the given layout, or of a registration. The structure is valid for `'w` with all
/// that it points to. `mr_of` can be called with the regions that the structure names.
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

    /// Returns whether its success is to be reported.
    #[inline]
    pub(crate) fn is_signaled(&self) -> bool {
        self.raw().send_flags & ffi::ib_send_flags_IB_SEND_SIGNALED != 0
    }

    /// Returns what it asks for.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if that is none of [`SendOp`], or there are flags that the operation does not have. Likewise if the
    ///   memory region is missing, or the transport has no RDMA.
    #[inline]
    pub(crate) fn operation(&self) -> Result<SendOp<'w, Ah, Mr>> {
        let raw = self.raw();
        let known = ffi::ib_send_flags_IB_SEND_SIGNALED | ffi::ib_send_flags_IB_SEND_INLINE;
        if raw.send_flags & !known != 0 {
            return Err(EINVAL);
        }
        // INVARIANT: A work request with one of the first opcodes has the layout.
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
            // Where the data is read to is no data of the work request.
            _ if is_inline(raw) => return Err(EINVAL),
            ffi::ib_wr_opcode_IB_WR_RDMA_READ => {
                // SAFETY: This is an RDMA operation.
                let remote = unsafe { wr.remote_memory() }?;
                SendOp::RdmaRead(wr, remote)
            }
            // SAFETY: A work request with this opcode is a registration.
            ffi::ib_wr_opcode_IB_WR_REG_MR => SendOp::RegMr(unsafe { self.registration() }?),
            ffi::ib_wr_opcode_IB_WR_LOCAL_INV => SendOp::LocalInv {
                // SAFETY: All variants are numbers.
                rkey: unsafe { (&raw const raw.ex).cast::<u32>().read() },
            },
            _ => return Err(EINVAL),
        })
    }

    /// Returns what it registers.
    ///
    /// # Safety
    ///
    /// The work request must be a registration.
    unsafe fn registration(&self) -> Result<MrRegistration<'w, Mr>> {
        // SAFETY: The caller guarantees that the work request is in this structure.
        let wr = unsafe { self.raw.cast::<ffi::ib_reg_wr>().as_ref() };
        // SAFETY: The client does not deregister the region before the work request has completed.
        let region = unsafe { wr.mr.as_ref() }.ok_or(EINVAL)?;
        // INVARIANT: By that of this type the function can be called with this region.
        Ok(MrRegistration {
            wr,
            region,
            mr_of: self.mr_of,
        })
    }
}

/// Returns the opcode in the completion of a send work request. Clients read it even if the request has failed: for some
/// it determines the meaning of the id.
#[inline]
fn completed_as(opcode: ffi::ib_wr_opcode) -> Option<WcOpcode> {
    Some(match opcode {
        ffi::ib_wr_opcode_IB_WR_SEND | ffi::ib_wr_opcode_IB_WR_SEND_WITH_IMM => WcOpcode::Send,
        ffi::ib_wr_opcode_IB_WR_RDMA_WRITE | ffi::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => {
            WcOpcode::RdmaWrite
        }
        ffi::ib_wr_opcode_IB_WR_RDMA_READ => WcOpcode::RdmaRead,
        ffi::ib_wr_opcode_IB_WR_REG_MR => WcOpcode::RegMr,
        ffi::ib_wr_opcode_IB_WR_LOCAL_INV => WcOpcode::LocalInv,
        _ => return None,
    })
}

/// Send work requests that a client posts at once, and that were not accepted yet.
pub(crate) struct SendWrs<'w, Ah, Mr> {
    next: *const ffi::ib_send_wr,
    layout: &'static SendWrLayout,
    mr_of: MrOf<'w, Mr>,
    lifetime: PhantomData<(&'w ffi::ib_send_wr, &'w Ah)>,
}

impl<'w, Ah, Mr> SendWrs<'w, Ah, Mr> {
    /// Converts the argument of the core.
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
            next: first,
            layout,
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
        // INVARIANT: By the requirement of `new` it is in such a structure.
        let wr = SendWr {
            raw: NonNull::new(self.next.cast_mut())?,
            layout: self.layout,
            mr_of: self.mr_of,
            lifetime: PhantomData,
        };
        Some(NextSend {
            next: &mut self.next,
            wr,
        })
    }
}

/// The next send work request of a list.
pub(crate) struct NextSend<'l, 'w, Ah, Mr> {
    next: &'l mut *const ffi::ib_send_wr,
    wr: SendWr<'w, Ah, Mr>,
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
        let opcode = completed_as(raw.opcode).ok_or(EINVAL)?;
        *self.next = raw.next;
        Ok(WrToken {
            // SAFETY: All variants are as large, and numbers or pointers.
            wr_id: unsafe { (&raw const raw.__bindgen_anon_1).cast::<u64>().read() },
            opcode,
        })
    }
}

/// Receive work requests that a client posts at once, and that were not accepted yet.
pub(crate) struct RecvWrs<'w> {
    next: *const ffi::ib_recv_wr,
    lifetime: PhantomData<&'w ffi::ib_recv_wr>,
}

impl<'w> RecvWrs<'w> {
    /// Converts the argument of the core.
    ///
    /// # Safety
    ///
    /// The list must be valid for the lifetime that the caller gives the value, and so must be what its
    /// work requests point to.
    pub(super) unsafe fn new(first: *const ffi::ib_recv_wr) -> Self {
        Self {
            next: first,
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
        })
    }
}

/// The next receive work request of a list.
pub(crate) struct NextRecv<'l, 'w> {
    next: &'l mut *const ffi::ib_recv_wr,
    raw: &'w ffi::ib_recv_wr,
}

impl<'w> NextRecv<'_, 'w> {
    /// Returns its buffers.
    #[inline]
    pub(crate) fn sges(&self) -> &'w [Sge] {
        // SAFETY: By the requirement of `RecvWrs::new` the buffers are there.
        unsafe { Sge::list(self.raw.sg_list, self.raw.num_sge) }
    }

    /// Accepts the work request.
    #[inline]
    pub(crate) fn accept(self) -> WrToken {
        *self.next = self.raw.next;
        WrToken {
            // SAFETY: All variants are as large, and numbers or pointers.
            wr_id: unsafe { (&raw const self.raw.__bindgen_anon_1).cast::<u64>().read() },
            opcode: WcOpcode::Recv,
        }
    }
}
