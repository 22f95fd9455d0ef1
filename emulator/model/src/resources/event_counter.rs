// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event counters: how often something happened to queue pairs, in memory of the host. Queue pairs use them.

use efa_hw::{
    admin::{
        NoData, Status,
        event_counter::{
            AttachEventCounter, AttachType, CreateEventCounter, CreateEventCounterResponse,
            DestroyEventCounter, DetachEventCounter, ModifyEventCounter, ModifyOp, QpEvents,
        },
        qp::QpState,
    },
    io::OpType,
};

use super::{
    Resources,
    qp::Qps,
    table::{Shared, Table, Users},
};
use crate::{
    DmaError, Host,
    attributes::Attributes,
    firmware::{Execute, Failure, Firmware},
    queue::Place,
};

/// Bytes of a value.
const VALUE_SIZE: u64 = 8;

/// How many kinds of events there are.
const EVENTS: usize = QpEvents::DEFINED.count_ones() as usize;

/// What happens to a queue pair and can be counted, in the order of the bits of [`QpEvents`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum QpEvent {
    SendComp,
    SendCompErr,
    RecvComp,
    RecvCompErr,
    ReadComp,
    ReadCompErr,
    WriteComp,
    WriteCompErr,
    RemoteReadComp,
    RemoteWriteComp,
}

impl QpEvent {
    /// A work request of the send queue has ended, if there is such an event.
    pub(crate) fn of_request(operation: OpType, ok: bool) -> Option<Self> {
        match (operation, ok) {
            (OpType::Send, true) => Some(Self::SendComp),
            (OpType::Send, false) => Some(Self::SendCompErr),
            (OpType::RdmaRead, true) => Some(Self::ReadComp),
            (OpType::RdmaRead, false) => Some(Self::ReadCompErr),
            (OpType::RdmaWrite, true) => Some(Self::WriteComp),
            (OpType::RdmaWrite, false) => Some(Self::WriteCompErr),
            (OpType::FastReg | OpType::FastInv, _) => None,
        }
    }

    /// Something was received, or a work request of the receive queue has failed.
    pub(crate) fn of_receive(ok: bool) -> Self {
        if ok {
            Self::RecvComp
        } else {
            Self::RecvCompErr
        }
    }
}

/// The event counters of a queue pair: for each kind of events, the one that counts them.
#[derive(Debug, Default)]
pub(crate) struct Attached([Option<u16>; EVENTS]);

impl Attached {
    /// The places of some kinds of events.
    fn of(&mut self, events: QpEvents) -> impl Iterator<Item = &mut Option<u16>> {
        let events = events.into_raw();
        let wanted = move |(bit, counter): (u32, _)| (events & (1 << bit) != 0).then_some(counter);
        (0..).zip(&mut self.0).filter_map(wanted)
    }
}

/// An event counter.
#[derive(Debug)]
struct EventCounter {
    uar: u16,
    /// Where the host sees its value.
    paddr: u64,
    value: u64,
    /// Each is a kind of events of a queue pair.
    users: Users,
}

impl Shared for EventCounter {
    fn users(&mut self) -> &mut Users {
        &mut self.users
    }
}

impl EventCounter {
    /// Shows the host a value.
    fn show(&self, host: &mut dyn Host, value: u64) -> Result<(), DmaError> {
        host.dma_write(self.paddr, &value.to_le_bytes())
    }
}

/// A value and what is added to it, if the value after `most` is 0.
fn sum(value: u64, amount: u64, most: u64) -> u64 {
    let sum = u128::from(value) + u128::from(amount);
    // CAST: the remainder is at most `most`.
    (sum % (u128::from(most) + 1)) as u64
}

/// All event counters.
#[derive(Debug, Default)]
pub(crate) struct EventCounters(Table<EventCounter>);

impl EventCounters {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes all, as a reset does.
    pub(super) fn end(&mut self) {
        self.0.end();
    }

    /// Whether one was looked for since the last call that a reset has ended.
    pub(super) fn take_missed(&self) -> bool {
        self.0.take_missed()
    }

    /// Where the values of all of them are.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        self.0.iter().map(|counter| Place {
            base: counter.paddr,
            size: VALUE_SIZE,
        })
    }

    fn number(handle: u32) -> Result<u16, Status> {
        u16::try_from(handle).map_err(|_| Status::IllegalParameter)
    }

    /// Counts one event. It is counted also if the host can't be shown that.
    fn count(&mut self, host: &mut dyn Host, number: u16, most: u64) -> Result<(), DmaError> {
        let Ok(counter) = self.0.get_mut(number) else {
            return Ok(());
        };
        counter.value = sum(counter.value, 1, most);
        counter.show(host, counter.value)
    }

    /// Takes note that a queue pair with these counters is gone.
    pub(super) fn detach_all(&mut self, attached: Attached) {
        for number in attached.0.into_iter().flatten() {
            self.0.remove_user(number);
        }
    }
}

impl Firmware {
    /// Counts an event of a queue pair, if it has a counter for that.
    pub(crate) fn count(&mut self, host: &mut dyn Host, qp: u16, event: QpEvent) {
        let Resources {
            qps,
            event_counters,
            ..
        } = &mut self.resources;
        let Some(counter) = qps.get(qp).and_then(|qp| qp.counters.0[event as usize]) else {
            return;
        };
        let most = self.attributes.event_counter_max_val;
        if let Err(error) = event_counters.count(host, counter, most) {
            self.complaints.push(error.into());
        }
    }
}

/// Fails if the device has no event counters.
fn check_possible(attributes: &Attributes) -> Result<(), Status> {
    if attributes.event_counters {
        Ok(())
    } else {
        Err(Status::UnsupportedOpcode)
    }
}

impl Execute for CreateEventCounter {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<CreateEventCounterResponse, Failure> {
        let attributes = &firmware.attributes;
        check_possible(attributes)?;
        let legal = self.paddr != 0
            && self.paddr % VALUE_SIZE == 0
            && attributes.reaches(self.paddr, VALUE_SIZE);
        if !legal {
            return Err(Status::IllegalParameter.into());
        }
        let resources = &mut firmware.resources;
        resources.uars.get(self.uar)?;
        let number = resources.event_counters.0.insert(
            attributes.max_event_counters,
            EventCounter {
                uar: self.uar,
                paddr: self.paddr,
                value: 0,
                users: Users::default(),
            },
        )?;
        resources.uars.add_user(self.uar);
        Ok(CreateEventCounterResponse {
            cntr_handle: number.into(),
        })
    }
}

impl Execute for DestroyEventCounter {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        check_possible(&firmware.attributes)?;
        let number = EventCounters::number(self.cntr_handle)?;
        let resources = &mut firmware.resources;
        let counter = resources.event_counters.0.remove_unused(number)?;
        resources.uars.remove_user(counter.uar);
        Ok(NoData {})
    }
}

impl Execute for ModifyEventCounter {
    fn execute(self, firmware: &mut Firmware, host: &mut dyn Host) -> Result<NoData, Failure> {
        let attributes = &firmware.attributes;
        check_possible(attributes)?;
        let number = EventCounters::number(self.cntr_handle)?;
        let counter = firmware.resources.event_counters.0.get_mut(number)?;
        let most = attributes.event_counter_max_val;
        let value = match ModifyOp::try_from(self.operation) {
            Ok(ModifyOp::Set) if self.value <= most => self.value,
            Ok(ModifyOp::Add) => sum(counter.value, self.value, most),
            Ok(ModifyOp::Set) | Err(_) => return Err(Status::IllegalParameter.into()),
        };
        counter.show(host, value)?;
        counter.value = value;
        Ok(NoData {})
    }
}

/// What is to be attached or detached, of what was found to exist.
struct Attachment<'a> {
    number: u16,
    counter: &'a mut EventCounter,
    state: QpState,
    attached: &'a mut Attached,
    events: QpEvents,
}

impl<'a> Attachment<'a> {
    /// Finds an event counter and a queue pair, and checks that the device can count such events.
    fn find(
        firmware: &'a mut Firmware,
        cntr_handle: u32,
        attach_type: u8,
        qp_handle: u32,
        events: QpEvents,
    ) -> Result<Self, Status> {
        let attributes = &firmware.attributes;
        check_possible(attributes)?;
        AttachType::try_from(attach_type).map_err(|_| Status::IllegalParameter)?;
        let Resources {
            qps,
            event_counters,
            ..
        } = &mut firmware.resources;
        let number = EventCounters::number(cntr_handle)?;
        let counter = event_counters.0.get_mut(number)?;
        let qp = Qps::number(qp_handle)?;
        let qp = qps.get_mut(qp).ok_or(Status::IllegalParameter)?;
        if events.into_raw() & !attributes.event_counter_events != 0 {
            return Err(Status::IllegalParameter);
        }
        Ok(Self {
            number,
            counter,
            state: qp.state,
            attached: &mut qp.counters,
            events,
        })
    }
}

impl Execute for AttachEventCounter {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        let found = Attachment::find(
            firmware,
            self.cntr_handle,
            self.attach_type,
            self.qp_handle,
            self.events,
        )?;
        // Source: rdma-core, libibverbs/man/ibv_qp_attach_comp_cntr.3.md. Linux leaves the check to the device.
        if !matches!(found.state, QpState::Reset | QpState::Init) {
            return Err(Status::IllegalParameter.into());
        }
        if found.attached.of(found.events).any(|place| place.is_some()) {
            return Err(Status::ResourceBusy.into());
        }
        for place in found.attached.of(found.events) {
            *place = Some(found.number);
            found.counter.users.add();
        }
        Ok(NoData {})
    }
}

impl Execute for DetachEventCounter {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        let found = Attachment::find(
            firmware,
            self.cntr_handle,
            self.attach_type,
            self.qp_handle,
            self.events,
        )?;
        let number = Some(found.number);
        if found
            .attached
            .of(found.events)
            .any(|place| *place != number)
        {
            return Err(Status::IllegalParameter.into());
        }
        for place in found.attached.of(found.events) {
            *place = None;
            found.counter.users.remove();
        }
        Ok(NoData {})
    }
}
