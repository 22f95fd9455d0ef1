// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A host with memory, and the least of a driver: it speaks the device's protocol and checks it.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use efa_hw::{
    admin::{AcqEntry, AcqHeader, AqEntry, AqRequest, Command, Protocol, Response, Status},
    aenq::{AenqEntry, AenqGroup},
    checksum,
    features::{AenqConfig, Feature, FeatureId, GetFeature, SetFeature},
    regs::{
        AqCaps, Caps, DevCtl, DevSts, EventRingCaps, IntrMask, MmioRegRead, ReadlessResponse,
        Register, ResetReason, Version,
    },
    stats::{GetStats, Stats},
};
use efa_model::{Config, Device, DmaError, Host, Profile, TraceEvent};

/// A page of memory, which may be written while others read it.
pub type Page = [AtomicU8; 4096];

/// The outside world of a device.
#[derive(Default)]
pub struct World {
    pages: BTreeMap<u64, Arc<Page>>,
    next_page: u64,
    /// The memory BAR, as far as it was written.
    pub device_memory: Vec<u8>,
    /// Vectors that the device raised.
    pub interrupts: Vec<u16>,
    /// What the device told, one line each.
    pub trace: Vec<String>,
    /// Bytes that the device read and wrote.
    pub dma_bytes: usize,
    /// Where the device wrote to, in this order, if that is to be noted.
    pub writes: Option<Vec<u64>>,
    /// Whether the device may not access memory at all.
    pub dma_is_off: bool,
    /// How many bytes the device had read and written each time that it waited for the end of all copies.
    pub quiesced: Vec<usize>,
}

impl World {
    /// Maps pages that are contiguous and returns their address.
    pub fn map(&mut self, pages: u64) -> u64 {
        // Addresses that need both halves.
        let address = 0x12_3456_0000 + self.next_page * 4096;
        for page in 0..pages {
            self.pages.insert(
                address + page * 4096,
                Arc::new([const { AtomicU8::new(0) }; 4096]),
            );
        }
        // A hole after each mapping shows accesses beyond its end.
        self.next_page += pages + 1;
        address
    }

    /// Takes a page away from the device.
    pub fn unmap(&mut self, address: u64) {
        self.pages.remove(&address);
    }

    /// Gives the parts of each page that an access covers, with their place in the access.
    fn access(
        &mut self,
        address: u64,
        length: usize,
        mut f: impl FnMut(Range<usize>, &[AtomicU8]),
    ) -> Result<(), DmaError> {
        let error = DmaError { address, length };
        self.dma_bytes += length;
        let mut done = 0;
        while done < length {
            let start = address.checked_add(done as u64).ok_or(error)?;
            let page = self.pages.get(&(start & !4095)).ok_or(error)?;
            let offset = (start & 4095) as usize;
            let part = (4096 - offset).min(length - done);
            f(done..done + part, &page[offset..offset + part]);
            done += part;
        }
        Ok(())
    }

    fn check_dma(&self, address: u64, length: usize) -> Result<(), DmaError> {
        if self.dma_is_off {
            return Err(DmaError { address, length });
        }
        Ok(())
    }

    /// The page of an address, if it is mapped.
    pub fn page(&self, address: u64) -> Option<&Arc<Page>> {
        self.pages.get(&(address & !4095))
    }

    /// Reads memory without taking note of it.
    ///
    /// # Errors
    ///
    /// Not all of it is mapped.
    pub fn peek(&self, address: u64, bytes: &mut [u8]) -> Result<(), DmaError> {
        let length = bytes.len();
        for (index, byte) in bytes.iter_mut().enumerate() {
            let at = address.wrapping_add(index as u64);
            let page = self.page(at).ok_or(DmaError { address, length })?;
            *byte = page[(at & 4095) as usize].load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads memory, which is mapped.
    pub fn read<const N: usize>(&mut self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.dma_read(address, &mut bytes).unwrap();
        bytes
    }

    /// Writes memory, which is mapped.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        self.dma_write(address, bytes).unwrap();
    }

    /// Returns the interrupts since the last call.
    pub fn take_interrupts(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.interrupts)
    }

    /// Whether a line of the trace has all the parts.
    pub fn traced(&self, parts: &[&str]) -> bool {
        self.trace
            .iter()
            .any(|line| parts.iter().all(|part| line.contains(part)))
    }
}

impl Host for World {
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.check_dma(address, buffer.len())?;
        self.access(address, buffer.len(), |range, part| {
            for (byte, cell) in buffer[range].iter_mut().zip(part) {
                *byte = cell.load(Ordering::Relaxed);
            }
        })
    }

    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        self.check_dma(address, data.len())?;
        self.writes
            .iter_mut()
            .for_each(|writes| writes.push(address));
        self.access(address, data.len(), |range, part| {
            for (byte, cell) in data[range].iter().zip(part) {
                cell.store(*byte, Ordering::Relaxed);
            }
        })
    }

    fn is_bus_master(&self) -> bool {
        !self.dma_is_off
    }

    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]) {
        let start = usize::try_from(offset).unwrap();
        buffer.fill(0);
        if let Some(bytes) = self.device_memory.get(start..start + buffer.len()) {
            buffer.copy_from_slice(bytes);
        }
    }

    fn quiesce(&mut self) {
        self.quiesced.push(self.dma_bytes);
    }

    fn interrupt(&mut self, vector: u16) {
        self.interrupts.push(vector);
    }

    fn trace(&mut self, event: &TraceEvent) {
        let line = event.to_string();
        assert!(!line.contains('\n'), "more than one line: {line}");
        self.trace.push(line);
    }
}

/// Entries of the admin queues.
pub const DEPTH: u16 = 32;

/// Entries of the asynchronous event queue.
pub const AENQ_DEPTH: u16 = 16;

/// A ring that the device writes.
pub struct Ring {
    /// Where it is.
    pub base: u64,
    depth: u16,
    index: u16,
    phase: bool,
    phase_offset: usize,
}

impl Ring {
    fn new(base: u64, depth: u16, phase_offset: usize) -> Self {
        Self {
            base,
            depth,
            index: 0,
            phase: true,
            phase_offset,
        }
    }

    /// Takes the next entry, if there is one.
    pub fn pop(&mut self, world: &mut World) -> Option<[u8; 64]> {
        let entry: [u8; 64] = world.read(self.base + u64::from(self.index) * 64);
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
pub struct Driver {
    /// The host.
    pub world: World,
    /// The device.
    pub device: Device,
    /// The time.
    pub now: Duration,
    /// Where the submission queue is.
    pub aq: u64,
    /// The completion queue.
    pub acq: Ring,
    /// The asynchronous event queue.
    pub aenq: Ring,
    aenq_consumed: u32,
    response: u64,
    sequence: u16,
    submitted: u16,
    next_id: u16,
    /// The form of the commands.
    pub protocol: Protocol,
}

impl Driver {
    /// A device that was reset and whose queues are set up.
    pub fn new(profile: Profile) -> Self {
        Self::with(Config::new(profile, 1))
    }

    /// The same of any device.
    pub fn with(config: Config) -> Self {
        let mut driver = Self::powered_on(config);
        driver.reset(ResetReason::Normal);
        driver.set_up();
        driver
    }

    /// A device that nothing was done with.
    pub fn powered_on(config: Config) -> Self {
        let of_profile = if config.profile >= Profile::Efa4 {
            3
        } else {
            2
        };
        let version = config.overrides.version.unwrap_or(of_profile);
        let mut world = World::default();
        let response = world.map(1);
        let aq = world.map(1);
        let acq = world.map(1);
        let aenq = world.map(1);
        Self {
            device: Device::new(config),
            now: Duration::from_secs(1),
            aq,
            acq: Ring::new(acq, DEPTH, 3),
            aenq: Ring::new(aenq, AENQ_DEPTH, 4),
            aenq_consumed: 0,
            response,
            sequence: 0,
            submitted: 0,
            next_id: 0,
            protocol: Protocol::of(Version::from_raw(version)),
            world,
        }
    }

    /// Writes a register.
    pub fn write(&mut self, register: Register, value: u32) {
        self.write_at(u16::from(register).into(), value);
    }

    /// Writes whatever is at an offset in BAR 0.
    pub fn write_at(&mut self, offset: u64, value: u32) {
        self.device
            .write_register(&mut self.world, self.now, offset, value);
    }

    fn write_address(&mut self, low: Register, high: Register, address: u64) {
        self.write(low, address as u32);
        self.write(high, (address >> 32) as u32);
    }

    /// Lets time go by and returns when the device wants to run next.
    pub fn run(&mut self, time: Duration) -> Option<Duration> {
        self.now += time;
        self.device.run(&mut self.world, self.now)
    }

    /// Says where the answers to register reads go.
    pub fn set_response_address(&mut self) {
        self.write_address(Register::MmioRespLo, Register::MmioRespHi, self.response);
    }

    /// Reads a register and returns the whole answer, if there is one.
    pub fn read_raw(&mut self, offset: u16) -> Option<ReadlessResponse> {
        self.sequence = self.sequence.wrapping_add(1);
        let trash = self.sequence.wrapping_add(0x9a);
        let response = self.response;
        self.world.write(response, &trash.to_le_bytes());
        let request = MmioRegRead {
            req_id: self.sequence,
            reg_off: offset,
        };
        self.write(Register::MmioRegRead, request.into_raw());
        let response = ReadlessResponse::decode(&self.world.read(response));
        (response.req_id == self.sequence).then_some(response)
    }

    /// Reads a register.
    pub fn read(&mut self, register: Register) -> u32 {
        let response = self.read_raw(register.into()).expect("an answer");
        assert_eq!(response.reg_off, u16::from(register));
        response.reg_val
    }

    /// Reads the status of the device.
    pub fn status(&mut self) -> DevSts {
        DevSts::from_raw(self.read(Register::DevSts))
    }

    /// Starts a reset.
    pub fn start_reset(&mut self, reason: ResetReason) {
        let control = DevCtl {
            dev_reset: true,
            aq_restart: false,
            reset_reason: reason.into(),
        };
        self.write(Register::DevCtl, control.into_raw());
    }

    /// Resets the device as a driver does.
    pub fn reset(&mut self, reason: ResetReason) {
        self.set_response_address();
        assert!(self.status().ready);
        assert_ne!(Caps::from_raw(self.read(Register::Caps)).reset_timeout, 0);
        self.start_reset(reason);
        self.set_response_address();
        assert!(self.status().reset_in_progress);
        self.write(Register::DevCtl, 0);
        assert!(!self.status().reset_in_progress);
    }

    /// Sets up the admin queues anew, for commands as the device wants them.
    pub fn set_up(&mut self) {
        self.set_up_with_vectors(0, 0);
    }

    /// The same with interrupts of their own.
    pub fn set_up_with_vectors(&mut self, acq_vector: u8, aenq_vector: u8) {
        self.set_up_for(self.protocol, acq_vector, aenq_vector);
    }

    /// The same for commands in a form that the device may not want.
    pub fn set_up_for(&mut self, protocol: Protocol, acq_vector: u8, aenq_vector: u8) {
        self.protocol = protocol;
        self.write_address(Register::AqBaseLo, Register::AqBaseHi, self.aq);
        let caps = AqCaps {
            depth: DEPTH,
            entry_size: protocol.entry_size() as u16,
        };
        self.write(Register::AqCaps, caps.into_raw());

        let (acq, aenq) = (self.acq.base, self.aenq.base);
        self.write_address(Register::AcqBaseLo, Register::AcqBaseHi, acq);
        self.write_address(Register::AenqBaseLo, Register::AenqBaseHi, aenq);
        for (register, base, depth, msix_vector) in [
            (Register::AcqCaps, acq, DEPTH, acq_vector),
            (Register::AenqCaps, aenq, AENQ_DEPTH, aenq_vector),
        ] {
            self.world.write(base, &vec![0; 64 * usize::from(depth)]);
            let caps = EventRingCaps {
                depth,
                entry_size: 64,
                msix_vector,
            };
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

    /// Puts an entry into the submission queue without telling the device.
    pub fn put(&mut self, entry: &AqEntry) {
        let offset = usize::from(self.submitted % DEPTH) * entry.bytes().len();
        self.world.write(self.aq + offset as u64, entry.bytes());
        self.submitted = self.submitted.wrapping_add(1);
    }

    /// The phase of the next entry.
    pub fn phase(&self) -> bool {
        self.submitted / DEPTH % 2 == 0
    }

    /// Tells the device of all that is in the submission queue.
    pub fn ring(&mut self) {
        self.write(Register::AqProdDb, self.submitted.into());
    }

    /// Makes the next entry.
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

    /// Takes the next completion.
    pub fn completion(&mut self) -> Option<(u16, u8, AcqEntry)> {
        let entry = self.acq.pop(&mut self.world)?;
        let header = AcqHeader::of(&entry);
        Some((header.command_id.id, header.status, entry))
    }

    /// Executes a request and returns status and completion.
    pub fn execute_request(&mut self, request: &AqRequest) -> (u8, AcqEntry) {
        let entry = self.entry(request);
        self.execute_entry(&entry)
    }

    /// Executes an entry as it is and returns status and completion.
    pub fn execute_entry(&mut self, entry: &AqEntry) -> (u8, AcqEntry) {
        let id = self.submit_entry(entry);
        let mut completion = self.completion();
        // It may take more than one call.
        while completion.is_none() && self.run(Duration::ZERO) == Some(self.now) {
            completion = self.completion();
        }
        let completion = completion.or_else(|| self.completion());
        let (completed, status, entry) = completion.expect("a completion");
        assert_eq!(completed, id);
        let version = self.read(Register::Version);
        let checksum = if version >= 2 {
            checksum::of_entry(&entry)
        } else {
            0
        };
        assert_eq!(AcqHeader::of(&entry).checksum, checksum);
        (status, entry)
    }

    /// Executes a command and returns what it gave, or why it failed.
    pub fn execute<C: Command>(&mut self, command: &C) -> Result<C::Response, Status> {
        let (status, entry) = self.execute_request(&command.to_request());
        match Status::try_from(status).expect("a known status") {
            Status::Success => Ok(C::Response::from_entry(&entry)),
            status => Err(status),
        }
    }

    /// Reads a feature.
    pub fn feature<F: Feature>(&mut self) -> Result<F, Status> {
        let command = GetFeature {
            feature_id: F::ID.into(),
            ..Default::default()
        };
        self.execute(&command)
            .map(|response| F::from_response(&response))
    }

    /// Reads statistics.
    pub fn statistics<S: Stats>(&mut self) -> Result<S, Status> {
        let command = GetStats {
            stats_type: S::TYPE.into(),
            ..Default::default()
        };
        self.execute(&command)
            .map(|response| S::from_response(&response))
    }

    /// Says which groups of events are wanted.
    pub fn enable_events(&mut self, groups: u32) -> Result<(), Status> {
        let config = AenqConfig {
            supported_groups: 0,
            enabled_groups: groups,
        };
        let command = SetFeature {
            feature_id: FeatureId::AenqConfig.into(),
            data: config.into_setting(),
            ..Default::default()
        };
        self.execute(&command).map(|_| ())
    }

    /// Says that keep-alive events are wanted.
    pub fn enable_keep_alive(&mut self) {
        self.enable_events(AenqGroup::KeepAlive.mask()).unwrap();
    }

    /// Takes the next event, without telling the device.
    pub fn event(&mut self) -> Option<AenqEntry> {
        let entry = self.aenq.pop(&mut self.world)?;
        self.aenq_consumed += 1;
        Some(AenqEntry::decode(&entry))
    }

    /// Tells the device which events were consumed.
    pub fn acknowledge_events(&mut self) {
        self.write(Register::AenqConsDb, self.aenq_consumed);
    }
}
