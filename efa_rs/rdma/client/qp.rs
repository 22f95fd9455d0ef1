// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs.

use core::ptr::{
    self,
    null, //
};

use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*,
    rbtree::RBTreeNodeReservation,
    sync::Arc, //
};

use super::{
    ah::AddressHandle,
    buffer::Slice,
    cq::{
        CompletionQueue,
        Member, //
    },
    device::Owned,
    object::{
        Object,
        Raw, //
    },
    pd::Pd,
    posted::{
        Held,
        Outstanding,
        Posted, //
    },
    region::FastRegion,
    transport::Transport,
};
use crate::{
    ffi,
    rdma::{
        wr_layout::RemoteMemory,
        QpCap,
        QpState,
        WcOpcode, //
    }, //
};

/// Destination of a work request: a queue pair of a peer.
#[derive(Clone, Copy)]
pub(crate) struct Peer<'w, 'a> {
    /// Address handle of the peer.
    pub(crate) ah: &'w Arc<AddressHandle<'a>>,
    /// Number of the queue pair.
    pub(crate) qpn: u32,
    /// Q_Key of the queue pair.
    pub(crate) qkey: u32,
}

/// Operation of a send work request on its buffer.
#[derive(Clone, Copy)]
pub(crate) enum Operation<'w> {
    /// Sends the buffer to a receive buffer of the peer.
    Send,
    /// Like `Send`, with immediate data.
    SendWithImm(u32),
    /// Reads memory of the peer into the buffer.
    RdmaRead(&'w RemoteMemory),
    /// Writes the buffer to memory of the peer.
    RdmaWrite(&'w RemoteMemory),
    /// Like `RdmaWrite`, with immediate data, which completes a receive of the peer.
    RdmaWriteWithImm(&'w RemoteMemory, u32),
}

impl Operation<'_> {
    fn raw_opcode(&self) -> ffi::ib_wr_opcode {
        match self {
            Self::Send => ffi::ib_wr_opcode_IB_WR_SEND,
            Self::SendWithImm(_) => ffi::ib_wr_opcode_IB_WR_SEND_WITH_IMM,
            Self::RdmaRead(_) => ffi::ib_wr_opcode_IB_WR_RDMA_READ,
            Self::RdmaWrite(_) => ffi::ib_wr_opcode_IB_WR_RDMA_WRITE,
            Self::RdmaWriteWithImm(..) => ffi::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM,
        }
    }

    fn completed_as(&self) -> WcOpcode {
        match self {
            Self::Send | Self::SendWithImm(_) => WcOpcode::Send,
            Self::RdmaRead(_) => WcOpcode::RdmaRead,
            Self::RdmaWrite(_) | Self::RdmaWriteWithImm(..) => WcOpcode::RdmaWrite,
        }
    }

    fn imm_data(&self) -> Option<u32> {
        match self {
            Self::SendWithImm(data) | Self::RdmaWriteWithImm(_, data) => Some(*data),
            _ => None,
        }
    }

    fn remote_memory(&self) -> Option<&RemoteMemory> {
        match self {
            Self::Send | Self::SendWithImm(_) => None,
            Self::RdmaRead(memory)
            | Self::RdmaWrite(memory)
            | Self::RdmaWriteWithImm(memory, _) => Some(memory),
        }
    }
}

/// Dependencies of a queue pair.
struct Needs<'a> {
    outstanding: Arc<Outstanding<'a>>,
    pd: Arc<Pd<'a>>,
    send_cq: Arc<CompletionQueue<'a>>,
    recv_cq: Arc<CompletionQueue<'a>>,
}

/// Storage for a work request of any transport. RDMA work requests are the largest.
type AnySendWr = [u64; 16];

const _: () = {
    assert!(size_of::<ffi::ib_ud_wr>() <= size_of::<AnySendWr>());
    assert!(size_of::<ffi::ib_srd_rdma_wr>() <= size_of::<AnySendWr>());
};

/// A queue pair that is not connected: each of its send work requests names a peer.
///
/// A posted work request holds the objects that it uses until it has completed, or the queue pair
/// was destroyed by its drop.
pub(crate) struct QueuePair<'a> {
    transport: Transport,
    owned: Owned<'a, ffi::ib_qp, Needs<'a>>,
    // Declared after `owned`: must be dropped after the queue pair was destroyed.
    _members: [Option<Member<'a>>; 2],
}

impl<'a> QueuePair<'a> {
    /// Creates a queue pair, which can't be used before it is [brought up](Self::bring_up).
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the device lacks the transport.
    /// - [`EINVAL`] if a completion queue is of another device, or the queue pair is too large.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the provider.
    pub(crate) fn new(
        pd: &Arc<Pd<'a>>,
        send_cq: &Arc<CompletionQueue<'a>>,
        recv_cq: &Arc<CompletionQueue<'a>>,
        transport: Transport,
        cap: QpCap,
    ) -> Result<Self> {
        let device = pd.device();
        if !transport.is_of(device) {
            return Err(EOPNOTSUPP);
        }
        let is_here = |cq: &CompletionQueue<'a>| ptr::eq(cq.device(), device);
        if !is_here(send_cq) || !is_here(recv_cq) {
            return Err(EINVAL);
        }

        let needs = Needs {
            outstanding: Outstanding::new(cap.max_send_wr, cap.max_recv_wr)?,
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
        };
        let places = (
            RBTreeNodeReservation::new(GFP_KERNEL)?,
            RBTreeNodeReservation::new(GFP_KERNEL)?,
        );
        let create = |needs: &Needs<'a>| {
            let mut attr = ffi::ib_qp_init_attr {
                send_cq: needs.send_cq.as_raw(),
                recv_cq: needs.recv_cq.as_raw(),
                cap: cap.into_raw(),
                // Each work request completes, and so releases the objects that it holds.
                sq_sig_type: ffi::ib_sig_type_IB_SIGNAL_ALL_WR,
                qp_type: transport.qp_type,
                ..Default::default()
            };
            let (pd, name) = (needs.pd.as_raw(), device.owner_name());
            // SAFETY: The domain and the queues outlive the queue pair, and the name is static.
            let raw = unsafe { ffi::ib_create_qp_kernel(pd, &mut attr, name) };
            Raw::created(raw)
        };
        // SAFETY: The queue pair is new, and depends on nothing else.
        let owned = unsafe { Owned::new(device, needs, Object::Qp, create) }?;

        let member = |cq: &Arc<CompletionQueue<'a>>, place| {
            let outstanding = owned.outstanding.clone();
            Member::new(cq.clone(), place, owned.as_ptr(), outstanding)
        };
        let sends = member(send_cq, places.0);
        let recvs = (!Arc::ptr_eq(send_cq, recv_cq)).then(|| member(recv_cq, places.1));
        Ok(Self {
            transport,
            owned,
            _members: [Some(sends), recvs],
        })
    }

    /// Returns the number by which peers address the queue pair.
    pub(crate) fn qp_num(&self) -> u32 {
        // SAFETY: `self` keeps the queue pair alive, and its number does not change.
        unsafe { (*self.owned.as_ptr()).qp_num }
    }

    /// Moves the queue pair to the state in which it can receive and send.
    ///
    /// # Errors
    ///
    /// - Those of the provider, such as for a queue pair that is not in the RESET state.
    pub(crate) fn bring_up(&mut self, attr: &BringUpAttr) -> Result {
        let mut raw = ffi::ib_qp_attr {
            port_num: attr.port,
            qkey: attr.qkey,
            sq_psn: attr.sq_psn,
            ..Default::default()
        };
        let mut mask = ffi::ib_qp_attr_mask_IB_QP_PKEY_INDEX
            | ffi::ib_qp_attr_mask_IB_QP_PORT
            | ffi::ib_qp_attr_mask_IB_QP_QKEY;
        self.modify(&mut raw, QpState::Init, mask)?;
        self.modify(&mut raw, QpState::Rtr, 0)?;

        mask = ffi::ib_qp_attr_mask_IB_QP_SQ_PSN;
        if let Some(retries) = attr.rnr_retry {
            raw.rnr_retry = retries;
            mask |= ffi::ib_qp_attr_mask_IB_QP_RNR_RETRY;
        }
        self.modify(&mut raw, QpState::Rts, mask)
    }

    fn modify(&mut self, attr: &mut ffi::ib_qp_attr, state: QpState, mask: u32) -> Result {
        attr.qp_state = state as ffi::ib_qp_state;
        // CAST: A set of bits.
        let mask = (ffi::ib_qp_attr_mask_IB_QP_STATE | mask) as c_int;
        // SAFETY: `self` keeps the queue pair alive. The attributes are valid during the call.
        to_result(unsafe { ffi::ib_modify_qp(self.owned.as_ptr(), attr, mask) })
    }

    /// Posts a receive, whose completion has this `id`. May be called in any context.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if the queue is full.
    /// - [`EINVAL`] if the buffer belongs to another protection domain.
    /// - Those of the provider.
    pub(crate) fn post_recv(&self, id: u64, slice: Slice<'_, 'a>) -> Result {
        self.expect_own(slice.buffer().pd())?;
        // SAFETY: The device is registered, so this function does not change.
        let post = unsafe { (*self.owned.device().ops()).post_recv };
        let post = post.ok_or(EOPNOTSUPP)?;
        let posted = Posted {
            id,
            opcode: WcOpcode::Recv,
            held: Held::Buffer(slice.buffer().clone()),
            ah: None,
        };
        self.owned.outstanding.post(posted, |number| {
            let (mut sge, mut bad) = (slice.sge(), null());
            let mut wr = ffi::ib_recv_wr {
                sg_list: &mut sge,
                num_sge: 1,
                ..Default::default()
            };
            // SAFETY: Both variants of the union, an integer and a pointer, have 64 bits.
            unsafe { (&raw mut wr.__bindgen_anon_1).cast::<u64>().write(number) };
            // SAFETY: `self` keeps the queue pair alive. The work request is valid during the call.
            to_result(unsafe { post(self.owned.as_ptr(), &wr, &mut bad) })
        })
    }

    /// Posts a send work request, whose completion has this `id`. May be called in any context.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if the queue is full.
    /// - [`EINVAL`] if the buffer or the address handle belongs to another protection domain.
    /// - `EOPNOTSUPP` if the transport has no RDMA.
    /// - Those of the provider.
    pub(crate) fn post_send(
        &self,
        id: u64,
        peer: Peer<'_, 'a>,
        slice: Slice<'_, 'a>,
        operation: Operation<'_>,
    ) -> Result {
        self.expect_own(slice.buffer().pd())?;
        self.expect_own(peer.ah.pd())?;
        let layout = &self.transport.layout;
        let remote = match (operation.remote_memory(), layout.remote_memory) {
            (None, _) => None,
            (Some(memory), Some(offsets)) => Some((memory, offsets)),
            (Some(_), None) => return Err(EOPNOTSUPP),
        };

        let posted = Posted {
            id,
            opcode: operation.completed_as(),
            held: Held::Buffer(slice.buffer().clone()),
            ah: Some(peer.ah.clone()),
        };
        let mut sge = slice.sge();
        let mut room: AnySendWr = [0; 16];
        let wr: *mut ffi::ib_send_wr = room.as_mut_ptr().cast();
        // SAFETY: Any work request fits, and begins with the core's. All zeroes are valid.
        let base = unsafe { &mut *wr };
        base.opcode = operation.raw_opcode();
        base.sg_list = &mut sge;
        base.num_sge = 1;
        if let Some(data) = operation.imm_data() {
            // SAFETY: All variants of the union are integers.
            unsafe { (&raw mut base.ex).cast::<u32>().write(data.to_be()) };
        }
        // SAFETY: The transport's work requests have an address handle there.
        unsafe { set(wr, layout.ah, peer.ah.as_raw()) };
        // SAFETY: The transport's work requests have this number there.
        unsafe { set(wr, layout.remote_qpn, peer.qpn) };
        // SAFETY: The transport's work requests have this key there.
        unsafe { set(wr, layout.remote_qkey, peer.qkey) };
        if let Some((memory, (addr, rkey))) = remote {
            // SAFETY: The transport's work requests for RDMA have this address there.
            unsafe { set(wr, addr, memory.addr) };
            // SAFETY: The transport's work requests for RDMA have this key there.
            unsafe { set(wr, rkey, memory.rkey) };
        }
        // SAFETY: The work request is in the transport's structure. `posted` holds its objects.
        unsafe { self.post(posted, wr) }
    }

    /// Posts a registration of part of a region's buffer, under a new key. May be called in any context.
    ///
    /// Peers may access it from the completion of this until that of [`Self::post_local_inv`].
    /// `access` is a set of flags of [`Access`](crate::rdma::Access).
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if the queue is full.
    /// - [`EINVAL`] if the region is of another protection domain, or the part of another buffer.
    /// - Those of the provider.
    pub(crate) fn post_reg_mr(
        &self,
        id: u64,
        region: &Arc<FastRegion<'a>>,
        part: Slice<'_, 'a>,
        access: u32,
    ) -> Result<RemoteMemory> {
        self.expect_own(region.pd())?;
        let posted = Posted {
            id,
            opcode: WcOpcode::RegMr,
            held: Held::Region(region.clone()),
            ah: None,
        };
        region.register(part, access, &self.transport, |wr| {
            // SAFETY: The work request is a registration, whose region `posted` holds.
            unsafe { self.post(posted, &raw mut wr.wr) }
        })
    }

    /// Posts the invalidation of a region's registration. May be called in any context.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if the queue is full.
    /// - [`EINVAL`] if the region belongs to another protection domain.
    /// - Those of the provider.
    pub(crate) fn post_local_inv(&self, id: u64, region: &Arc<FastRegion<'a>>) -> Result {
        self.expect_own(region.pd())?;
        let posted = Posted {
            id,
            opcode: WcOpcode::LocalInv,
            held: Held::Region(region.clone()),
            ah: None,
        };
        region.invalidate(|wr| {
            // SAFETY: The work request is an invalidation, whose region `posted` holds.
            unsafe { self.post(posted, wr) }
        })
    }

    /// Posts a send work request.
    ///
    /// # Safety
    ///
    /// `wr` must be in the structure of its opcode and transport. `posted` must hold all objects to
    /// which `wr` refers, until it has completed. The scatter-gather list must be valid during the
    /// call only.
    unsafe fn post(&self, posted: Posted<'a>, wr: *mut ffi::ib_send_wr) -> Result {
        // SAFETY: The device is registered, so this function does not change.
        let post = unsafe { (*self.owned.device().ops()).post_send };
        let post = post.ok_or(EOPNOTSUPP)?;
        self.owned.outstanding.post(posted, |number| {
            let mut bad = null();
            // SAFETY: The caller guarantees that the work request is valid.
            let id = unsafe { &raw mut (*wr).__bindgen_anon_1 };
            // SAFETY: Both variants of the union, an integer and a pointer, have 64 bits.
            unsafe { id.cast::<u64>().write(number) };
            // SAFETY: `self` keeps the queue pair alive. The caller guarantees that `wr` is valid.
            to_result(unsafe { post(self.owned.as_ptr(), wr, &mut bad) })
        })
    }

    /// Fails unless a protection domain is that of the queue pair.
    fn expect_own(&self, pd: &Arc<Pd<'a>>) -> Result {
        if Arc::ptr_eq(pd, &self.owned.pd) {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }
}

/// Writes a field of a work request at an offset in bytes.
///
/// # Safety
///
/// The work request must have a `T` at this offset, within its storage.
unsafe fn set<T>(wr: *mut ffi::ib_send_wr, offset: usize, value: T) {
    // SAFETY: The caller guarantees that the offset is within the storage.
    let field = unsafe { wr.byte_add(offset) };
    // SAFETY: The caller guarantees that this is a `T`.
    unsafe { field.cast::<T>().write(value) };
}

/// Attributes for [bringing up](QueuePair::bring_up) a queue pair.
pub(crate) struct BringUpAttr {
    /// Port, counted from 1.
    pub(crate) port: u32,
    /// Q_Key that work requests of peers must have.
    pub(crate) qkey: u32,
    /// First packet sequence number of the send queue.
    pub(crate) sq_psn: u32,
    /// Number of retries if the receiver is not ready; 7 is unlimited. `None` leaves it unset.
    pub(crate) rnr_retry: Option<u8>,
}
