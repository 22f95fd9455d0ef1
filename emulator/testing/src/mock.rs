// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A host with memory and a driver, in the process of the device.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use efa_fabric::Pins;
use efa_hw::{
    admin::{Command, Protocol, Status},
    regs::{ResetReason, Version},
};
use efa_model::{Config, Device, DmaError, Fetched, Host, Profile, ResourceCounts, TraceEvent};

use crate::bus::{Bus, Memory};
pub use crate::driver::{AENQ_DEPTH, DEPTH, Driver};

/// A page of memory, which several threads may access.
pub type Page = [AtomicU8; 4096];

/// The host of a device.
#[derive(Default)]
pub struct World {
    pages: BTreeMap<u64, Arc<Page>>,
    next_page: u64,
    /// The memory BAR, up to the last byte that was written.
    pub device_memory: Vec<u8>,
    /// Interrupt vectors that the device raised.
    pub interrupts: Vec<u16>,
    /// The device's trace, by lines.
    pub trace: Vec<String>,
    /// Number of bytes that the device read and wrote.
    pub dma_bytes: usize,
    /// Addresses of the device's writes in order, if they are recorded.
    pub writes: Option<Vec<u64>>,
    /// Whether the payload of messages has no contents, and no trace is kept, as in large simulations.
    pub is_blank: bool,
    /// Whether all DMA of the device fails.
    pub dma_is_off: bool,
    /// Values of `dma_bytes` when the device waited for the end of all copies.
    pub quiesced: Vec<usize>,
    pub(crate) pins: Arc<Pins>,
    /// Locked while accesses of a network to its memory are stuck.
    pub stuck: Arc<RwLock<()>>,
}

/// Reads memory as far as there is room.
pub(crate) fn load<'a>(cells: impl IntoIterator<Item = &'a AtomicU8>, bytes: &mut [u8]) {
    for (byte, cell) in bytes.iter_mut().zip(cells) {
        *byte = cell.load(Ordering::Relaxed);
    }
}

/// Writes all bytes to memory.
pub(crate) fn store<'a>(cells: impl IntoIterator<Item = &'a AtomicU8>, bytes: &[u8]) {
    for (byte, cell) in bytes.iter().zip(cells) {
        cell.store(*byte, Ordering::Relaxed);
    }
}

impl World {
    /// Maps pages that are contiguous and returns their address.
    pub fn map(&mut self, pages: u64) -> u64 {
        // Addresses beyond 32 bits, which need both registers.
        let address = 0x12_3456_0000 + self.next_page * 4096;
        for page in 0..pages {
            self.pages.insert(address + page * 4096, Arc::new([const { AtomicU8::new(0) }; 4096]));
        }
        // A hole after each mapping shows accesses beyond its end.
        self.next_page += pages + 1;
        address
    }

    /// Unmaps a page.
    pub fn unmap(&mut self, address: u64) {
        self.pages.remove(&address);
    }

    /// Passes to `f` each page that an access covers, with the part's start in the access and its range in the page.
    pub(crate) fn access(
        &self,
        address: u64,
        length: usize,
        mut f: impl FnMut(usize, &Arc<Page>, Range<usize>),
    ) -> Result<(), DmaError> {
        let error = DmaError { address, length };
        let mut done = 0;
        while done < length {
            let start = address.checked_add(done as u64).ok_or(error)?;
            let page = self.pages.get(&(start & !4095)).ok_or(error)?;
            let offset = (start & 4095) as usize;
            let part = (4096 - offset).min(length - done);
            f(done, page, offset..offset + part);
            done += part;
        }
        Ok(())
    }

    /// Counts an access of the device, or fails while all DMA does.
    fn count_dma(&mut self, address: u64, length: usize) -> Result<(), DmaError> {
        if self.dma_is_off {
            return Err(DmaError { address, length });
        }
        self.dma_bytes += length;
        Ok(())
    }

    /// Reads memory without counting it.
    fn peek(&self, address: u64, bytes: &mut [u8]) -> Result<(), DmaError> {
        self.access(address, bytes.len(), |start, page, range| {
            load(&page[range], &mut bytes[start..]);
        })
    }

    /// Writes memory without counting it.
    fn poke(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        self.access(address, bytes.len(), |start, page, range| {
            store(&page[range], &bytes[start..]);
        })
    }

    /// Returns the interrupts since the last call.
    pub fn take_interrupts(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.interrupts)
    }

    /// Whether a line of the trace has all the parts.
    pub fn traced(&self, parts: &[&str]) -> bool {
        self.trace.iter().any(|line| parts.iter().all(|part| line.contains(part)))
    }
}

impl Host for World {
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.count_dma(address, buffer.len())?;
        self.peek(address, buffer)
    }

    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        self.count_dma(address, data.len())?;
        self.writes.iter_mut().for_each(|writes| writes.push(address));
        self.poke(address, data)
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
        self.pins.quiesce();
    }

    fn interrupt(&mut self, vector: u16) {
        self.interrupts.push(vector);
    }

    fn trace(&mut self, event: &TraceEvent) {
        if self.is_blank {
            return;
        }
        let line = event.to_string();
        assert!(!line.contains('\n'), "more than one line: {line}");
        self.trace.push(line);
    }
}

impl Memory for World {
    fn allocate(&mut self, pages: u64) -> u64 {
        self.map(pages)
    }

    fn load(&self, address: u64, bytes: &mut [u8]) {
        self.peek(address, bytes).unwrap();
    }

    fn store(&self, address: u64, bytes: &[u8]) {
        self.poke(address, bytes).unwrap();
    }

    fn write_llq(&mut self, offset: u64, bytes: &[u8]) {
        let start = usize::try_from(offset).unwrap();
        let end = start + bytes.len();
        let memory = &mut self.device_memory;
        memory.resize(memory.len().max(end), 0);
        memory[start..end].copy_from_slice(bytes);
    }
}

impl Bus for Device {
    type Memory = World;

    fn write(&mut self, world: &mut World, now: Duration, offset: u64, value: u32) {
        self.write_register(world, now, offset, value);
    }

    fn doorbell(&mut self, world: &mut World, offset: u64, value: u32) {
        self.write_doorbell(world, offset, value);
    }

    fn advance(&mut self, world: &mut World, now: Duration) -> bool {
        // The device may need more than one call.
        self.run(world, now) == Some(now)
    }
}

/// Returns a device's configuration with overrides, given as JSON.
pub fn config_with(profile: Profile, overrides: &str) -> Config {
    let mut config = Config::new(profile, 0);
    config.overrides = serde_json::from_str(overrides).expect(overrides);
    config
}

impl Driver {
    /// Returns a driver with a device that was reset, and with admin queues.
    pub fn new(profile: Profile) -> Self {
        Self::with(Config::new(profile, 1))
    }

    /// As [`Self::new`], for any device.
    pub fn with(config: Config) -> Self {
        let mut driver = Self::powered_on(config);
        driver.reset(ResetReason::Normal);
        driver.set_up();
        driver
    }

    /// Returns a driver with a device in its initial state.
    pub fn powered_on(config: Config) -> Self {
        let of_profile = if config.profile >= Profile::Efa4 { 3 } else { 2 };
        let version = config.overrides.version.unwrap_or(of_profile);
        let mut driver = Self::over(Device::new(config), World::default());
        driver.protocol = Protocol::of(Version::from_raw(version));
        driver
    }

    /// Resets the device and sets up its queues.
    pub fn start_over(&mut self) {
        self.reset(ResetReason::AdminTimeout);
        self.set_up();
    }

    /// Advances time and runs the device; returns when it has to run next.
    pub fn run(&mut self, time: Duration) -> Option<Duration> {
        self.now += time;
        self.device.run(&mut self.world, self.now)
    }

    /// Changes attributes, given as JSON.
    pub fn set(&mut self, overrides: &str) {
        self.device.set(serde_json::from_str(overrides).expect(overrides));
    }

    /// Adds a rule, given as JSON.
    pub fn inject(&mut self, rule: &str) {
        self.device.inject(serde_json::from_str(rule).expect(rule));
    }

    /// Lets the device die, as the JSON says.
    pub fn die(&mut self, death: &str) {
        let death = serde_json::from_str(death).expect(death);
        self.device.die(&mut self.world, self.now, death);
    }

    /// Fetches work requests until there are no more.
    pub fn fetch_all(&mut self) {
        while !matches!(self.device.fetch(&mut self.world), Fetched::Idle) {}
    }

    /// Posts an event.
    pub fn post_event(&mut self, group: u16, syndrome: u16) {
        let (device, world) = (&mut self.device, &mut self.world);
        device.post_event(world, self.now, group, syndrome);
    }

    /// Returns the number of protocol errors.
    pub fn errors(&self) -> u64 {
        self.device.state().protocol_errors
    }

    /// Returns the numbers of objects.
    pub fn counts(&self) -> ResourceCounts {
        self.device.state().resources
    }

    /// Asserts that a command fails and changes nothing.
    #[track_caller]
    pub fn fails(&mut self, command: &impl Command, status: Status) {
        let before = self.counts();
        assert_eq!(self.execute(command).err(), Some(status));
        assert_eq!(self.counts(), before);
    }
}
