// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A minimal driver over any [bus](Bus), which also checks the device's protocol.

use std::time::Duration;

use efa_fabric::PortId;
use efa_hw::{
    admin::{AcqEntry, AcqHeader, AqEntry, AqRequest, Command, Protocol, Response, Status},
    aenq::AenqEntry,
    checksum,
    features::{AenqConfig, Feature, FeatureId, GetFeature, NetworkAttr, SetFeature},
    regs::{
        AqCaps, Caps, DevCtl, DevSts, EventRingCaps, IntrMask, MmioRegRead, ReadlessResponse, Register, ResetReason,
    },
    stats::{GetStats, Stats},
};
use efa_model::Device;

use crate::{
    bus::{Bus, Memory},
    wait::wait_for,
};

/// Entries of the admin queues.
pub const DEPTH: u16 = 32;

/// Entries of the asynchronous event queue.
pub const AENQ_DEPTH: u16 = 16;

/// A ring that the device writes.
pub struct Ring {
    /// Bus address of the ring.
    pub base: u64,
    depth: u16,
    index: u16,
    phase: bool,
    phase_offset: usize,
}

impl Ring {
    fn new(base: u64, depth: u16, phase_offset: usize) -> Self {
        Self { base, depth, index: 0, phase: true, phase_offset }
    }

    /// Takes the next entry, if there is one.
    pub fn pop(&mut self, memory: &impl Memory) -> Option<[u8; 64]> {
        let entry: [u8; 64] = memory.entry(self.base + u64::from(self.index) * 64);
        if (entry[self.phase_offset] & 1 != 0) != self.phase {
            return None;
        }
        self.index += 1;
        if self.index == self.depth {
            self.index = 0;
            self.phase = !self.phase;
        }
        Some(entry)
    }
}

/// A driver and its device.
pub struct Driver<D: Bus = Device> {
    /// The host's memory.
    pub world: D::Memory,
    /// The device.
    pub device: D,
    /// Port of the device in its network.
    pub port: PortId,
    /// The time, unless the bus uses the host's clock.
    pub now: Duration,
    /// Bus address of the submission queue.
    pub aq: u64,
    /// The completion queue.
    pub acq: Ring,
    /// The asynchronous event queue.
    pub aenq: Ring,
    aenq_consumed: u32,
    /// Bus address of responses to register reads.
    response: u64,
    /// Number of register reads.
    reads: u16,
    submitted: u16,
    next_id: u16,
    /// Format of the commands.
    pub protocol: Protocol,
}

impl<D: Bus> Driver<D> {
    /// Returns a driver that has not accessed its device.
    pub fn over(device: D, mut world: D::Memory) -> Self {
        let [response, aq, acq, aenq] = [(); 4].map(|()| world.allocate(1));
        Self {
            device,
            port: PortId(0),
            now: Duration::from_secs(1),
            aq,
            acq: Ring::new(acq, DEPTH, 3),
            aenq: Ring::new(aenq, AENQ_DEPTH, 4),
            aenq_consumed: 0,
            response,
            reads: 0,
            submitted: 0,
            next_id: 0,
            protocol: Protocol::V1,
            world,
        }
    }

    /// Writes a register.
    pub fn write(&mut self, register: Register, value: u32) {
        self.write_at(u16::from(register).into(), value);
    }

    /// Writes at an offset of BAR 0.
    pub fn write_at(&mut self, offset: u64, value: u32) {
        self.device.write(&mut self.world, self.now, offset, value);
    }

    fn write_address(&mut self, low: Register, high: Register, address: u64) {
        self.write(low, address as u32);
        self.write(high, (address >> 32) as u32);
    }

    /// Rings a doorbell of a queue pair or a completion queue.
    pub fn doorbell(&mut self, offset: u64, value: u32) {
        self.device.doorbell(&mut self.world, offset, value);
    }

    /// Sets the address for responses to register reads.
    pub fn set_response_address(&mut self) {
        self.write_address(Register::MmioRespLo, Register::MmioRespHi, self.response);
    }

    /// Reads a register; returns the whole response, if there is one.
    pub fn read_raw(&mut self, offset: u16) -> Option<ReadlessResponse> {
        self.reads = self.reads.wrapping_add(1);
        let trash = self.reads.wrapping_add(0x9a);
        self.world.store(self.response, &trash.to_le_bytes());
        let request = MmioRegRead { req_id: self.reads, reg_off: offset };
        self.write(Register::MmioRegRead, request.into_raw());
        let response = ReadlessResponse::decode(&self.world.entry(self.response));
        (response.req_id == self.reads).then_some(response)
    }

    /// Reads a register.
    pub fn read(&mut self, register: Register) -> u32 {
        let response = self.read_raw(register.into()).expect("a response");
        assert_eq!(response.reg_off, u16::from(register));
        response.reg_val
    }

    /// Reads the status of the device.
    pub fn status(&mut self) -> DevSts {
        DevSts::from_raw(self.read(Register::DevSts))
    }

    /// Starts a reset.
    pub fn start_reset(&mut self, reason: ResetReason) {
        let control = DevCtl { dev_reset: true, aq_restart: false, reset_reason: reason.into() };
        self.write(Register::DevCtl, control.into_raw());
    }

    /// Resets the device by a driver's sequence.
    pub fn reset(&mut self, reason: ResetReason) {
        self.set_response_address();
        assert!(self.status().ready);
        assert_ne!(Caps::from_raw(self.read(Register::Caps)).reset_timeout, 0);
        self.start_reset(reason);
        self.set_response_address();
        self.wait_for_reset(true);
        self.write(Register::DevCtl, 0);
        self.wait_for_reset(false);
    }

    /// Runs the device until `look` returns a value; returns that value.
    ///
    /// # Panics
    ///
    /// The device becomes idle first, or exceeds our [patience](crate::wait::patience). The message names `what`.
    fn wait<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        let mut is_idle = false;
        wait_for(what, || {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            assert!(!is_idle, "no {what}");
            is_idle = !self.device.advance(&mut self.world, self.now);
            Err("condition is false")
        })
    }

    /// Waits until a reset has begun or has ended.
    pub fn wait_for_reset(&mut self, in_progress: bool) {
        self.wait("begin or end of a reset", |driver| {
            let response = driver.read_raw(Register::DevSts.into())?;
            let status = DevSts::from_raw(response.reg_val);
            (status.reset_in_progress == in_progress).then_some(())
        });
    }

    /// Sets up the admin queues anew, for commands in the driver's format.
    pub fn set_up(&mut self) {
        self.set_up_with([0, 0]);
    }

    /// As [`Self::set_up`], with interrupt vectors of the completion queue and of the event queue.
    pub fn set_up_with(&mut self, vectors: [u8; 2]) {
        self.write_address(Register::AqBaseLo, Register::AqBaseHi, self.aq);
        let caps = AqCaps { depth: DEPTH, entry_size: self.protocol.entry_size() as u16 };
        self.write(Register::AqCaps, caps.into_raw());

        let (acq, aenq) = (self.acq.base, self.aenq.base);
        self.write_address(Register::AcqBaseLo, Register::AcqBaseHi, acq);
        self.write_address(Register::AenqBaseLo, Register::AenqBaseHi, aenq);
        for (register, base, depth, msix_vector) in
            [(Register::AcqCaps, acq, DEPTH, vectors[0]), (Register::AenqCaps, aenq, AENQ_DEPTH, vectors[1])]
        {
            self.world.store(base, &vec![0; 64 * usize::from(depth)]);
            let caps = EventRingCaps { depth, entry_size: 64, msix_vector };
            self.write(register, caps.into_raw());
        }
        self.acq = Ring::new(acq, DEPTH, 3);
        self.aenq = Ring::new(aenq, AENQ_DEPTH, 4);
        self.aenq_consumed = 0;
        self.submitted = 0;
    }

    /// Masks or unmasks the interrupts of the admin queues.
    pub fn mask(&mut self, masked: bool) {
        self.write(Register::IntrMask, IntrMask { masked }.into_raw());
    }

    /// Writes an entry to the submission queue without ringing the doorbell.
    pub fn put(&mut self, entry: &AqEntry) {
        let offset = usize::from(self.submitted % DEPTH) * entry.bytes().len();
        self.world.store(self.aq + offset as u64, entry.bytes());
        self.submitted = self.submitted.wrapping_add(1);
    }

    /// Returns the phase of the next entry.
    pub fn phase(&self) -> bool {
        self.submitted / DEPTH % 2 == 0
    }

    /// Rings the doorbell for all entries of the submission queue.
    pub fn ring(&mut self) {
        self.write(Register::AqProdDb, self.submitted.into());
    }

    /// Builds the next entry.
    pub fn entry(&mut self, request: &AqRequest) -> AqEntry {
        let id = self.next_id;
        self.next_id = (self.next_id + 1) & 0xfff;
        AqEntry::new(self.protocol, request, id, self.phase())
    }

    /// Submits an entry as it is and returns its id.
    pub fn submit_entry(&mut self, entry: &AqEntry) -> u16 {
        self.put(entry);
        self.ring();
        entry.header().command_id.id
    }

    /// Submits a request and returns its id.
    pub fn submit_request(&mut self, request: &AqRequest) -> u16 {
        let entry = self.entry(request);
        self.submit_entry(&entry)
    }

    /// Submits a command and returns its id.
    pub fn submit(&mut self, command: &impl Command) -> u16 {
        self.submit_request(&command.to_request())
    }

    /// Takes the next completion, if there is one: its id, its status and the entry.
    pub fn completion(&mut self) -> Option<(u16, u8, AcqEntry)> {
        let entry = self.acq.pop(&self.world)?;
        let header = AcqHeader::of(&entry);
        Some((header.command_id.id, header.status, entry))
    }

    /// Takes all completions; returns their ids.
    pub fn completed(&mut self) -> Vec<u16> {
        std::iter::from_fn(|| self.completion().map(|(id, ..)| id)).collect()
    }

    /// Waits for the next completion.
    pub fn wait_for_completion(&mut self) -> (u16, u8, AcqEntry) {
        self.wait("completion of a command", Self::completion)
    }

    /// Executes a request and returns status and completion.
    pub fn execute_request(&mut self, request: &AqRequest) -> (u8, AcqEntry) {
        let entry = self.entry(request);
        self.execute_entry(&entry)
    }

    /// Executes an entry as it is and returns status and completion.
    pub fn execute_entry(&mut self, entry: &AqEntry) -> (u8, AcqEntry) {
        let id = self.submit_entry(entry);
        let (completed, status, entry) = self.wait_for_completion();
        assert_eq!(completed, id);
        let version = self.read(Register::Version);
        let checksum = if version >= 2 { checksum::of_entry(&entry) } else { 0 };
        assert_eq!(AcqHeader::of(&entry).checksum, checksum);
        (status, entry)
    }

    /// Executes a command; returns its response or the status of its failure.
    pub fn execute<C: Command>(&mut self, command: &C) -> Result<C::Response, Status> {
        let (status, entry) = self.execute_request(&command.to_request());
        match Status::try_from(status).expect("a known status") {
            Status::Success => Ok(C::Response::from_entry(&entry)),
            status => Err(status),
        }
    }

    /// Reads a feature.
    pub fn feature<F: Feature>(&mut self) -> Result<F, Status> {
        let command = GetFeature { feature_id: F::ID.into(), ..Default::default() };
        self.execute(&command).map(|response| F::from_response(&response))
    }

    /// Reads statistics.
    pub fn statistics<S: Stats>(&mut self) -> Result<S, Status> {
        let command = GetStats { stats_type: S::TYPE.into(), ..Default::default() };
        self.execute(&command).map(|response| S::from_response(&response))
    }

    /// Reads the address of the device.
    pub fn address(&mut self) -> [u8; 16] {
        self.feature::<NetworkAttr>().unwrap().addr
    }

    /// Enables these groups of events, and no others.
    pub fn enable_events(&mut self, groups: u32) {
        let config = AenqConfig { supported_groups: 0, enabled_groups: groups };
        let command =
            SetFeature { feature_id: FeatureId::AenqConfig.into(), data: config.into_setting(), ..Default::default() };
        self.execute(&command).unwrap();
    }

    /// Takes the next event, without acknowledging it.
    pub fn event(&mut self) -> Option<AenqEntry> {
        let entry = self.aenq.pop(&self.world)?;
        self.aenq_consumed += 1;
        Some(AenqEntry::decode(&entry))
    }

    /// Acknowledges all events that were taken.
    pub fn acknowledge_events(&mut self) {
        self.write(Register::AenqConsDb, self.aenq_consumed);
    }
}
