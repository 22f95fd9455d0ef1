// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Who does again what was recorded, and compares.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
    fmt::{self, Display, Formatter},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    Arrival, Call, Config, Delivery, Device, DmaError, Event, Fetched, Host, QpId, Recorder,
    Request, TraceEvent,
};

/// A device that does again what another one did.
#[derive(Debug)]
pub struct Player {
    device: Device,
    script: Arc<Mutex<Script>>,
    /// Work requests that were fetched and have not ended.
    requests: HashMap<(QpId, u64), Box<Request>>,
    /// Deliveries that were begun and have not ended.
    deliveries: HashMap<u64, (Arrival, Delivery)>,
    begun: u64,
}

/// The first place where a device does something else than was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which event it is, from 1.
    pub event: u64,
    /// The call during which it is.
    pub call: Option<String>,
    /// The last time that the device was told.
    pub time: Duration,
    /// What was recorded, if it is not the end.
    pub recorded: Option<String>,
    /// What the device does now, if anything.
    pub found: Option<String>,
}

/// What was recorded of the call at hand.
#[derive(Debug, Default)]
struct Script {
    events: VecDeque<Event<'static>>,
    /// How many events were the same.
    same: u64,
    call: Option<String>,
    time: Duration,
    difference: Option<Difference>,
}

impl Script {
    /// Compares what the device does with what was recorded.
    fn compare(&mut self, found: &Event<'_>) {
        if self.difference.is_some() {
            return;
        }
        match self.events.pop_front() {
            Some(recorded) if recorded == *found => self.same += 1,
            recorded => self.differ(recorded.as_ref(), Some(found)),
        }
    }

    /// What the host is to answer, if that is the next event.
    fn answer<R>(&self, answer: impl FnOnce(&Event<'static>) -> Option<R>) -> Option<R> {
        self.events.front().and_then(answer)
    }

    fn differ(&mut self, recorded: Option<&Event<'_>>, found: Option<&Event<'_>>) {
        let (recorded, found) = match (recorded, found) {
            (Some(Event::Write { data: old, .. }), Some(Event::Write { data: new, .. }))
                if old.len() == new.len() =>
            {
                let at = old.iter().zip(new.iter()).position(|(old, new)| old != new);
                let byte = |event: &Event<'_>, data: &Cow<'_, [u8]>| match at {
                    Some(at) => format!("{event}, of which byte {at} is {:#04x}", data[at]),
                    None => event.to_string(),
                };
                let recorded = recorded.map(|event| byte(event, old));
                (recorded, found.map(|event| byte(event, new)))
            }
            _ => (
                recorded.map(ToString::to_string),
                found.map(ToString::to_string),
            ),
        };
        self.difference = Some(Difference {
            event: self.same + 1,
            call: self.call.clone(),
            time: self.time,
            recorded,
            found,
        });
    }
}

fn lock(script: &Mutex<Script>) -> MutexGuard<'_, Script> {
    // A device that panics does so while nobody has it.
    script.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Player {
    /// A device that was just powered on, as was that whose recording is to be played.
    pub fn new(config: Config) -> Self {
        let script = Arc::new(Mutex::new(Script::default()));
        let mut device = Device::new(config);
        device.record(Box::new(Comparer(Arc::clone(&script))));
        Self {
            device,
            script,
            requests: HashMap::new(),
            deliveries: HashMap::new(),
            begun: 0,
        }
    }

    /// How many events were the same so far.
    pub fn same(&self) -> u64 {
        lock(&self.script).same
    }

    /// Where it is: the number of the next event, the call, and the last time that the device was told.
    pub fn place(&self) -> (u64, Option<String>, Duration) {
        let script = lock(&self.script);
        (script.same + 1, script.call.clone(), script.time)
    }

    /// Does again what was recorded: whole calls, of which the last may lack its end.
    ///
    /// # Errors
    ///
    /// The device does something else, and all that follows would mean nothing.
    pub fn play(&mut self, events: Vec<Event<'static>>) -> Result<(), Difference> {
        lock(&self.script).events = events.into();
        loop {
            let call = {
                let mut script = lock(&self.script);
                let call = match script.events.front() {
                    None => return Ok(()),
                    Some(Event::Call(call)) => call.clone(),
                    Some(_) => {
                        let recorded = script.events.pop_front();
                        script.call = None;
                        script.differ(recorded.as_ref(), None);
                        return script.difference.clone().map_or(Ok(()), Err);
                    }
                };
                script.call = Some(call.to_string());
                script.time = call.now().unwrap_or(script.time);
                call
            };
            let known = self.perform(call);
            let mut script = lock(&self.script);
            if let Some(difference) = &script.difference {
                return Err(difference.clone());
            }
            if !known {
                let recorded = script.events.pop_front();
                script.differ(recorded.as_ref(), None);
                return script.difference.clone().map_or(Ok(()), Err);
            }
        }
    }

    /// Calls the device. Returns whether there is what the call is about.
    fn perform(&mut self, call: Call) -> bool {
        let host = &mut Substitute(Arc::clone(&self.script));
        let device = &mut self.device;
        let at = Duration::from_nanos;
        let segments = &mut Vec::new();
        match call {
            Call::WriteRegister { now, offset, value } => {
                device.write_register(host, at(now), offset, value);
            }
            Call::WriteDoorbell { offset, value } => device.write_doorbell(host, offset, value),
            Call::Run { now } => {
                device.run(host, at(now));
            }
            Call::Fetch => {
                if let Fetched::Request(request) = device.fetch(host) {
                    self.requests.insert((request.qp, request.id), request);
                }
            }
            Call::Complete {
                qp,
                request,
                status,
            } => {
                device.complete_by_id(host, qp, request, status);
                self.requests.remove(&(qp, request));
            }
            Call::Gather {
                qp,
                request,
                offset,
                length,
            } => {
                let Some(request) = self.requests.get(&(qp, request)) else {
                    return false;
                };
                let _ = device.gather(request, offset, length, segments);
            }
            Call::Scatter {
                qp,
                request,
                offset,
                length,
            } => {
                let Some(request) = self.requests.get(&(qp, request)) else {
                    return false;
                };
                let _ = device.scatter(request, offset, length, segments);
            }
            Call::GatherForPeer { qp, memory, length } => {
                let _ = device.gather_for_peer(qp, memory, length, segments);
            }
            Call::Deliver(arrival) => {
                if let Ok(delivery) = device.deliver(host, &arrival, segments) {
                    self.deliveries.insert(self.begun, (arrival, delivery));
                    self.begun += 1;
                }
            }
            Call::Delivered { delivery, written } => {
                let Some((arrival, delivery)) = self.deliveries.remove(&delivery) else {
                    return false;
                };
                let _ = device.delivered(host, &arrival, delivery, written);
            }
            Call::Cancel { delivery } => {
                let Some((_, delivery)) = self.deliveries.remove(&delivery) else {
                    return false;
                };
                device.cancel(delivery);
            }
            Call::ReadServed { qp } => device.read_served(host, qp),
            Call::Count(event) => device.count(event),
            Call::PostEvent {
                now,
                group,
                syndrome,
            } => device.post_event(host, at(now), group, syndrome),
            Call::PostEventLate {
                group,
                syndrome,
                after_commands,
            } => device.post_event_late(group, syndrome, after_commands),
            Call::PostCompletionEvent { eqn, cqn } => {
                let _ = device.post_completion_event(host, eqn, cqn);
            }
            Call::Storm {
                group,
                syndrome,
                count,
            } => {
                let _ = device.storm(group, syndrome, count);
            }
            Call::StormOfCompletionEvents { eqn, cqn, count } => {
                let _ = device.storm_of_completion_events(eqn, cqn, count);
            }
            Call::Inject(rule) => {
                device.inject(*rule);
            }
            Call::Release { name, count } => {
                device.release(&name, count);
            }
            Call::Set(overrides) => device.set(*overrides),
            Call::Clear => device.clear(),
            Call::FailQp { qp } => {
                let _ = device.fail_qp(host, qp);
            }
            Call::Die { now, death } => device.die(host, at(now), death),
            Call::Unplug => device.unplug(host),
            Call::Plug => device.plug(host),
            Call::Reset => device.reset(host),
            Call::PowerOn => device.power_on(host),
        }
        true
    }
}

/// Compares what a device does with what was recorded.
#[derive(Debug)]
struct Comparer(Arc<Mutex<Script>>);

impl Recorder for Comparer {
    fn note(&mut self, event: &Event<'_>) {
        lock(&self.0).compare(event);
    }
}

/// Answers for the host that was there.
struct Substitute(Arc<Mutex<Script>>);

impl Substitute {
    fn answer<R>(&self, answer: impl FnOnce(&Event<'static>) -> Option<R>) -> Option<R> {
        lock(&self.0).answer(answer)
    }
}

impl Host for Substitute {
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let length = buffer.len();
        let read = self.answer(|event| match event {
            Event::Read {
                data, mapped: true, ..
            } if data.len() == length => {
                buffer.copy_from_slice(data);
                Some(())
            }
            _ => None,
        });
        read.ok_or(DmaError { address, length })
    }

    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        let length = data.len();
        let written = self.answer(|event| match event {
            Event::Write { mapped, .. } => mapped.then_some(()),
            _ => None,
        });
        written.ok_or(DmaError { address, length })
    }

    fn is_bus_master(&self) -> bool {
        let may = self.answer(|event| match event {
            Event::BusMaster(may) => Some(*may),
            _ => None,
        });
        may.unwrap_or(true)
    }

    fn now(&self) -> Option<Duration> {
        self.answer(|event| match event {
            Event::Time(now) => now.map(Duration::from_nanos),
            _ => None,
        })
    }

    fn read_device_memory(&mut self, _: u64, buffer: &mut [u8]) {
        let length = buffer.len();
        let read = self.answer(|event| match event {
            Event::DeviceMemory { data, .. } if data.len() == length => {
                buffer.copy_from_slice(data);
                Some(())
            }
            _ => None,
        });
        if read.is_none() {
            buffer.fill(0);
        }
    }

    fn interrupt(&mut self, _: u16) {}

    fn trace(&mut self, _: &TraceEvent) {}
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "event {}, at {:.6} s",
            self.event,
            self.time.as_secs_f64()
        )?;
        if let Some(call) = &self.call {
            write!(f, ", in `{call}`")?;
        }
        let recorded = self
            .recorded
            .as_deref()
            .unwrap_or("nothing, as the recording ends");
        let found = self.found.as_deref().unwrap_or("nothing");
        write!(f, ": recorded is `{recorded}`, and now it is `{found}`")
    }
}
