// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device as its host sees it: registers, doorbells and time.

mod life;
mod storms;

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use efa_hw::{
    admin::{AcqEntry, AqEntry, Command, Opcode, Protocol},
    aenq::AenqGroup,
    features::GetFeature,
    io::CompStatus,
    regs::{
        AqCaps, DevCtl, DevSts, EqDb, EventRingCaps, IntrMask, MmioRegRead, ReadlessResponse,
        Register, ResetReason, Version,
    },
    stats::GetStats,
    wire::At,
};

use self::storms::AllStorms;
use crate::{
    Arrival, Config, Counters, DmaError, Host, Landing, Overrides, Payload, ProtocolError, QpId,
    Queue, QueueError, Refusal, Request, Rule, RuleId, Segment, State, Then, TraceEvent,
    TransportEvent,
    admin_queue::{AdminQueue, Pending},
    aenq::Aenq,
    bars::{Bars, Doorbell},
    death::{Dead, FailedReset, StrayWrites},
    faults::{Faults, Occasion},
    firmware::{Failure, Firmware},
    late::{Answer, Late},
    registers::Registers,
    reset::Reset,
    resources::Resources,
    ring::{EventRing, SubmissionRing},
    state::HostInfoState,
    statistics::{Statistics, packets},
};

/// How many resets are remembered.
const MAX_RESETS: usize = 1024;

/// From this version on, completions have a checksum.
const CHECKSUM_VERSION: Version = Version { major: 0, minor: 2 };

/// Value of a register that does not exist.
const NO_VALUE: u32 = u32::MAX;

/// An EFA device.
///
/// All times are times of one monotonic clock, which may start anywhere.
#[derive(Debug)]
pub struct Device {
    config: Config,
    overrides: Overrides,
    firmware: Firmware,
    registers: Registers,
    reset: Reset,
    /// Whether the reset in progress is one that never ends.
    never_ends: bool,
    admin: AdminQueue,
    aenq: Aenq,
    interrupts: Interrupts,
    fatal_error: bool,
    /// Whether it is in its slot.
    plugged: bool,
    /// If it has died.
    dead: Option<Dead>,
    stray_writes: StrayWrites,
    late: Late,
    storms: AllStorms,
    faults: Faults,
    resets: VecDeque<String>,
    function_resets: u64,
    register_reads: u64,
    doorbells: u64,
    /// Whether programs may not know yet that a reset has ended their queues.
    stale: bool,
    stale_doorbells: u64,
    commands_when_fatal: u64,
    protocol_errors: u64,
}

/// Interrupts of the admin queues.
#[derive(Debug, Default)]
struct Interrupts {
    masked: bool,
    /// Vectors that would have been raised if they were not masked.
    pending: BTreeSet<u16>,
}

impl Interrupts {
    fn raise(&mut self, host: &mut dyn Host, vector: u16) {
        if self.masked {
            self.pending.insert(vector);
        } else {
            host.interrupt(vector);
        }
    }

    /// Masks or unmasks. What came while masked is not lost.
    fn mask(&mut self, host: &mut dyn Host, masked: bool) {
        self.masked = masked;
        if !masked {
            for vector in std::mem::take(&mut self.pending) {
                host.interrupt(vector);
            }
        }
    }
}

impl Device {
    /// Makes a device that was just powered on.
    pub fn new(config: Config) -> Self {
        let attributes = config.attributes();
        Self {
            overrides: Overrides::default(),
            firmware: Firmware {
                bars: Bars::new(&attributes),
                attributes,
                vectors: config.vectors,
                resources: Resources::default(),
                statistics: Statistics::default(),
                aenq_groups: 0,
                host_info: None,
                requests: VecDeque::new(),
                complaints: Vec::new(),
            },
            config,
            registers: Registers::default(),
            reset: Reset::default(),
            never_ends: false,
            admin: AdminQueue::default(),
            aenq: Aenq::default(),
            interrupts: Interrupts::default(),
            fatal_error: false,
            plugged: true,
            dead: None,
            stray_writes: StrayWrites::default(),
            late: Late::default(),
            storms: AllStorms::default(),
            faults: Faults::default(),
            resets: VecDeque::new(),
            function_resets: 0,
            register_reads: 0,
            doorbells: 0,
            stale: false,
            stale_doorbells: 0,
            commands_when_fatal: 0,
            protocol_errors: 0,
        }
    }

    /// How the device was made.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// BAR of the doorbells, as the device was made.
    pub fn doorbell_bar(&self) -> u16 {
        self.config.attributes().db_bar
    }

    /// Bytes of the doorbell BAR, a power of two.
    pub fn doorbell_bar_size(&self) -> u64 {
        self.firmware.bars.doorbell_size()
    }

    /// Bytes of the memory BAR, a power of two.
    pub fn memory_bar_size(&self) -> u64 {
        self.firmware.bars.memory_size()
    }

    /// Writes a register in BAR 0.
    pub fn write_register(&mut self, host: &mut dyn Host, now: Duration, offset: u64, value: u32) {
        if !self.plugged {
            return;
        }
        let register = u16::try_from(offset)
            .ok()
            .and_then(|offset| Register::try_from(offset).ok());
        match register {
            None => self.protocol_error(host, ProtocolError::NoRegister { offset, value }),
            Some(Register::DevCtl) => self.control(host, now, value),
            Some(Register::MmioRegRead) => self.read_register(host, now, value),
            Some(register @ (Register::MmioRespLo | Register::MmioRespHi)) => {
                self.registers.write(register, value);
            }
            Some(register) if self.reset.is_started() => {
                self.protocol_error(host, ProtocolError::DuringReset { register, value });
            }
            Some(register) => {
                self.commands_when_fatal +=
                    u64::from(self.fatal_error && register == Register::AqProdDb);
                // A dead device takes note of nothing.
                if self.is_alive() {
                    self.write(host, now, register, value);
                }
            }
        }
    }

    /// Writes a doorbell, given by its offset in the doorbell BAR.
    pub fn write_doorbell(&mut self, host: &mut dyn Host, offset: u64, value: u32) {
        if !self.is_alive() {
            return;
        }
        let rung = match self.firmware.bars.find(offset) {
            None => Err(ProtocolError::NoDoorbell { offset }),
            Some((uar, doorbell)) => {
                self.doorbells += 1;
                match doorbell {
                    Doorbell::Sq(qp) => self.firmware.ring_send_queue(host, uar, qp, value),
                    Doorbell::Rq(qp) => self.firmware.ring_receive_queue(host, uar, qp, value),
                    Doorbell::Cq(cq) => self.firmware.resources.ring_cq(host, uar, cq, value),
                }
            }
        };
        match rung {
            Ok(()) => {}
            Err(ProtocolError::NoDoorbell { .. } | ProtocolError::ForeignDoorbell { .. })
                if self.stale =>
            {
                self.stale_doorbells += 1;
            }
            Err(error) => self.protocol_error(host, error),
        }
        self.complain(host);
    }

    /// Takes the next work request, for the transport to carry out.
    pub fn next_request(&mut self) -> Option<Request> {
        self.firmware.requests.pop_front()
    }

    /// Whether a queue pair still is what it was when it was looked at.
    pub fn is_current(&self, qp: QpId) -> bool {
        self.is_alive() && self.firmware.resources.qps.current(qp).is_some()
    }

    /// Ends a work request. If its queue pair is not what it was, it has been ended before.
    pub fn finish(&mut self, host: &mut dyn Host, request: &Request, status: CompStatus) {
        if !self.is_alive() {
            return;
        }
        self.firmware.finish(host, request.qp, request.id, status);
        self.complain(host);
    }

    /// Finds the part of a request's data that starts at `offset`, to send it.
    ///
    /// # Errors
    ///
    /// How the request ends if the data can't be had.
    pub fn gather<'a>(
        &self,
        request: &'a Request,
        offset: u32,
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<Payload<'a>, CompStatus> {
        self.check_alive(CompStatus::Flushed)?;
        self.firmware.gather(request, offset, length, segments)
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
        self.check_alive(CompStatus::Flushed)?;
        let mtu = self.mtu();
        self.firmware.statistics.count_packets(length, mtu);
        self.firmware.scatter(request, offset, length, segments)
    }

    /// Finds memory, given by remote key and address, that a peer wants to read.
    ///
    /// # Errors
    ///
    /// How the peer's request ends if it can't be had.
    pub fn gather_for_peer(
        &mut self,
        qp: QpId,
        memory: (u32, u64),
        length: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), CompStatus> {
        self.check_alive(CompStatus::RemoteAbort)?;
        self.firmware.statistics.count_read_response(length);
        self.firmware.gather_for_peer(qp, memory, length, segments)
    }

    /// Finds where something from a peer goes.
    ///
    /// # Errors
    ///
    /// It is not taken. What there is to tell the program has been told.
    pub fn land(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        segments: &mut Vec<Segment>,
    ) -> Result<Landing, Refusal> {
        self.check_alive(Refusal::Drop)?;
        let landing = self.firmware.land(host, arrival, segments);
        self.complain(host);
        landing
    }

    /// Takes note that a payload is where it belongs, or that it could not be written there.
    ///
    /// # Errors
    ///
    /// It is not taken, because of the latter.
    pub fn landed(
        &mut self,
        host: &mut dyn Host,
        arrival: &Arrival,
        landing: &Landing,
        written: Result<(), DmaError>,
    ) -> Result<(), Refusal> {
        self.check_alive(Refusal::Drop)?;
        let landed = self.firmware.landed(host, arrival, landing, written);
        self.complain(host);
        landed
    }

    /// Takes note that a peer has all that it wanted to read by a queue pair.
    pub fn served_read(&mut self, host: &mut dyn Host, qp: QpId) {
        if !self.is_alive() {
            return;
        }
        self.firmware.served_read(host, qp);
        self.complain(host);
    }

    /// Counts what the transport did for the device.
    pub fn count(&mut self, event: TransportEvent) {
        let mtu = self.mtu();
        self.firmware.statistics.count_transport(event, mtu);
    }

    /// Address of the device.
    pub fn address(&self) -> [u8; 16] {
        self.firmware.attributes.address
    }

    /// Most bytes of payload in one packet.
    pub fn mtu(&self) -> u32 {
        self.firmware.attributes.mtu
    }

    /// How many packets so many bytes of payload take.
    pub fn packets(&self, length: u32) -> u32 {
        packets(length, self.mtu())
    }

    /// Does what is due, and returns when something will be due next.
    ///
    /// To be called when that time has come, and after each other call that takes the time, which
    /// may have made something due earlier.
    pub fn run(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        self.complain(host);
        if !self.is_alive() {
            return self.stray(host, now);
        }
        self.complete(host, now);
        self.blow(host, now);
        let keep_alive = self.keep_alive(host, now);
        self.admin.next_due().into_iter().chain(keep_alive).min()
    }

    /// What the device is like now.
    pub fn state(&self) -> State {
        let (fast_regs, fast_invs) = self.firmware.statistics.region_changes();
        State {
            ready: self.firmware.attributes.ready,
            resets: self.resets.iter().cloned().collect(),
            function_resets: self.function_resets,
            fatal_error: self.fatal_error,
            plugged: self.plugged,
            dead: self.dead.is_some(),
            stray_writes: self.stray_writes.done,
            stray_writes_refused: self.stray_writes.refused,
            late: self.late.len(),
            storm: self.storms.left(),
            dma_after_reset: self.stray_writes.after_reset,
            resources: self.firmware.resources.counts(),
            admin: self.admin.state(),
            host_info: self.firmware.host_info.as_ref().map(HostInfoState::from),
            aenq_groups: self.firmware.aenq_groups,
            events: self.aenq.posted,
            armed_eqs: self.firmware.resources.armed_eqs(),
            register_reads: self.register_reads,
            doorbells: self.doorbells,
            stale_doorbells: self.stale_doorbells,
            commands_when_fatal: self.commands_when_fatal,
            protocol_errors: self.protocol_errors,
            fast_regs,
            fast_invs,
            faults: self.faults.len(),
            faults_hit: self.faults.hits(),
        }
    }

    /// All counters of the statistics.
    pub fn counters(&self) -> Counters {
        self.firmware.statistics.counters()
    }

    /// Adds a rule for a fault.
    pub fn inject(&mut self, rule: Rule) -> RuleId {
        self.faults.inject(rule)
    }

    /// Replaces attributes.
    pub fn set(&mut self, overrides: Overrides) {
        self.overrides.merge(overrides);
        self.firmware.attributes = self.config.attributes();
        self.overrides.apply(&mut self.firmware.attributes);
    }

    /// Removes all rules and replacements, and answers and events that are still to come; a reset that would never have ended ends, and
    /// the next one revives a dead device.
    pub fn clear(&mut self) {
        if let Some(dead) = &mut self.dead {
            dead.heal();
        }
        self.faults.clear();
        self.late = Late::default();
        self.storms = AllStorms::default();
        self.overrides = Overrides::default();
        self.firmware.attributes = self.config.attributes();
        if self.reset == Reset::Ended(None) {
            self.reset = Reset::Ended(Some(Duration::ZERO));
        }
    }

    /// Posts an asynchronous event, whether or not the driver wants its group. A fatal error also
    /// shows in the device's status.
    pub fn post_event(&mut self, host: &mut dyn Host, now: Duration, group: u16, syndrome: u16) {
        if !self.is_alive() {
            return;
        }
        if group == u16::from(AenqGroup::FatalError) {
            self.fatal_error = true;
        }
        self.tell(host, now, group, syndrome);
    }

    /// The same in the session after the next reset, when that has completed so many commands. It does not show in the
    /// device's status, which it is too late for.
    pub fn post_event_late(&mut self, group: u16, syndrome: u16, after_commands: u64) {
        self.late
            .keep(Answer::Event { group, syndrome }, after_commands);
    }

    /// Posts an asynchronous event.
    fn tell(&mut self, host: &mut dyn Host, now: Duration, group: u16, syndrome: u16) {
        let vector = self
            .aenq
            .post(host, now, group, syndrome)
            .unwrap_or_else(|error| {
                self.protocol_error(host, error.into());
                None
            });
        host.trace(&TraceEvent::Event {
            group,
            syndrome,
            posted: vector.is_some(),
        });
        if let Some(vector) = vector {
            self.interrupts.raise(host, vector);
        }
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
        let vector = self.firmware.resources.post_event(host, eqn, cqn)?;
        if let Some(vector) = vector {
            host.interrupt(vector);
        }
        Ok(())
    }

    /// Reads bytes of a queue in host memory.
    ///
    /// # Errors
    ///
    /// There is no such queue, it is not so large, or its memory can't be read.
    pub fn peek(
        &self,
        host: &mut dyn Host,
        queue: Queue,
        offset: u64,
        data: &mut [u8],
    ) -> Result<(), QueueError> {
        let place = self.firmware.resources.place(queue)?;
        let address = place.part(queue, offset, data.len())?;
        Ok(host.dma_read(address, data)?)
    }

    /// Writes bytes of a queue in host memory.
    ///
    /// # Errors
    ///
    /// There is no such queue, it is not so large, or its memory can't be written.
    pub fn poke(
        &self,
        host: &mut dyn Host,
        queue: Queue,
        offset: u64,
        data: &[u8],
    ) -> Result<(), QueueError> {
        let place = self.firmware.resources.place(queue)?;
        let address = place.part(queue, offset, data.len())?;
        Ok(host.dma_write(address, data)?)
    }

    /// Reports what the data path met.
    fn complain(&mut self, host: &mut dyn Host) {
        for error in std::mem::take(&mut self.firmware.complaints) {
            self.protocol_error(host, error);
        }
    }

    fn protocol_error(&mut self, host: &mut dyn Host, error: ProtocolError) {
        // A driver may stop a device like that at any time.
        if matches!(error, ProtocolError::Dma(_)) && !host.is_bus_master() {
            return;
        }
        self.protocol_errors += 1;
        host.trace(&TraceEvent::ProtocolError(error));
    }

    /// Forgets all that the driver did.
    fn forget(&mut self) {
        self.stale |= self.firmware.resources.counts().uar > 0;
        self.firmware.reset();
        self.registers = Registers::default();
        self.admin.reset();
        self.aenq = Aenq::default();
        self.interrupts = Interrupts::default();
        self.fatal_error = false;
        self.doorbells = 0;
        self.late.reset();
        self.storms = AllStorms::default();
    }

    /// Writes a register that can be used only while there is no reset.
    fn write(&mut self, host: &mut dyn Host, now: Duration, register: Register, value: u32) {
        match register {
            Register::Version | Register::ControllerVersion | Register::Caps | Register::DevSts => {
                self.protocol_error(host, ProtocolError::ReadOnly { register, value });
            }
            Register::AqCaps => {
                let base = self.registers.aq_base.get();
                let protocol = Protocol::of(self.version());
                let ring = SubmissionRing::new(base, AqCaps::from_raw(value), protocol);
                self.check_ring(host, register, value, base, ring.is_some());
                self.admin.submission = ring;
            }
            Register::AcqCaps => {
                let base = self.registers.acq_base.get();
                let caps = EventRingCaps::from_raw(value);
                let ring = EventRing::new(base, caps, self.firmware.vectors);
                self.check_ring(host, register, value, base, ring.is_some());
                self.admin.completion = ring;
            }
            Register::AenqCaps => {
                let base = self.registers.aenq_base.get();
                let caps = EventRingCaps::from_raw(value);
                let ring = EventRing::new(base, caps, self.firmware.vectors);
                self.check_ring(host, register, value, base, ring.is_some());
                self.aenq.configure(ring);
            }
            Register::AqProdDb => {
                self.fetch(host, now, value);
                self.complete(host, now);
            }
            Register::AenqConsDb => {
                if !self.aenq.consume(value) {
                    self.protocol_error(host, ProtocolError::Consumer { consumed: value });
                }
            }
            Register::IntrMask => {
                self.interrupts.mask(host, IntrMask::from_raw(value).masked);
            }
            Register::EqDb => {
                let doorbell = EqDb::from_raw(value);
                match self.firmware.resources.arm_eq(doorbell.eqn) {
                    None => {
                        let eqn = doorbell.eqn;
                        self.protocol_error(host, ProtocolError::NoEventQueue { eqn });
                    }
                    Some(None) => {}
                    Some(Some(vector)) => host.interrupt(vector),
                }
            }
            _ => {
                self.registers.write(register, value);
            }
        }
    }

    /// Version of the admin interface.
    fn version(&self) -> Version {
        Version::from_raw(self.firmware.attributes.version)
    }

    fn check_ring(
        &mut self,
        host: &mut dyn Host,
        register: Register,
        value: u32,
        base: u64,
        possible: bool,
    ) {
        if !possible {
            self.protocol_error(
                host,
                ProtocolError::Ring {
                    register,
                    value,
                    base,
                },
            );
        }
    }

    /// Starts or ends a reset.
    fn control(&mut self, host: &mut dyn Host, now: Duration, value: u32) {
        let control = DevCtl::from_raw(value);
        let done = now.saturating_add(Duration::from_millis(
            self.firmware.attributes.reset_ms.into(),
        ));
        match (control.dev_reset, control.aq_restart, self.reset) {
            (true, false, _) => {
                let fault = self.faults.hit(Occasion::Reset).unwrap_or_default();
                self.suffer(host, now, Some(&fault));
                if !self.plugged {
                    return;
                }
                if fault.with_event {
                    self.post_event(host, now, AenqGroup::KeepAlive.into(), 0);
                }
                let failure = self.revive();
                let never_starts = fault.never_starts || failure == Some(FailedReset::NeverStarts);
                self.reset = Reset::Started(if never_starts { None } else { Some(done) });
                self.never_ends = fault.never_ends || failure == Some(FailedReset::NeverEnds);
                let reason = control.reset_reason;
                let name = match ResetReason::try_from(reason) {
                    Ok(reason) => reason.name().to_owned(),
                    Err(_) => {
                        self.protocol_error(host, ProtocolError::ResetReason { reason });
                        reason.to_string()
                    }
                };
                host.trace(&TraceEvent::Reset {
                    reason: name.clone(),
                });
                if self.resets.len() == MAX_RESETS {
                    self.resets.pop_front();
                }
                self.resets.push_back(name);
            }
            (false, false, Reset::Started(_)) => {
                self.reset = Reset::Ended(if self.never_ends { None } else { Some(done) });
                host.trace(&TraceEvent::ResetEnd);
            }
            _ => self.protocol_error(host, ProtocolError::Control { value }),
        }
    }

    /// Value of a register as the driver reads it.
    fn register_value(&self, now: Duration, register: Register) -> u32 {
        let attributes = &self.firmware.attributes;
        match register {
            Register::Version => attributes.version,
            Register::ControllerVersion => attributes.controller_version,
            Register::Caps => attributes.caps().into_raw(),
            Register::DevSts => DevSts {
                ready: attributes.ready,
                aq_restart_in_progress: false,
                aq_restart_finished: false,
                reset_in_progress: self.reset.in_progress(now),
                reset_finished: self.reset.is_finished(now),
                fatal_error: self.fatal_error,
            }
            .into_raw(),
            // The others are for the device to read.
            _ => NO_VALUE,
        }
    }

    /// Answers a register read.
    fn read_register(&mut self, host: &mut dyn Host, now: Duration, value: u32) {
        let MmioRegRead { req_id, reg_off } = MmioRegRead::from_raw(value);
        let address = self.registers.mmio_resp.get();
        if address == 0 {
            self.protocol_error(host, ProtocolError::NoResponseAddress { offset: reg_off });
            return;
        }
        self.register_reads += 1;
        let register = Register::try_from(reg_off).ok();
        let occasion = Occasion::Register(register);
        let fault = self.faults.hit(occasion).unwrap_or_default();
        self.suffer(host, now, Some(&fault));
        let actual = match register {
            Some(register) => self.register_value(now, register),
            None => {
                self.protocol_error(host, ProtocolError::NoSuchRegister { offset: reg_off });
                NO_VALUE
            }
        };
        let reg_val = fault.value.unwrap_or(actual);
        host.trace(&TraceEvent::RegisterRead {
            offset: reg_off,
            value: (!fault.silence && self.plugged).then_some(reg_val),
        });
        if fault.silence || !self.plugged {
            return;
        }
        let response = ReadlessResponse {
            req_id: req_id.wrapping_add(u16::from(fault.wrong_req_id)),
            reg_off: reg_off.wrapping_add(if fault.wrong_offset { 4 } else { 0 }),
            reg_val,
        };
        // The id last: the driver waits for it.
        let (id, rest) = {
            let bytes = response.encode();
            (At::<0>::load::<2, 8>(&bytes), At::<2>::load::<6, 8>(&bytes))
        };
        let written = host
            .dma_write(address.wrapping_add(2), &rest)
            .and_then(|()| host.dma_write(address, &id));
        if let Err(error) = written {
            self.protocol_error(host, error.into());
        }
    }

    /// Fetches and executes the commands that are new, given how many were ever submitted.
    fn fetch(&mut self, host: &mut dyn Host, now: Duration, submitted: u32) {
        let room = self.admin.room();
        let Some(ring) = self
            .admin
            .submission
            .as_ref()
            .filter(|_| self.admin.completion.is_some())
        else {
            self.protocol_error(host, ProtocolError::NoQueue);
            return;
        };
        // CAST: the register counts modulo 2^16.
        let news = ring.news(submitted as u16);
        let room = room.min(ring.depth().into());
        if usize::from(news) > room {
            let submitted = news;
            self.protocol_error(host, ProtocolError::Overflow { submitted, room });
            return;
        }
        for _ in 0..news {
            let Some(ring) = self
                .admin
                .submission
                .as_mut()
                .filter(|_| self.plugged && self.dead.is_none())
            else {
                return;
            };
            match ring.fetch(host) {
                Ok((entry, true)) => self.execute(host, now, entry),
                Ok((entry, false)) => {
                    let command_id = entry.header().command_id.id;
                    self.protocol_error(host, ProtocolError::Phase { command_id });
                }
                Err(error) => self.protocol_error(host, error.into()),
            }
        }
    }

    /// Executes a command; it completes now or later.
    fn execute(&mut self, host: &mut dyn Host, now: Duration, command: AqEntry) {
        let fault = self.faults.hit(occasion(&command));
        if fault.as_ref().is_some_and(Then::is_fatal) {
            let in_flight = self.admin.state().in_flight + 1;
            host.trace(&TraceEvent::Command {
                command,
                completion: None,
                in_flight,
                injected: true,
            });
            self.suffer(host, now, fault.as_ref());
            return;
        }
        self.stale = false;
        let injected = fault
            .as_ref()
            .and_then(|fault| fault.status)
            .filter(|status| status.0 != 0);
        let result = match injected {
            Some(status) => Err(status.0),
            None => self.firmware.execute(host, &command).map_err(|failure| {
                if let Failure::Dma(error) = failure {
                    self.protocol_error(host, error.into());
                }
                failure.status().into()
            }),
        };
        self.complain(host);
        let (status, response) = match result {
            Ok(response) => (0, response),
            Err(status) => (status, [0; 64]),
        };
        let delay = fault.as_ref().and_then(|fault| fault.delay_ms).unwrap_or(0);
        self.admin.submit(
            now.saturating_add(Duration::from_millis(delay)),
            Pending {
                command,
                status,
                response,
                fault,
            },
        );
    }

    /// Completes the commands that are due.
    fn complete(&mut self, host: &mut dyn Host, now: Duration) {
        let mut interrupt = false;
        loop {
            let in_flight = self.admin.state().in_flight;
            let Some(pending) = self.admin.take_due(now) else {
                break;
            };
            if let Some(after_commands) = pending.fault.as_ref().and_then(Then::late) {
                self.trace_command(host, &pending, None, in_flight);
                let answer = Answer::Completion(Box::new(pending));
                self.late.keep(answer, after_commands);
                continue;
            }
            let silent = pending.fault.as_ref().is_some_and(|fault| fault.silence);
            if silent {
                self.trace_command(host, &pending, None, in_flight);
                continue;
            }
            interrupt |= self.write_completion(host, &pending, in_flight);
            self.late.completed();
        }
        let (completions, events) = (self.admin.place().is_some(), self.aenq.place().is_some());
        while let Some(answer) = self.late.take_due(completions, events) {
            match answer {
                Answer::Completion(pending) => {
                    let in_flight = self.admin.state().in_flight;
                    interrupt |= self.write_completion(host, &pending, in_flight);
                }
                Answer::Event { group, syndrome } => self.tell(host, now, group, syndrome),
            }
        }
        if interrupt {
            if let Some(ring) = &self.admin.completion {
                self.interrupts.raise(host, ring.vector());
            }
        }
    }

    /// Writes the completion of a command, and returns whether it is to interrupt.
    fn write_completion(
        &mut self,
        host: &mut dyn Host,
        pending: &Pending,
        in_flight: usize,
    ) -> bool {
        let with_checksum = self.version() >= CHECKSUM_VERSION;
        let completion = self.admin.complete(host, pending, with_checksum);
        let completion = completion.map_err(|error| self.protocol_error(host, error.into()));
        self.trace_command(host, pending, completion.ok(), in_flight);
        !pending
            .fault
            .as_ref()
            .is_some_and(|fault| fault.no_interrupt)
    }

    fn trace_command(
        &self,
        host: &mut dyn Host,
        pending: &Pending,
        completion: Option<AcqEntry>,
        in_flight: usize,
    ) {
        host.trace(&TraceEvent::Command {
            command: pending.command,
            completion,
            in_flight,
            injected: pending.fault.is_some(),
        });
    }

    /// Posts a keep-alive event if one is due, and returns when the next one will be.
    fn keep_alive(&mut self, host: &mut dyn Host, now: Duration) -> Option<Duration> {
        let period = self.firmware.attributes.keep_alive_ms;
        let wanted = period != 0 && self.firmware.aenq_groups & AenqGroup::KeepAlive.mask() != 0;
        let period = wanted.then(|| Duration::from_millis(period.into()));
        let (due, next) = self.aenq.keep_alive(now, period);
        if due {
            self.post_event(host, now, AenqGroup::KeepAlive.into(), 0);
        }
        next
    }
}

/// What the rules see of a command.
fn occasion(entry: &AqEntry) -> Occasion {
    let request = entry.request();
    let opcode = request.opcode;
    let selector = match Opcode::try_from(opcode) {
        Ok(Opcode::GetFeature | Opcode::SetFeature) => {
            Some(GetFeature::from_request(&request).feature_id)
        }
        Ok(Opcode::GetStats) => Some(GetStats::from_request(&request).stats_type),
        _ => None,
    };
    Occasion::Command { opcode, selector }
}
