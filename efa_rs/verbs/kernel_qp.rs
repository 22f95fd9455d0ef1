// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs that clients in the kernel post to.

use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};

use super::{
    ah::Ah,
    kernel_cq::{
        KernelCq,
        Posted,
        Sides, //
    },
    mr::Mr,
    Efa, //
};
use crate::{
    com::{
        Cause,
        CommandError, //
    },
    hw::{
        admin::mr::RegMrPermissions,
        io::{
            FastMrInvReq,
            FastMrRegFlags,
            FastMrRegReq,
            OpType,
            RemoteMemAddr,
            RxDesc,
            TxBufDesc,
            TxCtrl1,
            TxMetaDesc,
            MAX_WQE_SIZE,
            MIN_WQE_SIZE, //
        }, //
    },
    io::{
        Body,
        Buffer,
        Outstanding,
        Part,
        RecvRing,
        Request,
        SendRing,
        WrIndex, //
    },
    rdma::{
        Access,
        QpCap,
        QpState,
        QpType,
        RecvWr,
        RecvWrs,
        SendWr,
        SendWrs,
        Sge,
        WrOpcode, //
    },
};

/// Sizes of the queues of a queue pair in the kernel.
pub(super) struct Sizes {
    /// Bytes of a send work request.
    pub(super) wqe_size: usize,
    /// Send work requests, a power of two.
    pub(super) send_depth: u32,
    /// Receive work requests, as many as have room, or none.
    pub(super) recv_depth: u32,
    /// Descriptors of receive work requests, a power of two or none.
    pub(super) recv_entries: u32,
    /// Most send work requests for one ring of the doorbell.
    pub(super) max_batch: u32,
}

impl Sizes {
    /// Finds out what is needed for this capacity.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it is more than there can be.
    pub(super) fn new(efa: &Efa<'_>, cap: &QpCap) -> Result<Self> {
        let queues = &efa.attributes().queues;

        let wqe_size = if cap.max_inline_data > queues.inline_buf_size {
            MAX_WQE_SIZE
        } else {
            MIN_WQE_SIZE
        };
        let send_depth = cap
            .max_send_wr
            .max(queues.min_sq_depth.into())
            .max(1)
            .checked_next_power_of_two()
            .ok_or(EINVAL)?;
        let recv_sges = cap.max_recv_sge.max(1);
        let recv_entries = match cap.max_recv_wr {
            0 => 0,
            count => count
                .checked_mul(recv_sges)
                .and_then(u32::checked_next_power_of_two)
                .ok_or(EINVAL)?,
        };
        // The device's limit is one of descriptors.
        if recv_entries > queues.max_rq_depth {
            return Err(EINVAL);
        }

        // A device that has a least depth takes no doorbell for all of a queue at once.
        let mut max_batch = match u32::from(queues.max_tx_batch) {
            0 => u32::from(u16::MAX),
            // CAST: 64 or 128.
            units => units * MIN_WQE_SIZE as u32 / wqe_size as u32,
        };
        if queues.min_sq_depth != 0 {
            max_batch = max_batch.min(send_depth - 1);
        }
        Ok(Self {
            wqe_size,
            send_depth,
            recv_depth: recv_entries / recv_sges,
            recv_entries,
            max_batch,
        })
    }

    /// Returns the bytes of the send queue's ring.
    pub(super) fn send_bytes(&self) -> Result<u32> {
        // CAST: 64 or 128.
        self.send_depth
            .checked_mul(self.wqe_size as u32)
            .ok_or(EINVAL)
    }

    /// Returns the bytes of the receive queue's ring.
    pub(super) fn recv_bytes(&self) -> Result<u32> {
        // CAST: 16.
        self.recv_entries
            .checked_mul(RxDesc::SIZE as u32)
            .ok_or(EINVAL)
    }

    /// Returns what a work request may have.
    pub(super) fn limits(&self, efa: &Efa<'_>, cap: &QpCap) -> Limits {
        let places = (self.wqe_size - TxMetaDesc::SIZE) / TxBufDesc::SIZE;
        let rdma_sges = usize::from(efa.attributes().queues.max_wr_rdma_sges);
        Limits {
            // CAST: `usize` has 64 bits on every architecture that has EFA.
            send_sges: places.min(cap.max_send_sge as usize),
            // The first place has the peer's memory.
            rdma_sges: rdma_sges.min(places - 1),
            inline_data: cap.max_inline_data as usize,
            wqe_size: self.wqe_size,
            recv_sges: cap.max_recv_sge as usize,
        }
    }

    /// Makes room for what is posted to the send queue.
    ///
    /// # Errors
    ///
    /// Those of [`Outstanding::new`].
    pub(super) fn send_requests(&self) -> Result<Outstanding> {
        Outstanding::new(self.send_depth)
    }

    /// Makes room for what is posted to the receive queue, unless that is empty.
    ///
    /// # Errors
    ///
    /// Those of [`Outstanding::new`].
    pub(super) fn recv_requests(&self) -> Result<Option<Outstanding>> {
        match self.recv_depth {
            0 => Ok(None),
            depth => Ok(Some(Outstanding::new(depth)?)),
        }
    }
}

/// What a work request of a queue pair may have.
pub(super) struct Limits {
    /// Buffers of a send.
    pub(super) send_sges: usize,
    /// Buffers of an RDMA read or write.
    pub(super) rdma_sges: usize,
    /// Bytes of inline data.
    pub(super) inline_data: usize,
    /// Bytes of a send work request in the ring.
    pub(super) wqe_size: usize,
    /// Buffers of a receive.
    pub(super) recv_sges: usize,
}

/// A queue pair that is posted to.
#[pin_data]
pub(super) struct KernelQp<'a> {
    #[pin]
    send: SpinLockIrq<SendRing<'a>>,
    #[pin]
    recv: SpinLockIrq<Option<RecvRing<'a>>>,
    posted: Arc<Posted>,
    send_cq: Arc<KernelCq<'a>>,
    recv_cq: Arc<KernelCq<'a>>,
    qp_num: u16,
    qp_type: QpType,
    limits: Limits,
    /// Whether all work requests have a completion, signaled or not. Those of this device always have one.
    signals_all: bool,
}

/// What a queue pair consists of.
pub(super) struct Parts<'a> {
    pub(super) send: SendRing<'a>,
    pub(super) recv: Option<RecvRing<'a>>,
    pub(super) posted: Arc<Posted>,
    pub(super) send_cq: Arc<KernelCq<'a>>,
    pub(super) recv_cq: Arc<KernelCq<'a>>,
    pub(super) qp_num: u16,
    pub(super) qp_type: QpType,
    pub(super) limits: Limits,
    pub(super) signals_all: bool,
}

impl<'a> KernelQp<'a> {
    /// Makes a queue pair of its parts, whose completions come to its completion queues from now on.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(parts: Parts<'a>) -> Result<Arc<Self>> {
        let Parts {
            send,
            recv,
            posted,
            send_cq,
            recv_cq,
            qp_num,
            qp_type,
            limits,
            signals_all,
        } = parts;
        let pair = Arc::pin_init(
            pin_init!(Self {
                send <- new_spinlock_irq!(send, "efa_send_queue"),
                recv <- new_spinlock_irq!(recv, "efa_receive_queue"),
                posted,
                send_cq,
                recv_cq,
                qp_num,
                qp_type,
                limits,
                signals_all,
            }),
            GFP_KERNEL,
        )?;
        pair.attach().inspect_err(|_| pair.detach())?;
        Ok(pair)
    }

    fn attach(&self) -> Result {
        let is_one = Arc::ptr_eq(&self.send_cq, &self.recv_cq);
        let attach = |cq: &KernelCq<'a>, send, recv| {
            cq.attach(self.qp_num, &self.posted, Sides { send, recv })
        };
        attach(&self.send_cq, true, is_one)?;
        if !is_one {
            attach(&self.recv_cq, false, true)?;
        }
        Ok(())
    }

    /// Has no completions come any more. The device has destroyed the queue pair, or was stopped.
    pub(super) fn detach(&self) {
        self.cqs()
            .for_each(|cq| cq.detach(self.qp_num, &self.posted));
    }

    /// Returns the completion queues, each once.
    fn cqs(&self) -> impl Iterator<Item = &Arc<KernelCq<'a>>> {
        let is_one = Arc::ptr_eq(&self.send_cq, &self.recv_cq);
        let recv_cq = (!is_one).then_some(&self.recv_cq);
        [Some(&self.send_cq), recv_cq].into_iter().flatten()
    }

    /// Changes the state from `old` to `new` by a command.
    ///
    /// # Errors
    ///
    /// Those of the command. A client frees what it has posted once that is flushed. So a device that does not enter the
    /// error state is halted, and then this has none.
    pub(super) fn change_state<R>(
        &self,
        old: Option<QpState>,
        new: QpState,
        command: impl FnOnce() -> Result<R, CommandError>,
    ) -> Result {
        if new == QpState::Err {
            self.close();
            match command() {
                Ok(_) => {}
                Err(CommandError::Status(_)) => self.send_cq.halt(Cause::MemoryHeld),
                Err(_) => self.send_cq.halt(Cause::CommandTimeout),
            }
            return Ok(());
        }
        command()?;
        if new == QpState::Reset || old == Some(QpState::Reset) {
            self.reset();
        }
        Ok(())
    }

    /// Closes the queues. What is posted from now on completes as flushed, after all that the device was given.
    pub(super) fn close(&self) {
        let ring = self.send.lock();
        self.posted.send.close();
        drop(ring);
        let ring = self.recv.lock();
        if let Some(recv) = &self.posted.recv {
            recv.close();
        }
        drop(ring);
        self.cqs()
            .for_each(|cq| cq.expect_flush(self.qp_num, &self.posted));
    }

    /// Empties the queues, as the device does in the reset state: forgets all that was posted, and the completions that
    /// were not polled.
    fn reset(&self) {
        let mut send = self.send.lock();
        let mut recv = self.recv.lock();
        self.cqs()
            .for_each(|cq| cq.reset(self.qp_num, &self.posted));
        send.reset();
        if let Some(ring) = &mut *recv {
            ring.reset();
        }
    }

    /// Posts send work requests. If the queue pair is in error or the device was stopped, they complete as flushed.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the queue pair can't send in its state, or not this operation.
    /// - [`ENOMEM`] if the queue is full.
    pub(super) fn post_send(
        &self,
        state: Option<QpState>,
        wrs: &mut SendWrs<'_, Ah, Mr<'a>>,
    ) -> Result {
        let mut ring = self.send.lock();
        let can_send = matches!(state, Some(QpState::Rts | QpState::Sqd));
        if self.is_closed(&self.posted.send, can_send)? {
            let result = wrs.try_for_each(|wr| self.flush_send(&wr));
            drop(ring);
            self.send_cq.wake();
            return result;
        }
        let result = wrs.try_for_each(|wr| {
            let mut body = Body::default();
            let mut meta = self.encode(&wr, &mut body)?;
            let request = Request {
                wr_id: wr.id(),
                op_type: meta.ctrl1.op_type,
            };
            meta.req_id = self.posted.send.add(request).ok_or(ENOMEM)?.as_raw();
            ring.push(meta, &body);
            Ok(())
        });
        ring.ring_doorbell();
        drop(ring);
        self.send_cq.wake_if_halted();
        result
    }

    /// Returns whether the device takes no work requests of a queue any more. Called with the lock of its ring.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if it does not take them yet.
    #[inline]
    fn is_closed(&self, outstanding: &Outstanding, is_ready: bool) -> Result<bool> {
        if outstanding.is_closed() {
            return Ok(true);
        }
        if !is_ready {
            return Err(EINVAL);
        }
        if self.send_cq.is_halted() {
            outstanding.close();
            return Ok(true);
        }
        Ok(false)
    }

    /// Adds a send work request to a closed queue. The core's for a drain is one without a destination.
    #[cold]
    fn flush_send(&self, wr: &SendWr<'_, Ah, Mr<'a>>) -> Result {
        let request = Request {
            wr_id: wr.id(),
            op_type: op_type(wr.opcode().ok_or(EINVAL)?).into(),
        };
        self.posted.send.add(request).map(|_| ()).ok_or(ENOMEM)
    }

    /// Writes a work request as the device wants it, and returns its first descriptor, without an id.
    #[inline]
    fn encode(&self, wr: &SendWr<'_, Ah, Mr<'a>>, body: &mut Body) -> Result<TxMetaDesc> {
        if wr.has_other_flags() || !wr.is_signaled() && !self.signals_all {
            return Err(EINVAL);
        }
        let opcode = wr.opcode().ok_or(EINVAL)?;
        let op_type = op_type(opcode);
        match op_type {
            OpType::FastReg => return self.for_region(op_type, wr, &register(wr)?.encode(), body),
            OpType::FastInv => {
                let lkey = wr.invalidated_key();
                return self.for_region(op_type, wr, &FastMrInvReq { lkey }.encode(), body);
            }
            OpType::Send | OpType::RdmaRead | OpType::RdmaWrite => {}
        }
        let is_rdma = op_type != OpType::Send;
        let destination = wr.destination()?;
        let mut meta = TxMetaDesc {
            ctrl1: TxCtrl1 {
                op_type: op_type.into(),
                has_imm: opcode.has_imm(),
                inline_msg: wr.is_inline(),
                ..TxCtrl1::default()
            },
            // CAST: Numbers of queue pairs have 16 bits; of longer ones there are none.
            dest_qp_num: u16::try_from(destination.qpn).map_err(|_| EINVAL)?,
            ah: destination.ah.number(),
            qkey: destination.qkey,
            immediate_data: if opcode.has_imm() { wr.imm_data() } else { 0 },
            ..TxMetaDesc::default()
        };

        let places = if is_rdma {
            let [first, others @ ..] = body;
            let memory = wr.remote_memory()?;
            let remote = RemoteMemAddr {
                length: total(wr.sges())?,
                rkey: memory.rkey,
                buf_addr: memory.addr,
            };
            *first = remote.encode();
            others
        } else {
            &mut body[..]
        };
        let length = if wr.is_inline() {
            self.write_inline(wr, op_type, places)?
        } else {
            self.write_buffers(wr, is_rdma, places)?
        };
        // CAST: No more than there are places, or bytes of them.
        meta.length = length as u16;
        Ok(meta)
    }

    /// Writes a work request for a memory region, and returns its first descriptor.
    fn for_region(
        &self,
        op_type: OpType,
        wr: &SendWr<'_, Ah, Mr<'a>>,
        request: &[u8; FastMrRegReq::SIZE],
        body: &mut Body,
    ) -> Result<TxMetaDesc> {
        if self.qp_type == QpType::UD || wr.is_inline() {
            return Err(EINVAL);
        }
        for (place, part) in body.iter_mut().zip(request.chunks_exact(TxBufDesc::SIZE)) {
            place.copy_from_slice(part);
        }
        Ok(TxMetaDesc {
            ctrl1: TxCtrl1 {
                op_type: op_type.into(),
                ..TxCtrl1::default()
            },
            ..TxMetaDesc::default()
        })
    }

    /// Writes the inline data of a work request, and returns how many bytes they are.
    fn write_inline(
        &self,
        wr: &SendWr<'_, Ah, Mr<'a>>,
        op_type: OpType,
        places: &mut [Part],
    ) -> Result<usize> {
        match op_type {
            OpType::Send => {}
            // There is room behind the peer's memory only in a large one.
            OpType::RdmaWrite if self.limits.wqe_size == MAX_WQE_SIZE => {}
            _ => return Err(EINVAL),
        }
        let place = places.as_flattened_mut();
        // Behind the peer's memory there is less room than a device may have for a send.
        let length = place.len().min(self.limits.inline_data);
        let place = place.get_mut(..length).ok_or(EINVAL)?;
        wr.copy_inline(place).ok_or(EINVAL)
    }

    /// Writes the buffers of a work request, and returns how many they are.
    fn write_buffers(
        &self,
        wr: &SendWr<'_, Ah, Mr<'a>>,
        is_rdma: bool,
        places: &mut [Part],
    ) -> Result<usize> {
        let most = if is_rdma {
            self.limits.rdma_sges
        } else {
            self.limits.send_sges
        };
        let sges = wr.sges();
        if sges.len() > most {
            return Err(EINVAL);
        }
        for (sge, place) in sges.iter().zip(places) {
            let buffer = TxBufDesc {
                length: sge.length(),
                lkey: sge.lkey(),
                buf_addr: sge.addr(),
            };
            *place = buffer.encode();
        }
        Ok(sges.len())
    }

    /// Posts receive work requests. If the queue pair is in error or the device was stopped, they complete as flushed.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the queue pair can't receive in its state, or not this operation.
    /// - [`ENOMEM`] if the queue is full.
    pub(super) fn post_recv(&self, state: Option<QpState>, wrs: &mut RecvWrs<'_>) -> Result {
        let mut guard = self.recv.lock();
        let (Some(ring), Some(outstanding)) = (&mut *guard, &self.posted.recv) else {
            return Err(ENOMEM);
        };
        let can_receive = !matches!(state, None | Some(QpState::Reset | QpState::Err));
        if self.is_closed(outstanding, can_receive)? {
            let result = wrs.try_for_each(|wr| add_recv(outstanding, &wr).map(|_| ()));
            drop(guard);
            self.recv_cq.wake();
            return result;
        }
        let result = wrs.try_for_each(|wr| self.post_one(ring, outstanding, &wr));
        ring.ring_doorbell();
        drop(guard);
        self.recv_cq.wake_if_halted();
        result
    }

    #[inline]
    fn post_one(
        &self,
        ring: &mut RecvRing<'a>,
        outstanding: &Outstanding,
        wr: &RecvWr<'_>,
    ) -> Result {
        let sges = wr.sges();
        if sges.len() > self.limits.recv_sges {
            return Err(EINVAL);
        }
        let index = add_recv(outstanding, wr)?;
        ring.push(
            index,
            sges.iter().map(|sge| Buffer {
                addr: sge.addr(),
                // A descriptor has 16 bits for it. Longer messages, which no device has, would not fit.
                length: sge.length().try_into().unwrap_or(u16::MAX),
                lkey: sge.lkey(),
            }),
        );
        Ok(())
    }
}

/// Returns the device's operation for an opcode.
#[inline]
fn op_type(opcode: WrOpcode) -> OpType {
    match opcode {
        WrOpcode::Send | WrOpcode::SendWithImm => OpType::Send,
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => OpType::RdmaWrite,
        WrOpcode::RdmaRead => OpType::RdmaRead,
        WrOpcode::RegMr => OpType::FastReg,
        WrOpcode::LocalInv => OpType::FastInv,
    }
}

/// Adds a receive work request to those that are outstanding.
#[inline]
fn add_recv(outstanding: &Outstanding, wr: &RecvWr<'_>) -> Result<WrIndex> {
    let request = Request {
        wr_id: wr.id(),
        op_type: 0,
    };
    outstanding.add(request).ok_or(ENOMEM)
}

/// Returns the registration that a work request asks for.
fn register(wr: &SendWr<'_, Ah, Mr<'_>>) -> Result<FastMrRegReq> {
    let registration = wr.registration()?;
    let access = registration.access;
    if access.required() & !(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE) != 0
    {
        return Err(EINVAL);
    }
    let has = |flag| access.bits() & flag != 0;
    let (pbl_mode, pbl) = registration.mr.fast_pages()?;
    Ok(FastMrRegReq {
        lkey: registration.lkey,
        permissions: RegMrPermissions {
            local_write_enable: has(Access::LOCAL_WRITE),
            remote_write_enable: has(Access::REMOTE_WRITE),
            remote_read_enable: has(Access::REMOTE_READ),
        },
        flags: FastMrRegFlags {
            // CAST: Less than 32.
            phys_page_size_shift: registration.page_size.checked_ilog2().ok_or(EINVAL)? as u8,
            pbl_mode: pbl_mode.into(),
        },
        iova: registration.iova,
        mr_length: registration.length,
        pbl,
    })
}

/// Returns how many bytes the buffers have.
fn total(sges: &[Sge]) -> Result<u32> {
    sges.iter()
        .try_fold(0u32, |total, sge| total.checked_add(sge.length()))
        .ok_or(EINVAL)
}
