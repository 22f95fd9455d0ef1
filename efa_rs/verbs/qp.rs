// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    abi,
    bars::offset_in_page,
    qp_state::transition_is_ok,
    Efa,
    Verbs, //
};
use crate::{
    com::{
        CommandError,
        Lent,
        Loan, //
    },
    hw::admin::{
        qp::{
            self,
            CreateQp,
            CreateQpFlags,
            DestroyQp,
            ModifyQp,
            ModifyQpMask,
            QueryQp, //
        },
        NoData, //
    },
    rdma::{
        self,
        Context,
        Details,
        Mapping,
        QpAttr,
        QpAttrMask,
        QpCap,
        QpInitAttr,
        QpState,
        QpType,
        QueriedQp,
        Udata, //
    },
    sys::{
        atomic::{
            AtomicU8,
            Relaxed, //
        },
        dma::UserBuffer, //
    },
};

#[cfg(kverbs)]
use {
    super::{
        ah::Ah,
        attached::Sides,
        cq::Cq,
        kernel_qp::{
            Fixed,
            KernelQp,
            RecvQueue,
            SendQueue, //
        },
        kernel_qp_sizes::Sizes,
        mr::Mr, //
    },
    crate::{
        hw::io::RxDesc,
        io::{
            outstanding,
            RecvRing,
            SendRing, //
        },
        rdma::{
            QpRef,
            RecvWrs,
            SendWrLayout,
            SendWrs, //
        },
        sys::dma::Entries, //
    },
};

/// Attributes that can be modified.
const MODIFIABLE: QpAttrMask = QpAttrMask::STATE
    .or(QpAttrMask::CUR_STATE)
    .or(QpAttrMask::EN_SQD_ASYNC_NOTIFY)
    .or(QpAttrMask::PKEY_INDEX)
    .or(QpAttrMask::PORT)
    .or(QpAttrMask::QKEY)
    .or(QpAttrMask::SQ_PSN)
    .or(QpAttrMask::RNR_RETRY);

/// Attributes that can be queried.
const QUERYABLE: QpAttrMask = QpAttrMask::STATE
    .or(QpAttrMask::PKEY_INDEX)
    .or(QpAttrMask::PORT)
    .or(QpAttrMask::QKEY)
    .or(QpAttrMask::SQ_PSN)
    .or(QpAttrMask::CAP)
    .or(QpAttrMask::RNR_RETRY);

/// A queue pair.
pub(crate) struct Qp<'a> {
    /// The queues that a client in the kernel posts to.
    #[cfg(kverbs)]
    posted: Option<Arc<KernelQp<'a>>>,
    device_qp: DeviceQp<'a>,
    qp_num: u16,
    qp_type: QpType,
    /// State that was last set, a [`QpState`].
    state: AtomicU8,
    cap: QpCap,
    /// Bytes of the rings of the send queue and of the receive queue.
    ring_sizes: [u32; 2],
    /// Offset in bytes of the send queue's ring in its BAR.
    llq_offset: u32,
}

/// The device's side of a queue pair.
struct DeviceQp<'a> {
    handle: u32,
    /// The ring of the receive queue, unless its size is 0.
    receive_ring: Option<ReceiveRing<'a>>,
}

/// The memory of a receive queue's ring.
enum ReceiveRing<'a> {
    /// Memory that userspace maps.
    User(Lent<'a, UserBuffer<'a>>),
    /// Memory that the kernel writes to.
    #[cfg(kverbs)]
    Kernel(Lent<'a, Entries<'a, { RxDesc::SIZE }>>),
}

impl<'a> ReceiveRing<'a> {
    /// Returns the address of the first entry as the device sees it.
    fn dma_address(&self) -> u64 {
        match self {
            Self::User(buffer) => buffer.dma_address(),
            #[cfg(kverbs)]
            Self::Kernel(entries) => entries.dma_address(),
        }
    }

    /// Returns the state of the memory.
    fn loan(&self) -> &Loan<'a> {
        match self {
            Self::User(buffer) => buffer.loan(),
            #[cfg(kverbs)]
            Self::Kernel(entries) => entries.loan(),
        }
    }
}

impl<'a> DeviceQp<'a> {
    /// Creates a queue pair.
    ///
    /// # Errors
    ///
    /// Those of the admin command.
    fn create(
        efa: &Efa<'a>,
        command: &CreateQp,
        receive_ring: Option<&ReceiveRing<'a>>,
    ) -> Result<qp::CreateQpResponse, CommandError> {
        let loan = receive_ring.map(ReceiveRing::loan);
        Loan::lend_any(loan, || efa.admin().execute(command))
    }

    /// Destroys the queue pair.
    fn destroy(&self, efa: &Efa<'a>) -> Result<NoData, CommandError> {
        let command = DestroyQp {
            qp_handle: self.handle,
        };
        let result = efa.admin().execute(&command);
        if let (Ok(_), Some(ring)) = (&result, &self.receive_ring) {
            ring.loan().mark_released();
        }
        result
    }
}

#[vtable]
impl<'a> rdma::QueuePair<'a, Verbs> for Qp<'a> {
    #[cfg(kverbs)]
    const SEND_WR_LAYOUT: Option<&'static SendWrLayout> = Some(&SendWrLayout::EFA_SRD);

    fn create(
        device: &rdma::Device<Efa<'a>>,
        context: &mut Context<'_, 'a, Verbs>,
        attr: &QpInitAttr<'_, 'a, Verbs>,
        udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        let efa = device.data();
        Self::create_at(efa, context, attr, udata)
            .inspect_err(|_| efa.errors.create_qp_err.increment())
    }

    #[cfg(kverbs)]
    fn create_kernel(
        device: &rdma::Device<Efa<'a>>,
        attr: &QpInitAttr<'_, 'a, Verbs>,
        qp: &Arc<QpRef>,
        signal_all: bool,
    ) -> impl PinInit<Self, Error> {
        let efa = device.data();
        Self::create_posted(efa, attr, qp, signal_all)
            .inspect_err(|_| efa.errors.create_qp_err.increment())
    }

    #[cfg(kverbs)]
    fn post_send(
        &self,
        _device: &rdma::Device<Efa<'a>>,
        wrs: &mut SendWrs<'_, Ah, Mr<'a>>,
    ) -> Result {
        self.posted()?.post_send(wrs)
    }

    #[cfg(kverbs)]
    fn post_recv(&self, _device: &rdma::Device<Efa<'a>>, wrs: &mut RecvWrs<'_>) -> Result {
        self.posted()?.post_recv(wrs)
    }

    #[cfg(kverbs)]
    fn cap(&self) -> QpCap {
        self.cap
    }

    fn qp_num(&self) -> u32 {
        self.qp_num.into()
    }

    fn details(&self, details: &mut Details) -> Result {
        details.put(c"qp_handle", self.device_qp.handle.into())?;
        details.put(c"sq_ring_size", self.ring_sizes[0].into())?;
        details.put(c"rq_ring_size", self.ring_sizes[1].into())?;
        details.put(c"llq_offset", self.llq_offset.into())
    }

    fn modify(&self, device: &rdma::Device<Efa<'a>>, attr: &QpAttr, udata: &Udata<'_>) -> Result {
        self.modify_at(device.data(), attr, udata)
    }

    fn query(&self, device: &rdma::Device<Efa<'a>>, mask: QpAttrMask) -> Result<QueriedQp> {
        self.query_at(device.data(), mask)
    }

    fn destroy(&self, device: &rdma::Device<Efa<'a>>) {
        let efa = device.data();
        let epoch = efa.session.epoch();
        let result = self.device_qp.destroy(efa);
        #[cfg(kverbs)]
        if let Some(pair) = &self.posted {
            match pair.has_posted() {
                true => epoch.settle_now(result),
                false => epoch.settle(result),
            }
            return pair.detach();
        }
        epoch.settle(result);
    }
}

impl<'a> Qp<'a> {
    /// Returns the handle of the queue pair in commands.
    pub(super) fn handle(&self) -> u32 {
        self.device_qp.handle
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if flags, a transport or a shared receive queue are requested that are not
    ///   supported.
    /// - [`EINVAL`] if a size exceeds a limit of the device.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command and of [`Udata`].
    fn create_at(
        efa: &Efa<'a>,
        context: &mut Context<'_, 'a, Verbs>,
        attr: &QpInitAttr<'_, 'a, Verbs>,
        udata: &Udata<'_>,
    ) -> Result<Self> {
        let command: abi::CreateQpCmd = udata.input(abi::CREATE_QP_MIN_INPUT)?;
        if command.comp_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        if command.reserved_98 != [0; 5] {
            return Err(EINVAL);
        }
        let caps = efa.attributes().device.device_caps;
        let mut flags = u32::from(command.flags);
        let mut take = |flag: u32| {
            let is_set = flags & flag != 0;
            flags &= !flag;
            is_set
        };
        let unsolicited_write_recv = take(abi::CREATE_QP_WITH_UNSOLICITED_WRITE_RECV);
        let sq_64_bit_req_id = take(abi::CREATE_QP_WITH_SQ_64_BIT_REQ_ID);
        if flags != 0
            || unsolicited_write_recv && !caps.unsolicited_write_recv
            || sq_64_bit_req_id && !caps.sq_64_bit_req_id
        {
            return Err(EOPNOTSUPP);
        }
        check_sizes(efa, &attr.cap, command.sq_ring_size)?;
        let qp_type = check_type(attr, command.driver_qp_type)?;
        // The core ensures that queue pairs of these transports have both.
        let (send_cq, recv_cq) = attr.send_cq.zip(attr.recv_cq).ok_or(EINVAL)?;

        let receive_ring = match command.rq_ring_size {
            0 => None,
            // CAST: `usize` has 64 bits on every architecture that has EFA.
            size => {
                let buffer = UserBuffer::zeroed(efa.session.device().dev(), size as usize)?;
                let buffer = Arc::new(buffer, GFP_KERNEL)?;
                let ring = Lent::new(efa.session.epoch(), &"a queue pair", buffer)?;
                Some(ReceiveRing::User(ring))
            }
        };

        let create = CreateQp {
            pd: attr.pd.pdn,
            qp_type: qp_type.into(),
            flags: CreateQpFlags {
                unsolicited_write_recv,
                sq_64_bit_req_id,
                ..CreateQpFlags::default()
            },
            rq_base_addr: receive_ring.as_ref().map_or(0, |ring| ring.dma_address()),
            send_cq_idx: send_cq.index().into(),
            recv_cq_idx: recv_cq.index().into(),
            send_queue_ring_size: command.sq_ring_size,
            send_queue_depth: attr.cap.max_send_wr,
            recv_queue_ring_size: command.rq_ring_size,
            recv_queue_depth: attr.cap.max_recv_wr,
            uar: context.data().uar,
            sl: command.sl,
            ..CreateQp::default()
        };
        let created = DeviceQp::create(efa, &create, receive_ring.as_ref())?;
        let device_qp = DeviceQp {
            handle: created.qp_handle,
            receive_ring,
        };

        let mapped = map(
            efa,
            context,
            &device_qp,
            &created,
            command.sq_ring_size,
            udata,
        );
        if let Err(error) = mapped {
            efa.session.epoch().settle(device_qp.destroy(efa));
            return Err(error);
        }

        Ok(Self {
            #[cfg(kverbs)]
            posted: None,
            device_qp,
            qp_num: created.qp_num,
            qp_type: attr.qp_type,
            state: AtomicU8::new(QpState::Reset as u8),
            cap: attr.cap,
            ring_sizes: [command.sq_ring_size, command.rq_ring_size],
            llq_offset: created.llq_descriptors_offset,
        })
    }

    /// Creates a queue pair for a client in the kernel.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if flags, a transport or a shared receive queue are requested that are not
    ///   supported.
    /// - [`EINVAL`] if a size exceeds a limit, or a completion queue belongs to a process.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command.
    #[cfg(kverbs)]
    fn create_posted(
        efa: &Efa<'a>,
        attr: &QpInitAttr<'_, 'a, Verbs>,
        qp: &Arc<QpRef>,
        signals_all: bool,
    ) -> Result<Self> {
        if attr.has_srq || attr.create_flags != 0 {
            return Err(EOPNOTSUPP);
        }
        let qp_type = match attr.qp_type {
            QpType::UD => qp::QpType::Ud,
            abi::KERNEL_QP_TYPE_SRD => qp::QpType::Srd,
            _ => return Err(EOPNOTSUPP),
        };
        let (send_cq, recv_cq) = attr.send_cq.zip(attr.recv_cq).ok_or(EINVAL)?;
        let polled = |cq: &Cq<'a>| cq.polled().cloned().ok_or(EINVAL);
        let (send_queue, recv_queue) = (polled(send_cq)?, polled(recv_cq)?);

        let sizes = Sizes::new(efa, &attr.cap)?;
        let (send_bytes, recv_bytes) = (sizes.send_bytes()?, sizes.recv_bytes()?);
        check_sizes(efa, &attr.cap, send_bytes)?;
        let (epoch, dev) = (efa.session.epoch(), efa.session.device().dev());
        let entries = match sizes.recv_entries {
            0 => None,
            count => Some(Arc::new(Entries::zeroed(dev, count)?, GFP_KERNEL)?),
        };
        let receive_ring = match &entries {
            None => None,
            Some(entries) => {
                let ring = Lent::new(epoch, &"a queue pair", entries.clone())?;
                Some(ReceiveRing::Kernel(ring))
            }
        };
        let (send_requests, sends) = outstanding::new(sizes.send_depth)?;
        let (recv_requests, recvs) = match sizes.recv_depth {
            0 => (None, None),
            _ => {
                let (posts, polls) = outstanding::new(sizes.recv_depth)?;
                (Some(posts), Some(polls))
            }
        };

        let create = CreateQp {
            pd: attr.pd.pdn,
            qp_type: qp_type.into(),
            rq_base_addr: receive_ring.as_ref().map_or(0, |ring| ring.dma_address()),
            send_cq_idx: send_cq.index().into(),
            recv_cq_idx: recv_cq.index().into(),
            send_queue_ring_size: send_bytes,
            send_queue_depth: sizes.send_depth,
            recv_queue_ring_size: recv_bytes,
            recv_queue_depth: sizes.recv_depth,
            uar: efa.kernel_uar.get(efa.admin())?,
            ..CreateQp::default()
        };
        let created = DeviceQp::create(efa, &create, receive_ring.as_ref())?;
        let device_qp = DeviceQp {
            handle: created.qp_handle,
            receive_ring,
        };

        let make = || {
            let slots = efa.bars.map_send_queue(
                created.llq_descriptors_offset,
                sizes.wqe_size,
                sizes.send_depth,
            )?;
            let doorbell = efa.bars.map_doorbell(created.sq_db_offset)?;
            let recv = match entries.zip(recv_requests) {
                Some((entries, requests)) => {
                    let doorbell = efa.bars.map_doorbell(created.rq_db_offset)?;
                    let ring = RecvRing::new(entries, doorbell);
                    Some(RecvQueue { ring, requests })
                }
                None => None,
            };
            let send = SendQueue {
                ring: SendRing::new(slots, doorbell, sizes.max_batch),
                requests: send_requests,
            };
            let sides = Sides {
                send: Some(sends),
                recv: recvs,
            };
            let fixed = Fixed {
                qp: qp.clone(),
                send_cq: send_queue,
                recv_cq: recv_queue,
                qp_num: created.qp_num,
                qp_type: attr.qp_type,
                limits: sizes.limits(efa, &attr.cap),
                signals_all,
            };
            KernelQp::new(send, recv, sides, fixed)
        };
        let pair = make().inspect_err(|_: &Error| {
            // The error to return is the first one.
            efa.session.epoch().settle(device_qp.destroy(efa));
        })?;

        Ok(Self {
            posted: Some(pair),
            device_qp,
            qp_num: created.qp_num,
            qp_type: attr.qp_type,
            state: AtomicU8::new(QpState::Reset as u8),
            cap: QpCap {
                max_send_wr: sizes.send_depth,
                max_recv_wr: sizes.recv_depth,
                ..attr.cap
            },
            ring_sizes: [send_bytes, recv_bytes],
            llq_offset: created.llq_descriptors_offset,
        })
    }

    /// Returns the state that was last set.
    fn state(&self) -> Option<QpState> {
        QpState::from_raw(self.state.load(Relaxed).into())
    }

    /// Returns the queues that clients in the kernel post to.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the queue pair belongs to a process.
    #[cfg(kverbs)]
    fn posted(&self) -> Result<&KernelQp<'a>> {
        self.posted.as_deref().ok_or(EINVAL)
    }

    /// Modifies attributes of the queue pair.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if an attribute can't be modified, or not to this value.
    /// - [`EINVAL`] if there is no transition to the new state, or none with these attributes.
    /// - Those of the admin command and of [`Udata`].
    fn modify_at(&self, efa: &Efa<'a>, attr: &QpAttr, udata: &Udata<'_>) -> Result {
        udata.expect_no_io()?;
        let has = |attribute| attr.mask.contains(attribute);

        let cur_state = if has(QpAttrMask::CUR_STATE) {
            attr.cur_state
        } else {
            self.state().ok_or(EINVAL)?
        };
        let new_state = if has(QpAttrMask::STATE) {
            attr.state
        } else {
            cur_state
        };

        if !MODIFIABLE.contains(attr.mask) {
            return Err(EOPNOTSUPP);
        }
        #[cfg(kverbs)]
        if let (Some(pair), Some(QpState::Reset), QpState::Err) =
            (&self.posted, self.state(), new_state)
        {
            // A client may drain it. The device has nothing to flush, and lacks the transition.
            pair.close();
            return Ok(());
        }
        if !transition_is_ok(self.qp_type, cur_state, new_state, attr.mask) {
            return Err(EINVAL);
        }
        if has(QpAttrMask::PORT) && attr.port_num != 1
            || has(QpAttrMask::PKEY_INDEX) && attr.pkey_index != 0
        {
            return Err(EOPNOTSUPP);
        }

        // Attributes that are not in the mask are zero.
        let given = |attribute, value: u32| if has(attribute) { value } else { 0 };
        let command = ModifyQp {
            modify_mask: ModifyQpMask {
                qp_state: has(QpAttrMask::STATE),
                cur_qp_state: has(QpAttrMask::STATE),
                qkey: has(QpAttrMask::QKEY),
                sq_psn: has(QpAttrMask::SQ_PSN),
                sq_drained_async_notify: has(QpAttrMask::EN_SQD_ASYNC_NOTIFY),
                rnr_retry: has(QpAttrMask::RNR_RETRY),
            },
            qp_handle: self.device_qp.handle,
            qp_state: given(QpAttrMask::STATE, new_state as u32),
            cur_qp_state: given(QpAttrMask::STATE, cur_state as u32),
            qkey: given(QpAttrMask::QKEY, attr.qkey),
            sq_psn: given(QpAttrMask::SQ_PSN, attr.sq_psn),
            sq_drained_async_notify: has(QpAttrMask::EN_SQD_ASYNC_NOTIFY)
                && attr.en_sqd_async_notify,
            rnr_retry: if has(QpAttrMask::RNR_RETRY) {
                attr.rnr_retry
            } else {
                0
            },
        };
        let modify = || efa.admin().execute(&command);
        #[cfg(kverbs)]
        match &self.posted {
            Some(pair) => {
                let is_in_error = || self.is_in_error(efa);
                pair.change_state(self.state(), new_state, modify, is_in_error)?;
            }
            None => modify().map(drop)?,
        }
        #[cfg(not(kverbs))]
        modify()?;
        // Without a new state, it is what the caller assumes.
        if has(QpAttrMask::STATE) {
            self.state.store(new_state as u8, Relaxed);
            #[cfg(kverbs)]
            if let Some(pair) = &self.posted {
                pair.enter(new_state);
            }
        }
        Ok(())
    }

    /// Returns whether the device has put the queue pair into the error state.
    #[cfg(kverbs)]
    fn is_in_error(&self, efa: &Efa<'a>) -> bool {
        let query = QueryQp {
            qp_handle: self.device_qp.handle,
        };
        let queried = efa.admin().execute(&query);
        queried.is_ok_and(|queried| queried.qp_state == QpState::Err as u32)
    }

    /// Returns attributes of the queue pair.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the device does not report a requested attribute.
    /// - [`EIO`] if the device returns an unknown state.
    /// - Those of the admin command.
    fn query_at(&self, efa: &Efa<'a>, mask: QpAttrMask) -> Result<QueriedQp> {
        if !QUERYABLE.contains(mask) {
            return Err(EOPNOTSUPP);
        }

        let queried = efa.admin().execute(&QueryQp {
            qp_handle: self.device_qp.handle,
        })?;
        let state = QpState::from_raw(queried.qp_state).ok_or_else(|| {
            efa.admin()
                .report_invalid("a state that no queue pair can have", queried.qp_state)
        })?;
        Ok(QueriedQp {
            state,
            qkey: queried.qkey,
            sq_psn: queried.sq_psn,
            sq_draining: queried.sq_draining,
            port_num: 1,
            rnr_retry: queried.rnr_retry,
            cap: self.cap,
        })
    }
}

/// Checks the sizes of a queue pair against the limits of the device.
fn check_sizes(efa: &Efa<'_>, cap: &QpCap, sq_ring_size: u32) -> Result {
    let queues = &efa.attributes().queues;

    if cap.max_send_wr > queues.max_sq_depth
        || sq_ring_size > queues.max_llq_size
        || cap.max_recv_wr > queues.max_rq_depth
        || cap.max_send_sge > queues.max_wr_send_sges.into()
        || cap.max_recv_sge > queues.max_wr_recv_sges.into()
        || cap.max_inline_data > efa.attributes().more_queues.inline_buf_size_ex.into()
    {
        return Err(EINVAL);
    }
    Ok(())
}

/// Returns the device's id of the requested transport.
fn check_type(attr: &QpInitAttr<'_, '_, Verbs>, driver_qp_type: u32) -> Result<qp::QpType> {
    if attr.has_srq || attr.create_flags != 0 {
        return Err(EOPNOTSUPP);
    }
    match attr.qp_type {
        QpType::UD => Ok(qp::QpType::Ud),
        QpType::DRIVER if driver_qp_type == abi::DRIVER_QP_TYPE_SRD => Ok(qp::QpType::Srd),
        _ => Err(EOPNOTSUPP),
    }
}

/// Lets the process map the rings and doorbells of a new queue pair, and responds to its call.
fn map<'a>(
    efa: &Efa<'a>,
    context: &mut Context<'_, 'a, Verbs>,
    device_qp: &DeviceQp<'a>,
    created: &qp::CreateQpResponse,
    sq_ring_size: u32,
    udata: &Udata<'_>,
) -> Result {
    let mut response = abi::CreateQpResp {
        sq_db_offset: offset_in_page(created.sq_db_offset),
        rq_db_offset: created.rq_db_offset,
        llq_desc_offset: offset_in_page(created.llq_descriptors_offset),
        send_sub_cq_idx: created.send_sub_cq_idx,
        recv_sub_cq_idx: created.recv_sub_cq_idx,
        ..abi::CreateQpResp::default()
    };

    let doorbell = efa.bars.doorbell(created.sq_db_offset)?;
    response.sq_db_mmap_key = context.insert_mmap(doorbell)?;

    // The device has accepted the size, which is at most `max_llq_size`.
    let length = u64::from(sq_ring_size) + u64::from(response.llq_desc_offset);
    let send_queue = efa
        .bars
        .send_queue(created.llq_descriptors_offset, length as usize)?;
    response.llq_desc_mmap_key = context.insert_mmap(send_queue)?;

    if let Some(ReceiveRing::User(ring)) = &device_qp.receive_ring {
        let doorbell = efa.bars.doorbell(created.rq_db_offset)?;
        response.rq_db_offset = offset_in_page(created.rq_db_offset);
        response.rq_db_mmap_key = context.insert_mmap(doorbell)?;
        response.rq_mmap_key = context.insert_mmap(Mapping::Buffer(ring.memory().clone()))?;
        response.rq_mmap_size = ring.size() as u64;
    }
    udata.respond(&response)
}
