// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event counters, which count events of queue pairs and write their values to host memory.

use efa_hw::admin::{
    NoData, Status,
    event_counter::{
        AttachEventCounter, AttachType, CreateEventCounter, CreateEventCounterResponse, DestroyEventCounter,
        DetachEventCounter, ModifyEventCounter, ModifyOp,
    },
    qp::QpState,
};

use super::{
    failure::Failure,
    qp::{Qp, Qps},
    qp_events::Attached,
    table::{Table, number},
    uar::Uars,
};
use crate::{DmaError, Host, ensure, profile::attributes::Attributes, queue::Place};

/// Size of a value in bytes.
const VALUE_SIZE: u64 = 8;

/// An event counter.
#[derive(Debug)]
pub(crate) struct EventCounter {
    uar: u16,
    /// Location of the value in host memory.
    pub(super) place: Place,
    value: u64,
}

impl EventCounter {
    /// Writes a value to host memory.
    fn write_value(&self, host: &mut dyn Host, value: u64) -> Result<(), DmaError> {
        host.dma_write(self.place.base, &value.to_le_bytes())
    }
}

/// Returns `value + amount` for a counter that wraps to 0 after `most`.
fn sum(value: u64, amount: u64, most: u64) -> u64 {
    let sum = u128::from(value) + u128::from(amount);
    // CAST: the remainder is at most `most`.
    (sum % (u128::from(most) + 1)) as u64
}

/// All event counters. Their users are attachments, one for each counted event kind of a queue pair.
pub(crate) type EventCounters = Table<EventCounter>;

impl EventCounters {
    /// Counts one event, even if the write to host memory fails.
    pub(crate) fn count(&mut self, host: &mut dyn Host, number: u16, most: u64) -> Result<(), DmaError> {
        let Ok(counter) = self.get_mut(number) else {
            return Ok(());
        };
        counter.value = sum(counter.value, 1, most);
        counter.write_value(host, counter.value)
    }

    /// Removes the attachments of a destroyed queue pair.
    pub(crate) fn detach_all(&mut self, attached: Attached) {
        for number in attached.0.into_iter().flatten() {
            self.remove_user(number);
        }
    }

    pub(crate) fn create(
        &mut self,
        attributes: &Attributes,
        uars: &mut Uars,
        command: &CreateEventCounter,
    ) -> Result<CreateEventCounterResponse, Status> {
        check_supported(attributes)?;
        let legal =
            command.paddr != 0 && command.paddr % VALUE_SIZE == 0 && attributes.reaches(command.paddr, VALUE_SIZE);
        ensure(legal, Status::IllegalParameter)?;
        uars.get(command.uar)?;
        let number = self.insert(
            attributes,
            attributes.max_event_counters,
            EventCounter { uar: command.uar, place: Place { base: command.paddr, size: VALUE_SIZE }, value: 0 },
        )?;
        uars.add_user(command.uar);
        Ok(CreateEventCounterResponse { cntr_handle: number.into() })
    }

    pub(crate) fn destroy(
        &mut self,
        attributes: &Attributes,
        uars: &mut Uars,
        command: &DestroyEventCounter,
    ) -> Result<NoData, Status> {
        check_supported(attributes)?;
        let counter = self.remove_unused(number(command.cntr_handle)?)?;
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
        let counter = self.get_mut(number(command.cntr_handle)?)?;
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
        let (number, qp) = self.attachment(attributes, qps, command)?;
        // Source: rdma-core, libibverbs/man/ibv_qp_attach_comp_cntr.3.md. Linux leaves the check to the device.
        let is_new = matches!(qp.state, QpState::Reset | QpState::Init);
        ensure(is_new, Status::IllegalParameter)?;
        let attached = qp.counters.replace(command.events, None, Some(number));
        for _ in 0..attached.ok_or(Status::ResourceBusy)? {
            self.add_user(number);
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
        let (number, qp) = self.attachment(attributes, qps, command)?;
        let detached = qp.counters.replace(command.events, Some(number), None);
        for _ in 0..detached.ok_or(Status::IllegalParameter)? {
            self.remove_user(number);
        }
        Ok(NoData {})
    }

    /// Finds an event counter and a queue pair, and checks that the device can count such events.
    fn attachment<'a>(
        &self,
        attributes: &Attributes,
        qps: &'a mut Qps,
        command: &AttachEventCounter,
    ) -> Result<(u16, &'a mut Qp), Status> {
        check_supported(attributes)?;
        AttachType::try_from(command.attach_type).map_err(|_| Status::IllegalParameter)?;
        let counter = number(command.cntr_handle)?;
        self.get(counter)?;
        let qp = qps.table.get_mut(number(command.qp_handle)?)?;
        let events = command.events.into_raw();
        let supported = events & !attributes.event_counter_events == 0;
        ensure(supported, Status::IllegalParameter)?;
        Ok((counter, qp))
    }
}

/// Fails if the device has no event counters.
fn check_supported(attributes: &Attributes) -> Result<(), Status> {
    ensure(attributes.event_counters, Status::UnsupportedOpcode)
}
