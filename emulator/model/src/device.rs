// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device as others call it.

use std::{ops::Deref, time::Duration};

use efa_hw::io::CompStatus;

use crate::{
    Arrival, Config, Death, Delivery, DmaError, Fetched, Host, Overrides, Payload, QpId,
    QueueError, Refusal, Request, Rule, RuleId, Segment, StormError, TransportEvent,
    logic::Logic,
    recording::{
        Watched,
        call::Call,
        event::{Event, Outcome, Status},
        nanos,
        recorder::Recorder,
    },
};

/// An EFA device.
///
/// All times are times of one monotonic clock, which may start anywhere. What only looks at a device is a method of what it
/// [derefs](Deref) to; what changes it is one of its own, so that it can be [recorded](Self::record).
#[derive(Debug)]
pub struct Device {
    logic: Logic,
    recorder: Option<Box<dyn Recorder>>,
    /// Deliveries that were begun.
    deliveries: u64,
}

impl Deref for Device {
    type Target = Logic;

    fn deref(&self) -> &Logic {
        &self.logic
    }
}

impl Device {
    /// Makes a device that was just powered on.
    pub fn new(config: Config) -> Self {
        Self {
            logic: Logic::new(config),
            recorder: None,
            deliveries: 0,
        }
    }

    /// Has all recorded that happens from now on. What was recorded from the start, and all of it, can be done again by a
    /// [`Player`](crate::Player).
    pub fn record(&mut self, recorder: Box<dyn Recorder>) {
        self.recorder = Some(recorder);
    }

    /// Calls the device.
    fn call<R>(
        &mut self,
        host: &mut dyn Host,
        call: impl FnOnce() -> Call,
        work: impl FnOnce(&mut Logic, &mut dyn Host) -> R,
        outcome: impl FnOnce(&R) -> Outcome,
    ) -> R {
        let Some(recorder) = self.recorder.as_deref_mut() else {
            return work(&mut self.logic, host);
        };
        recorder.note(&Event::Call(call()));
        let result = work(&mut self.logic, &mut Watched::new(host, recorder));
        recorder.note(&Event::Return(outcome(&result)));
        recorder.end();
        result
    }

    /// Calls the device for something that it does without its host.
    fn call_alone<R>(
        &mut self,
        call: impl FnOnce() -> Call,
        work: impl FnOnce(&mut Logic) -> R,
        outcome: impl FnOnce(&R) -> Outcome,
    ) -> R {
        let Some(recorder) = self.recorder.as_deref_mut() else {
            return work(&mut self.logic);
        };
        recorder.note(&Event::Call(call()));
        let result = work(&mut self.logic);
        recorder.note(&Event::Return(outcome(&result)));
        recorder.end();
        result
    }

    /// Writes a register in BAR 0.
    pub fn write_register(&mut self, host: &mut dyn Host, now: Duration, offset: u64, value: u32) {
        self.call(
            host,
            || Call::write_register(now, offset, value),
            |logic, host| logic.write_register(host, now, offset, value),
            nothing,
        );
    }

    /// Writes a doorbell, given by its offset in the doorbell BAR.
    pub fn write_doorbell(&mut self, host: &mut dyn Host, offset: u64, value: u32) {
        self.call(
            host,
            || Call::WriteDoorbell { offset, value },
            |logic, host| logic.write_doorbell(host, offset, value),
            nothing,
        );
    }

    /// Does what is due, and returns when something will be due next.
    ///
    /// To be called when that time has come, and after each other call that takes the time, which
    /// may have made something due earlier.
    pub fn run(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        self.call(
            host,
            || Call::Run { now: nanos(now) },
            |logic, host| logic.run(host, now),
            |due| Outcome::Due(due.map(nanos)),
        )
    }

    /// Fetches a work request of the queue pair whose turn it is. A doorbell only gives its queue pair turns.
    pub fn fetch(&mut self, host: &mut dyn Host) -> Fetched {
        self.call(
            host,
            || Call::Fetch,
            |logic, host| logic.fetch(host),
            |fetched| Outcome::Fetched(fetched.clone()),
        )
    }

    /// Completes a work request. If its queue pair is not what it was, it has been completed before.
    pub fn complete(&mut self, host: &mut dyn Host, request: &Request, status: CompStatus) {
        self.complete_by_id(host, request.qp, request.id, status);
    }

    pub(crate) fn complete_by_id(
        &mut self,
        host: &mut dyn Host,
        qp: QpId,
        request: u64,
        status: CompStatus,
    ) {
        self.call(
            host,
            || Call::Complete {
                qp,
                request,
                status,
            },
            |logic, host| logic.complete(host, qp, request, status),
            nothing,
        );
    }

    /// Finds the part of a request's data that starts at `offset`, to send it.
    ///
    /// # Errors
    ///
    /// How the request ends if the data can't be had.
    pub fn gather<'a>(
        &mut self,
        request: &'a Request,
        offset: u32,
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<Payload<'a>, CompStatus> {
        let before = segments.len();
        let call = || Call::Gather {
            qp: request.qp,
            request: request.id,
            offset,
            length,
        };
        let work = |logic: &mut Logic| {
            let gathered = logic.gather(request, offset, length, segments);
            (gathered, segments)
        };
        let (gathered, _) = self.call_alone(call, work, |(gathered, segments)| {
            memory(gathered.map(|_| ()), segments, before)
        });
        gathered
    }

    /// Finds the part of a request's buffers that starts at `offset`, to read the peer's memory into it.
    ///
    /// # Errors
    ///
    /// How the request ends if they can't be had.
    pub fn scatter(
        &mut self,
        request: &Request,
        offset: u32,
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        let before = segments.len();
        let call = || Call::Scatter {
            qp: request.qp,
            request: request.id,
            offset,
            length,
        };
        let work = |logic: &mut Logic| {
            let scattered = logic.scatter(request, offset, length, segments);
            (scattered, segments)
        };
        let (scattered, _) = self.call_alone(call, work, |(scattered, segments)| {
            memory(*scattered, segments, before)
        });
        scattered
    }

    /// Finds memory, given by remote key and address, that a peer wants to read.
    ///
    /// # Errors
    ///
    /// How the peer's request ends if it can't be had.
    pub fn gather_for_peer(
        &mut self,
        qp: QpId,
        place: (u32, u64),
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        let before = segments.len();
        let call = || Call::GatherForPeer {
            qp,
            memory: place,
            length,
        };
        let work = |logic: &mut Logic| {
            let gathered = logic.gather_for_peer(qp, place, length, segments);
            (gathered, segments)
        };
        let (gathered, _) = self.call_alone(call, work, |(gathered, segments)| {
            memory(*gathered, segments, before)
        });
        gathered
    }

    /// Begins to deliver something from a peer: takes the receive work request that it uses, and adds to `segments` where its
    /// payload goes.
    ///
    /// Other deliveries, commands and doorbells may come before it ends.
    ///
    /// # Errors
    ///
    /// It is refused, and nothing is added. What there is to tell the program has been told.
    pub fn deliver(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        segments: &mut Vec<Segment>,
    ) -> Result<Delivery, Refusal> {
        let (before, number) = (segments.len(), self.deliveries);
        let work = |logic: &mut Logic, host: &mut dyn Host| {
            let delivery = logic.deliver(host, arrival, segments);
            (delivery, segments)
        };
        let outcome = |(delivery, segments): &(Result<Delivery, Refusal>, &mut Vec<Segment>)| {
            let begun = delivery.as_ref().map(|_| segments[before..].to_vec());
            Outcome::Begun(begun.map_err(|refusal| *refusal))
        };
        let (delivery, _) = self.call(host, || Call::Deliver(*arrival), work, outcome);
        let mut delivery = delivery?;
        delivery.number = number;
        self.deliveries += 1;
        Ok(delivery)
    }

    /// Ends a delivery, whose payload is where it belongs, or could not be written there.
    ///
    /// If its queue pair is not what it was, its receive work request was ended with that, and this only counts.
    ///
    /// # Errors
    ///
    /// It is refused, because of the latter.
    pub fn delivered(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        delivery: Delivery,
        written: Result<(), DmaError>,
    ) -> Result<(), Refusal> {
        let number = delivery.number;
        self.call(
            host,
            || Call::Delivered {
                delivery: number,
                written,
            },
            |logic, host| logic.delivered(host, arrival, delivery, written),
            |delivered| Outcome::Ended(*delivered),
        )
    }

    /// Gives up a delivery, as its sender has no such payload: its receive work request is the next that is taken.
    pub fn cancel(&mut self, delivery: Delivery) {
        let number = delivery.number;
        self.call_alone(
            || Call::Cancel { delivery: number },
            |logic| logic.cancel(delivery),
            nothing,
        );
    }

    /// Takes note that a peer has all that it wanted to read by a queue pair.
    pub fn read_served(&mut self, host: &mut dyn Host, qp: QpId) {
        self.call(
            host,
            || Call::ReadServed { qp },
            |logic, host| logic.read_served(host, qp),
            nothing,
        );
    }

    /// Counts what the transport did for the device.
    pub fn count(&mut self, event: TransportEvent) {
        self.call_alone(|| Call::Count(event), |logic| logic.count(event), nothing);
    }

    /// Posts an asynchronous event, whether or not the driver wants its group. A fatal error also
    /// shows in the device's status.
    pub fn post_event(&mut self, host: &mut dyn Host, now: Duration, group: u16, syndrome: u16) {
        self.call(
            host,
            || Call::PostEvent {
                now: nanos(now),
                group,
                syndrome,
            },
            |logic, host| logic.post_event(host, now, group, syndrome),
            nothing,
        );
    }

    /// The same in the session after the next reset, when that has completed so many commands. It does not show in the
    /// device's status, which it is too late for.
    pub fn post_event_late(&mut self, group: u16, syndrome: u16, after_commands: u64) {
        self.call_alone(
            || Call::PostEventLate {
                group,
                syndrome,
                after_commands,
            },
            |logic| logic.post_event_late(group, syndrome, after_commands),
            nothing,
        );
    }

    /// Posts an event that a completion queue has something new: to its event queue, or to any if
    /// one is given, in which case the completion queue need not exist.
    ///
    /// # Errors
    ///
    /// There is no such queue, or its memory can't be written.
    pub fn post_completion_event(
        &mut self,
        host: &mut dyn Host,
        eqn: Option<u16>,
        cqn: u16,
    ) -> Result<(), QueueError> {
        self.call(
            host,
            || Call::PostCompletionEvent { eqn, cqn },
            |logic, host| logic.post_completion_event(host, eqn, cqn),
            done,
        )
    }

    /// Posts an asynchronous event many times, each as soon as the driver has consumed what was in its place. One place is
    /// left to keep-alives. A reset ends it.
    ///
    /// # Errors
    ///
    /// Too many kinds of events are under way.
    pub fn storm(&mut self, group: u16, syndrome: u16, count: u64) -> Result<(), StormError> {
        self.call_alone(
            || Call::Storm {
                group,
                syndrome,
                count,
            },
            |logic| logic.storm(group, syndrome, count),
            done,
        )
    }

    /// Posts an event that a completion queue has something new many times: so many as fit into half of the event queue, each
    /// time that the driver has armed it. A reset, and the end of the event queue, ends it.
    ///
    /// # Errors
    ///
    /// There is no such queue, or too many kinds of events are under way.
    pub fn storm_of_completion_events(
        &mut self,
        eqn: Option<u16>,
        cqn: u16,
        count: u64,
    ) -> Result<(), StormError> {
        self.call_alone(
            || Call::StormOfCompletionEvents { eqn, cqn, count },
            |logic| logic.storm_of_completion_events(eqn, cqn, count),
            done,
        )
    }

    /// Adds a rule for a fault. Of very many the oldest are lost.
    pub fn inject(&mut self, rule: Rule) -> RuleId {
        let recorded = self.recorder.is_some().then(|| Box::new(rule.clone()));
        self.call_alone(
            || recorded.map_or(Call::Clear, Call::Inject),
            |logic| logic.inject(rule),
            |rule| Outcome::Rule(*rule),
        )
    }

    /// Replaces attributes.
    pub fn set(&mut self, overrides: Overrides) {
        let recorded = self.recorder.is_some().then(|| Box::new(overrides.clone()));
        self.call_alone(
            || recorded.map_or(Call::Clear, Call::Set),
            |logic| logic.set(overrides),
            nothing,
        );
    }

    /// Has the oldest completions come that a rule holds under a name, or all of them if there is no `count`. Returns how many these
    /// are. They come when the device is run next, in the order in which they were held. A dead device completes nothing.
    pub fn release(&mut self, name: &str, count: Option<u64>) -> u64 {
        self.call_alone(
            || Call::Release {
                name: name.to_owned(),
                count,
            },
            |logic| logic.release(name, count),
            |released| Outcome::Released(*released),
        )
    }

    /// Removes all rules and replacements, and answers and events that are still to come; what is held is released; a reset that would
    /// never have ended ends, and the next one revives a dead device.
    pub fn clear(&mut self) {
        self.call_alone(|| Call::Clear, Logic::clear, nothing);
    }

    /// Puts a queue pair in error for no reason: what it has not completed is flushed. The interface has no event for that.
    ///
    /// # Errors
    ///
    /// There is no such queue pair.
    pub fn fail_qp(&mut self, host: &mut dyn Host, qp: u16) -> Result<(), QueueError> {
        self.call(
            host,
            || Call::FailQp { qp },
            |logic, host| logic.fail_qp(host, qp),
            done,
        )
    }

    /// The device dies: it carries out no command, work request or anything else until a reset revives it. One that is not
    /// plugged in can't.
    pub fn die(&mut self, host: &mut dyn Host, now: Duration, death: Death) {
        self.call(
            host,
            || Call::Die {
                now: nanos(now),
                death,
            },
            |logic, host| logic.die(host, now, death),
            nothing,
        );
    }

    /// The device is pulled out of its slot: nothing reaches it any more, and it does nothing. What it knew is lost.
    pub fn unplug(&mut self, host: &mut dyn Host) {
        self.call(host, || Call::Unplug, Logic::unplug, nothing);
    }

    /// The device is plugged into its slot, where it finds power.
    pub fn plug(&mut self, host: &mut dyn Host) {
        self.call(host, || Call::Plug, Logic::plug, nothing);
    }

    /// Resets the PCI function: the device forgets all that the driver did.
    pub fn reset(&mut self, host: &mut dyn Host) {
        self.call(host, || Call::Reset, Logic::reset, nothing);
    }

    /// Takes the device's power away and gives it back. It is plugged in then.
    pub fn power_on(&mut self, host: &mut dyn Host) {
        self.call(host, || Call::PowerOn, Logic::power_on, nothing);
    }
}

fn nothing((): &()) -> Outcome {
    Outcome::Nothing
}

fn done<E: ToString>(result: &Result<(), E>) -> Outcome {
    Outcome::Done(result.as_ref().copied().map_err(ToString::to_string))
}

fn memory(found: Result<(), CompStatus>, segments: &[Segment], before: usize) -> Outcome {
    let found = found.map(|()| segments[before..].to_vec());
    Outcome::Memory(found.map_err(Status))
}
