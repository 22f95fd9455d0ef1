// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion counters: each is two event counters of the device, in memory of a process.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    abi,
    qp::Qp,
    ucontext::Ucontext,
    Efa,
    Verbs, //
};
use crate::{
    com::Lent,
    hw::admin::event_counter::{
        AttachEventCounter,
        AttachType,
        CreateEventCounter,
        DestroyEventCounter,
        DetachEventCounter,
        ModifyEventCounter,
        ModifyOp,
        QpEvents, //
    },
    rdma::{
        self,
        CompCntrCaps,
        CompCntrEntry,
        CompCntrInitAttr,
        CompCntrModifyOp,
        QpAttachOps,
        Umem, //
    },
};

/// Size and alignment of a value in bytes.
const VALUE_SIZE: usize = size_of::<u64>();

/// A completion counter.
pub(crate) struct CompCntr<'a> {
    comp: EventCounter<'a>,
    err: EventCounter<'a>,
}

/// An event counter of the device.
struct EventCounter<'a> {
    handle: u32,
    value: Lent<'a, Umem<'a>>,
}

#[vtable]
impl<'a> rdma::CompletionCounter<'a, Verbs> for CompCntr<'a> {
    fn caps(device: &rdma::Device<Efa<'a>>) -> CompCntrCaps {
        let queues = &device.data().attributes().more_queues;
        let events = queues.supported_event_counter_qp_events;

        CompCntrCaps {
            max_counters: queues.max_event_counters / 2,
            max_value: queues.event_counter_max_val,
            supported_qp_attach_ops: QpAttachOps::default()
                .with_if(events.send_comp && events.send_comp_err, QpAttachOps::SEND)
                .with_if(events.recv_comp && events.recv_comp_err, QpAttachOps::RECV)
                .with_if(
                    events.read_comp && events.read_comp_err,
                    QpAttachOps::RDMA_READ,
                )
                .with_if(
                    events.write_comp && events.write_comp_err,
                    QpAttachOps::RDMA_WRITE,
                )
                .with_if(events.remote_read_comp, QpAttachOps::REMOTE_RDMA_READ)
                .with_if(events.remote_write_comp, QpAttachOps::REMOTE_RDMA_WRITE),
        }
    }

    fn create(
        device: &rdma::Device<Efa<'a>>,
        context: &Ucontext,
        attr: &CompCntrInitAttr<'_, 'a>,
    ) -> impl PinInit<Self, Error> {
        Self::create_at(device.data(), context.uar, attr)
    }

    fn modify(
        &self,
        device: &rdma::Device<Efa<'a>>,
        entry: CompCntrEntry,
        op: CompCntrModifyOp,
    ) -> Result {
        let counter = match entry {
            CompCntrEntry::Comp => &self.comp,
            CompCntrEntry::Err => &self.err,
        };
        let (op, value) = match op {
            CompCntrModifyOp::Set(value) => (ModifyOp::Set, value),
            CompCntrModifyOp::Inc(value) => (ModifyOp::Add, value),
        };
        device.data().admin().execute(&ModifyEventCounter {
            cntr_handle: counter.handle,
            operation: op.into(),
            value,
        })?;
        Ok(())
    }

    fn attach(&self, device: &rdma::Device<Efa<'a>>, qp: &Qp<'a>, ops: QpAttachOps) -> Result {
        let (admin, qp_handle) = (device.data().admin(), qp.handle());
        let (comp, err) = (comp_events(ops), err_events(ops));
        let attach = |counter: &EventCounter<'_>, events| {
            admin.execute(&AttachEventCounter {
                cntr_handle: counter.handle,
                attach_type: AttachType::QpEvents.into(),
                qp_handle,
                events,
            })
        };

        attach(&self.comp, comp)?;
        attach(&self.err, err).inspect_err(|_| {
            // The error to return is the first one.
            let _ = admin.execute(&DetachEventCounter {
                cntr_handle: self.comp.handle,
                attach_type: AttachType::QpEvents.into(),
                qp_handle,
                events: comp,
            });
        })?;
        Ok(())
    }

    fn destroy(&self, device: &rdma::Device<Efa<'a>>) {
        let efa = device.data();
        self.comp.destroy(efa);
        self.err.destroy(efa);
    }
}

impl<'a> CompCntr<'a> {
    /// Creates a completion counter.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if its memory is not aligned, or too short.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of pinning memory and of the admin command.
    fn create_at(efa: &Efa<'a>, uar: u16, attr: &CompCntrInitAttr<'_, 'a>) -> Result<Self> {
        let comp = attr.buffer(abi::CREATE_COMP_CNTR_COMP_BUFFER, VALUE_SIZE)?;
        let err = attr.buffer(abi::CREATE_COMP_CNTR_ERR_BUFFER, VALUE_SIZE)?;
        let is_aligned = |value: &Umem<'_>| value.start() % VALUE_SIZE as u64 == 0;
        if !is_aligned(&comp) || !is_aligned(&err) {
            return Err(EINVAL);
        }

        let comp = EventCounter::create(efa, uar, comp)?;
        // The error to return is the first one.
        let err = EventCounter::create(efa, uar, err).inspect_err(|_| comp.destroy(efa))?;
        Ok(Self { comp, err })
    }
}

impl<'a> EventCounter<'a> {
    /// Creates an event counter with its value in this memory.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the admin command.
    fn create(efa: &Efa<'a>, uar: u16, value: Umem<'a>) -> Result<Self> {
        let command = CreateEventCounter {
            uar,
            paddr: value.start(),
        };
        let value = Arc::new(value, GFP_KERNEL)?;
        let value = Lent::new(efa.session.epoch(), &"a completion counter", value)?;
        let created = value.loan().lend(|| efa.admin().execute(&command))?;
        Ok(Self {
            handle: created.cntr_handle,
            value,
        })
    }

    fn destroy(&self, efa: &Efa<'a>) {
        let command = DestroyEventCounter {
            cntr_handle: self.handle,
        };
        self.value.loan().settle(efa.admin().execute(&command));
    }
}

/// Returns the events that the counter of successes counts for these operations.
fn comp_events(ops: QpAttachOps) -> QpEvents {
    QpEvents {
        send_comp: ops.contains(QpAttachOps::SEND),
        recv_comp: ops.contains(QpAttachOps::RECV),
        read_comp: ops.contains(QpAttachOps::RDMA_READ),
        write_comp: ops.contains(QpAttachOps::RDMA_WRITE),
        remote_read_comp: ops.contains(QpAttachOps::REMOTE_RDMA_READ),
        remote_write_comp: ops.contains(QpAttachOps::REMOTE_RDMA_WRITE),
        ..QpEvents::default()
    }
}

/// Returns the events that the counter of failures counts for these operations. Failures of remote
/// operations are counted by the peer that requested them.
fn err_events(ops: QpAttachOps) -> QpEvents {
    QpEvents {
        send_comp_err: ops.contains(QpAttachOps::SEND),
        recv_comp_err: ops.contains(QpAttachOps::RECV),
        read_comp_err: ops.contains(QpAttachOps::RDMA_READ),
        write_comp_err: ops.contains(QpAttachOps::RDMA_WRITE),
        ..QpEvents::default()
    }
}
