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
    Send {
        /// The peer's queue pair.
        to: Destination<'w, Ah>,
        /// Immediate data.
        imm: Option<u32>,
        /// What is sent.
        data: SendData<'w>,
    },
    /// Writes to memory of the peer; with immediate data, which takes a receive buffer.
    RdmaWrite {
        /// The peer's queue pair.
        to: Destination<'w, Ah>,
        /// The peer's memory.
        remote: RemoteMemory,
        /// Immediate data.
        imm: Option<u32>,
        /// What is written.
        data: SendData<'w>,
    },
    /// Reads from memory of the peer.
    RdmaRead {
        /// The peer's queue pair.
        to: Destination<'w, Ah>,
        /// The peer's memory.
        remote: RemoteMemory,
        /// Where the data is written to.
        sges: &'w [Sge],
    },
    /// Registers memory.
    RegMr(MrRegistration<'w, Mr>),
    /// Ends a registration.
    LocalInv {
        /// The key of the region.
        rkey: u32,
    },
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
/// `raw` begins a structure of the given layout, or of a registration. The structure is valid for `'w` with all
/// that it points to. `mr_of` can be called with the regions that the structure names.
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

    /// Returns whether its success is to be reported.
    pub(crate) fn is_signaled(&self) -> bool {
        self.raw().send_flags & ffi::ib_send_flags_IB_SEND_SIGNALED != 0
    }

    /// Returns what it asks for.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if that is none of [`SendOp`], or there are flags that the operation does not have. Likewise if the
    ///   address handle or the memory region is missing, or the transport has no RDMA.
    #[inline]
    pub(crate) fn operation(&self) -> Result<SendOp<'w, Ah, Mr>> {
        let raw = self.raw();
        let is_inline = raw.send_flags & ffi::ib_send_flags_IB_SEND_INLINE != 0;
        let known = ffi::ib_send_flags_IB_SEND_SIGNALED | ffi::ib_send_flags_IB_SEND_INLINE;
        if raw.send_flags & !known != 0 {
            return Err(EINVAL);
        }
        let with_imm = matches!(
            raw.opcode,
            ffi::ib_wr_opcode_IB_WR_SEND_WITH_IMM | ffi::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM
        );
        // SAFETY: All variants are numbers.
        let imm = with_imm.then(|| u32::from_be(unsafe { *raw.ex.imm_data.as_ref() }));
        Ok(match raw.opcode {
            ffi::ib_wr_opcode_IB_WR_SEND | ffi::ib_wr_opcode_IB_WR_SEND_WITH_IMM => SendOp::Send {
                // SAFETY: A work request with this opcode has the layout.
                to: unsafe { self.destination() }?,
                imm,
                data: self.data(is_inline),
            },
            ffi::ib_wr_opcode_IB_WR_RDMA_WRITE | ffi::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => {
                SendOp::RdmaWrite {
                    // SAFETY: A work request with this opcode has the layout.
                    to: unsafe { self.destination() }?,
                    // SAFETY: A work request with this opcode has the layout.
                    remote: unsafe { self.remote_memory() }?,
                    imm,
                    data: self.data(is_inline),
                }
            }
            // Where the data is read to is no data of the work request.
            _ if is_inline => return Err(EINVAL),
            ffi::ib_wr_opcode_IB_WR_RDMA_READ => SendOp::RdmaRead {
                // SAFETY: A work request with this opcode has the layout.
                to: unsafe { self.destination() }?,
                // SAFETY: A work request with this opcode has the layout.
                remote: unsafe { self.remote_memory() }?,
                sges: self.sges(),
            },
            // SAFETY: A work request with this opcode is a registration.
            ffi::ib_wr_opcode_IB_WR_REG_MR => SendOp::RegMr(unsafe { self.registration() }?),
            ffi::ib_wr_opcode_IB_WR_LOCAL_INV => SendOp::LocalInv {
                // SAFETY: All variants are numbers.
                rkey: unsafe { *raw.ex.invalidate_rkey.as_ref() },
            },
            _ => return Err(EINVAL),
        })
    }

    fn sges(&self) -> &'w [Sge] {
        let raw = self.raw();
        // SAFETY: By the type invariant the buffers are there.
        unsafe { Sge::list(raw.sg_list, raw.num_sge) }
    }

    fn data(&self, is_inline: bool) -> SendData<'w> {
        if is_inline {
            // INVARIANT: A client that wants data to be inline gives addresses of the kernel. They are valid for as long as
            // the work request, by the type invariant.
            SendData::Inline(InlineData(self.sges()))
        } else {
            SendData::Sges(self.sges())
        }
    }

    /// Returns which queue pair it is for.
    ///
    /// # Safety
    ///
    /// The work request must have the layout.
    unsafe fn destination(&self) -> Result<Destination<'w, Ah>> {
        // SAFETY: The offset is of the layout.
        let ah: *mut ffi::ib_ah = unsafe { self.field(self.layout.ah) };
        if ah.is_null() {
            return Err(EINVAL);
        }
        Ok(Destination {
            // SAFETY: The client has created the address handle, and does not destroy it before its work requests have
            // completed.
            ah: unsafe { object::Object::<ffi::ib_ah, (), Ah>::data(ah) },
            // SAFETY: The offset is of the layout.
            qpn: unsafe { self.field(self.layout.remote_qpn) },
            // SAFETY: The offset is of the layout.
            qkey: unsafe { self.field(self.layout.remote_qkey) },
        })
    }

    /// Returns the memory of the peer that it accesses.
    ///
    /// # Safety
    ///
    /// The work request must have the layout.
    unsafe fn remote_memory(&self) -> Result<RemoteMemory> {
        let (addr, rkey) = self.layout.remote_memory.ok_or(EINVAL)?;
        Ok(RemoteMemory {
            // SAFETY: The offset is of the layout, of which RDMA has this part.
            addr: unsafe { self.field(addr) },
            // SAFETY: The offset is of the layout, of which RDMA has this part.
            rkey: unsafe { self.field(rkey) },
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
}

/// Returns what the completion of a send work request says that it was. Clients read it even if the request has failed:
/// some learn from it what the id means.
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
    pub(crate) fn peek(&self) -> Option<SendWr<'w, Ah, Mr>> {
        // INVARIANT: By the requirement of `new` it is in such a structure.
        NonNull::new(self.next.cast_mut()).map(|raw| SendWr {
            raw,
            layout: self.layout,
            mr_of: self.mr_of,
            lifetime: PhantomData,
        })
    }

    /// Accepts the next work request. Nothing if there is none, or if its operation is none of [`SendOp`].
    #[inline]
    pub(crate) fn accept(&mut self) -> Option<WrToken> {
        // SAFETY: By the requirement of `new` the work request is valid.
        let raw = unsafe { self.next.as_ref() }?;
        let opcode = completed_as(raw.opcode)?;
        self.next = raw.next;
        Some(WrToken {
            // SAFETY: All variants are as large, and numbers or pointers.
            wr_id: unsafe { *raw.__bindgen_anon_1.wr_id.as_ref() },
            opcode,
        })
    }
}

/// A receive work request.
pub(crate) struct RecvWr<'w>(&'w ffi::ib_recv_wr);

impl<'w> RecvWr<'w> {
    /// Returns its buffers.
    pub(crate) fn sges(&self) -> &'w [Sge] {
        // SAFETY: By the requirement of `RecvWrs::new` the buffers are there.
        unsafe { Sge::list(self.0.sg_list, self.0.num_sge) }
    }
}

/// Receive work requests that a client posts at once, and that were not accepted yet.
pub(crate) struct RecvWrs<'w> {
    next: *const ffi::ib_recv_wr,
    lifetime: PhantomData<&'w ffi::ib_recv_wr>,
}

impl<'w> RecvWrs<'w> {
    /// Takes what the core passes.
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
    pub(crate) fn peek(&self) -> Option<RecvWr<'w>> {
        // SAFETY: By the requirement of `new` the work request is valid.
        unsafe { self.next.as_ref() }.map(RecvWr)
    }

    /// Accepts the next work request, if there is any.
    #[inline]
    pub(crate) fn accept(&mut self) -> Option<WrToken> {
        let RecvWr(raw) = self.peek()?;
        self.next = raw.next;
        Some(WrToken {
            // SAFETY: All variants are as large, and numbers or pointers.
            wr_id: unsafe { *raw.__bindgen_anon_1.wr_id.as_ref() },
            opcode: WcOpcode::Recv,
        })
    }
}
