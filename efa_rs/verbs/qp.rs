// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    abi,
    bars::offset_in_page,
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
            DestroyQp, //
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
        atomic::AtomicU8,
        dma::UserBuffer, //
    },
};

#[cfg(kverbs)]
use {
    super::{
        ah::Ah,
        kernel_qp::KernelQp,
        mr::Mr, //
    },
    crate::{
        hw::io::RxDesc,
        rdma::{
            QpRef,
            RecvWrs,
            SendWrLayout,
            SendWrs, //
        },
        sys::dma::Entries, //
    },
};

/// A queue pair.
pub(crate) struct Qp<'a> {
    /// The queues that a client in the kernel posts to.
    #[cfg(kverbs)]
    pub(super) posted: Option<Arc<KernelQp<'a>>>,
    pub(super) device_qp: DeviceQp<'a>,
    pub(super) qp_num: u16,
    pub(super) qp_type: QpType,
    /// State that was last set, a [`QpState`].
    pub(super) state: AtomicU8,
    pub(super) cap: QpCap,
    /// Bytes of the rings of the send queue and of the receive queue.
    pub(super) ring_sizes: [u32; 2],
    /// Offset in bytes of the send queue's ring in its BAR.
    pub(super) llq_offset: u32,
}

/// The device's side of a queue pair.
pub(super) struct DeviceQp<'a> {
    pub(super) handle: u32,
    /// The ring of the receive queue, unless its size is 0.
    pub(super) receive_ring: Option<ReceiveRing<'a>>,
}

/// The memory of a receive queue's ring.
pub(super) enum ReceiveRing<'a> {
    /// Memory that userspace maps.
    User(Lent<'a, UserBuffer<'a>>),
    /// Memory that the kernel writes to.
    #[cfg(kverbs)]
    Kernel(Lent<'a, Entries<'a, { RxDesc::SIZE }>>),
}

impl<'a> ReceiveRing<'a> {
    /// Returns the address of the first entry as the device sees it.
    pub(super) fn dma_address(&self) -> u64 {
        match self {
            Self::User(buffer) => buffer.dma_address(),
            #[cfg(kverbs)]
            Self::Kernel(entries) => entries.dma_address(),
        }
    }

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
    pub(super) fn create(
        efa: &Efa<'a>,
        command: &CreateQp,
        receive_ring: Option<&ReceiveRing<'a>>,
    ) -> Result<qp::CreateQpResponse, CommandError> {
        let loan = receive_ring.map(ReceiveRing::loan);
        Loan::lend_any(loan, || efa.admin().execute(command))
    }

    pub(super) fn destroy(&self, efa: &Efa<'a>) -> Result<NoData, CommandError> {
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

    /// Returns the queues that clients in the kernel post to.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the queue pair belongs to a process.
    #[cfg(kverbs)]
    fn posted(&self) -> Result<&KernelQp<'a>> {
        self.posted.as_deref().ok_or(EINVAL)
    }
}

/// Checks the sizes of a queue pair against the limits of the device.
pub(super) fn check_sizes(efa: &Efa<'_>, cap: &QpCap, sq_ring_size: u32) -> Result {
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
