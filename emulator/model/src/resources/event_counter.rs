// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event counters, which count events of queue pairs and write their values to host memory.

use efa_hw::admin::{
    NoData, Status,
    event_counter::{
        AttachEventCounter, AttachType, CreateEventCounter, CreateEventCounterResponse,
        DestroyEventCounter, DetachEventCounter, ModifyEventCounter, ModifyOp, QpEvents,
    },
    qp::QpState,
};

use super::{
    failure::Failure,
    qp::Qps,
    qp_events::Attached,
    table::{Shared, Table, Users},
    uar::Uars,
};
use crate::{DmaError, Host, profile::attributes::Attributes, queue::Place};

/// Size of a value in bytes.
const VALUE_SIZE: u64 = 8;

/// An event counter.
#[derive(Debug)]
pub(crate) struct EventCounter {
    uar: u16,
    /// Bus address of the value in host memory.
    paddr: u64,
    value: u64,
    /// Attachments, one for each counted event kind of a queue pair.
    users: Users,
}

impl Shared for EventCounter {
    fn users(&mut self) -> &mut Users {
        &mut self.users
    }
}

impl EventCounter {
    /// Writes a value to host memory.
    fn write_value(&self, host: &mut dyn Host, value: u64) -> Result<(), DmaError> {
        host.dma_write(self.paddr, &value.to_le_bytes())
    }
}

/// Returns `value + amount` for a counter that wraps to 0 after `most`.
fn sum(value: u64, amount: u64, most: u64) -> u64 {
    let sum = u128::from(value) + u128::from(amount);
    // CAST: the remainder is at most `most`.
    (sum % (u128::from(most) + 1)) as u64
}

/// All event counters.
#[derive(Debug, Default)]
pub(crate) struct EventCounters(pub(super) Table<EventCounter>);

impl EventCounters {
    /// Returns the locations of all values in host memory.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        self.0.iter().map(|counter| Place {
            base: counter.paddr,
            size: VALUE_SIZE,
        })
    }

    fn number(handle: u32) -> Result<u16, Status> {
        u16::try_from(handle).map_err(|_| Status::IllegalParameter)
    }

    /// Counts one event, even if the write to host memory fails.
    pub(crate) fn count(
        &mut self,
        host: &mut dyn Host,
        number: u16,
        most: u64,
    ) -> Result<(), DmaError> {
        let Ok(counter) = self.0.get_mut(number) else {
            return Ok(());
        };
        counter.value = sum(counter.value, 1, most);
        counter.write_value(host, counter.value)
    }

    /// Removes the attachments of a destroyed queue pair.
    pub(crate) fn detach_all(&mut self, attached: Attached) {
        for number in attached.0.into_iter().flatten() {
            self.0.remove_user(number);
        }
    }

    pub(crate) fn create(
        &mut self,
        attributes: &Attributes,
        uars: &mut Uars,
        command: &CreateEventCounter,
    ) -> Result<CreateEventCounterResponse, Status> {
        check_supported(attributes)?;
        let legal = command.paddr != 0
            && command.paddr % VALUE_SIZE == 0
            && attributes.reaches(command.paddr, VALUE_SIZE);
        if !legal {
            return Err(Status::IllegalParameter);
        }
        uars.get(command.uar)?;
        let number = self.0.insert(
            attributes,
            attributes.max_event_counters,
            EventCounter {
                uar: command.uar,
                paddr: command.paddr,
                value: 0,
                users: Users::default(),
            },
        )?;
        uars.add_user(command.uar);
        Ok(CreateEventCounterResponse {
            cntr_handle: number.into(),
        })
    }

    pub(crate) fn destroy(
        &mut self,
        attributes: &Attributes,
        uars: &mut Uars,
        command: &DestroyEventCounter,
    ) -> Result<NoData, Status> {
        check_supported(attributes)?;
        let number = Self::number(command.cntr_handle)?;
        let counter = self.0.remove_unused(number)?;
        uars.remove_user(counter.uar);
        Ok(NoData {})
    }

    pub(crate) fn modify(
        &mut self,
        attributes: &Attributes,
        host: &mut dyn Host,
        command: &ModifyEventCounter,
    ) -> Result<NoData, Failure> {
        check_supported(attributes)?;
        let number = Self::number(command.cntr_handle)?;
        let counter = self.0.get_mut(number)?;
        let most = attributes.event_counter_max_val;
        let value = match ModifyOp::try_from(command.operation) {
            Ok(ModifyOp::Set) if command.value <= most => command.value,
            Ok(ModifyOp::Add) => sum(counter.value, command.value, most),
            Ok(ModifyOp::Set) | Err(_) => return Err(Status::IllegalParameter.into()),
        };
        counter.write_value(host, value)?;
        counter.value = value;
        Ok(NoData {})
    }

    pub(crate) fn attach(
        &mut self,
        attributes: &Attributes,
        qps: &mut Qps,
        command: &AttachEventCounter,
    ) -> Result<NoData, Status> {
        let found = self.find(attributes, qps, command)?;
        // Source: rdma-core, libibverbs/man/ibv_qp_attach_comp_cntr.3.md. Linux leaves the check to the device.
        if !matches!(found.state, QpState::Reset | QpState::Init) {
            return Err(Status::IllegalParameter);
        }
        if found.attached.of(found.events).any(|place| place.is_some()) {
            return Err(Status::ResourceBusy);
        }
        for place in found.attached.of(found.events) {
            *place = Some(found.number);
            found.counter.users.add();
        }
        Ok(NoData {})
    }

    pub(crate) fn detach(
        &mut self,
        attributes: &Attributes,
        qps: &mut Qps,
        command: &DetachEventCounter,
    ) -> Result<NoData, Status> {
        // The fields are the same as those of an attachment.
        let command = &AttachEventCounter {
            cntr_handle: command.cntr_handle,
            attach_type: command.attach_type,
            qp_handle: command.qp_handle,
            events: command.events,
        };
        let found = self.find(attributes, qps, command)?;
        let number = Some(found.number);
        if found
            .attached
            .of(found.events)
            .any(|place| *place != number)
        {
            return Err(Status::IllegalParameter);
        }
        for place in found.attached.of(found.events) {
            *place = None;
            found.counter.users.remove();
        }
        Ok(NoData {})
    }

    /// Finds an event counter and a queue pair, and checks that the device can count such events.
    fn find<'a>(
        &'a mut self,
        attributes: &Attributes,
        qps: &'a mut Qps,
        command: &AttachEventCounter,
    ) -> Result<Attachment<'a>, Status> {
        check_supported(attributes)?;
        AttachType::try_from(command.attach_type).map_err(|_| Status::IllegalParameter)?;
        let number = Self::number(command.cntr_handle)?;
        let counter = self.0.get_mut(number)?;
        let qp = qps
            .get_mut(Qps::number(command.qp_handle)?)
            .ok_or(Status::IllegalParameter)?;
        let events = command.events;
        if events.into_raw() & !attributes.event_counter_events != 0 {
            return Err(Status::IllegalParameter);
        }
        Ok(Attachment {
            number,
            counter,
            state: qp.state,
            attached: &mut qp.counters,
            events,
        })
    }
}

/// Fails if the device has no event counters.
fn check_supported(attributes: &Attributes) -> Result<(), Status> {
    if attributes.event_counters {
        Ok(())
    } else {
        Err(Status::UnsupportedOpcode)
    }
}

/// Existing objects that an attach or detach command refers to.
struct Attachment<'a> {
    number: u16,
    counter: &'a mut EventCounter,
    state: QpState,
    attached: &'a mut Attached,
    events: QpEvents,
}
