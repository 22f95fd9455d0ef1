// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A function as a virtual machine uses it: a vfio-user client with memory of its own, and a driver in a few lines.

use std::{
    fs::File,
    io::Read,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use efa_fabric::Settings;
use efa_hw::{
    admin::{
        AcqEntry, AcqHeader, AqEntry, Command, Protocol, Response, Status,
        pd::{AllocPd, AllocPdResponse, DeallocPd},
    },
    regs::{
        AqCaps, DevCtl, DevSts, EventRingCaps, MmioRegRead, ReadlessResponse, Register, ResetReason,
    },
};
use efa_model::{Config, Device, Host, Profile, State};
use efa_testing::wait::{patience, wait_for, wait_until};
use efa_vfio::{Bar, Function, Limits, Runtime, Server, listen};
use proptest::{collection::vec, prelude::*, sample::select};
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{MemfdFlags, memfd_create},
};
use tempfile::TempDir;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_BAR2_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::{Client, DmaMap, Flags};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// Where the guest's memory is.
const RAM: u64 = 0x8000_0000;
const RAM_SIZE: u64 = 1 << 20;

/// What the driver puts there, as offsets.
const RESPONSE: u64 = 0x0000;
const AQ: u64 = 0x1000;
const ACQ: u64 = 0x2000;
const AENQ: u64 = 0x3000;
const DEPTH: u16 = 32;

const VECTORS: u16 = 5;
const COMMAND: u64 = 0x04;
const MEMORY_AND_BUS_MASTER: u16 = 0b110;

struct Machine {
    folder: TempDir,
    function: Arc<Function>,
    trace: Receiver<String>,
}

impl Machine {
    fn start(missing: Option<Bar>) -> Self {
        let limits = Limits {
            start: patience(),
            message: patience(),
        };
        Self::start_with(missing, limits)
    }

    fn start_with(missing: Option<Bar>, limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::new(Profile::Efa2, 0);
        config.vectors = VECTORS;
        let (sender, trace) = channel();
        let tracer = Box::new(move |_, event: &_| {
            let _ = sender.send(format!("{event}"));
        });
        let runtime = Arc::new(Runtime::new(Settings::default(), 1, Instant::now()));
        let function = Arc::new(Function::new(&runtime, config, missing, tracer).unwrap());
        let (listener, _) = listen(&folder.path().join("socket")).unwrap();
        let server = Server::new(listener, Arc::clone(&function), limits);
        thread::spawn(move || server.run());
        thread::spawn(move || runtime.work());
        Self {
            folder,
            function,
            trace,
        }
    }

    fn state(&self) -> State {
        self.function.with(|device, _, _| device.state())
    }

    fn connect(&self) -> Guest {
        Guest::connect(&self.folder.path().join("socket"))
    }
}

struct Guest {
    client: Client,
    ram: File,
    memory: MmapRegion,
    request: u16,
    producer: u16,
    consumer: u16,
}

impl Guest {
    fn connect(socket: &Path) -> Self {
        let ram = File::from(
            memfd_create("ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap(),
        );
        ram.set_len(RAM_SIZE).unwrap();
        let memory = FileOffset::new(ram.try_clone().unwrap(), 0);
        let memory = MmapRegion::from_file(memory, RAM_SIZE as usize).unwrap();
        let client = Client::connect(socket).unwrap();
        Self {
            client,
            ram,
            memory,
            request: 0,
            producer: 0,
            consumer: 0,
        }
    }

    /// What firmware and a driver do before they talk to the device.
    fn power_on(&mut self) {
        self.map();
        self.power_on_again();
    }

    /// Shares its memory.
    fn map(&mut self) {
        let map = DmaMap {
            readable: true,
            writable: true,
            offset: 0,
            address: RAM,
            size: RAM_SIZE,
        };
        self.client.dma_map(map, Some(&self.ram)).unwrap();
    }

    /// The same with memory that is mapped already.
    fn power_on_again(&mut self) {
        self.enable(MEMORY_AND_BUS_MASTER);
        self.write(Register::MmioRespHi, 0);
        self.write(Register::MmioRespLo, (RAM + RESPONSE) as u32);
    }

    fn enable(&mut self, command: u16) {
        let command = command.to_le_bytes();
        self.client
            .region_write(VFIO_PCI_CONFIG_REGION_INDEX, COMMAND, &command)
            .unwrap();
    }

    fn command(&mut self) -> u16 {
        let mut command = [0xff; 2];
        self.client
            .region_read(VFIO_PCI_CONFIG_REGION_INDEX, COMMAND, &mut command)
            .unwrap();
        u16::from_le_bytes(command)
    }

    fn load<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory
            .get_slice(offset as usize, N)
            .unwrap()
            .copy_to(&mut bytes);
        bytes
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.memory
            .get_slice(offset as usize, bytes.len())
            .unwrap()
            .copy_from(bytes);
    }

    fn write(&mut self, register: Register, value: u32) {
        let offset = u64::from(u16::from(register));
        let value = value.to_le_bytes();
        self.client
            .region_write(VFIO_PCI_BAR0_REGION_INDEX, offset, &value)
            .unwrap();
    }

    /// Reads a register, if the device answers. It does before the write has returned.
    fn read(&mut self, register: Register) -> Option<u32> {
        self.request += 1;
        let request = MmioRegRead {
            req_id: self.request,
            reg_off: register.into(),
        };
        self.write(Register::MmioRegRead, request.into_raw());
        let response = ReadlessResponse::decode(&self.load(RESPONSE));
        (response.req_id == self.request && response.reg_off == u16::from(register))
            .then_some(response.reg_val)
    }

    fn status(&mut self) -> DevSts {
        DevSts::from_raw(
            self.read(Register::DevSts)
                .expect("no answer to a register read"),
        )
    }

    fn wait_for_reset(&mut self, in_progress: bool) {
        wait_until("change of the reset's state", || {
            self.status().reset_in_progress == in_progress
        });
    }

    fn reset(&mut self) {
        assert!(self.status().ready);
        let reset = DevCtl {
            dev_reset: true,
            reset_reason: ResetReason::Normal.into(),
            ..Default::default()
        };
        self.write(Register::DevCtl, reset.into_raw());
        self.write(Register::MmioRespHi, 0);
        self.write(Register::MmioRespLo, (RAM + RESPONSE) as u32);
        self.wait_for_reset(true);
        self.write(Register::DevCtl, 0);
        self.wait_for_reset(false);
        self.producer = 0;
        self.consumer = 0;
        self.store(ACQ, &[0; 64 * DEPTH as usize]);
    }

    fn start_queues(&mut self) {
        let ring = EventRingCaps {
            depth: DEPTH,
            entry_size: 64,
            msix_vector: 0,
        }
        .into_raw();
        for (low, high, caps, offset, value) in [
            (
                Register::AqBaseLo,
                Register::AqBaseHi,
                Register::AqCaps,
                AQ,
                AqCaps {
                    depth: DEPTH,
                    entry_size: 64,
                }
                .into_raw(),
            ),
            (
                Register::AcqBaseLo,
                Register::AcqBaseHi,
                Register::AcqCaps,
                ACQ,
                ring,
            ),
            (
                Register::AenqBaseLo,
                Register::AenqBaseHi,
                Register::AenqCaps,
                AENQ,
                ring,
            ),
        ] {
            self.write(low, (RAM + offset) as u32);
            self.write(high, 0);
            self.write(caps, value);
        }
        self.write(Register::IntrMask, 0);
    }

    fn submit<C: Command>(&mut self, command: &C) -> u16 {
        let id = self.producer;
        let phase = self.producer / DEPTH % 2 == 0;
        let entry = AqEntry::new(Protocol::V1, &command.to_request(), id, phase);
        self.store(AQ + 64 * u64::from(self.producer % DEPTH), entry.bytes());
        self.producer += 1;
        self.write(Register::AqProdDb, self.producer.into());
        id
    }

    fn completion(&mut self) -> Option<AcqEntry> {
        let entry = self.load(ACQ + 64 * u64::from(self.consumer % DEPTH));
        let new = AcqHeader::of(&entry).flags.phase == (self.consumer / DEPTH % 2 == 0);
        self.consumer += u16::from(new);
        new.then_some(entry)
    }

    /// The memory of the device that holds the send queues.
    fn send_queues(&mut self) -> MmapRegion {
        let region = self.client.region_info(VFIO_PCI_BAR2_REGION_INDEX).unwrap();
        let file = FileOffset::new(region.file.expect("no shared memory"), 0);
        MmapRegion::from_file(file, region.size as usize).unwrap()
    }

    fn set_vector(&mut self, vector: u16, fds: &[BorrowedFd<'_>]) {
        let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        self.client
            .set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, vector.into(), 1, fds)
            .unwrap();
    }
}

/// An interrupt's eventfd.
struct Interrupt(File);

impl Interrupt {
    fn new() -> Self {
        Self(File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap()))
    }

    fn take(&self) -> bool {
        (&self.0).read_exact(&mut [0; 8]).is_ok()
    }

    fn wait(&self) {
        wait_until("interrupt", || self.take());
    }
}

#[test]
fn a_driver_resets_the_device_and_allocates() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    guest.power_on();
    let interrupt = Interrupt::new();
    guest.set_vector(0, &[interrupt.0.as_fd()]);
    guest.reset();
    guest.start_queues();

    let id = guest.submit(&AllocPd::default());
    interrupt.wait();
    let completion = guest.completion().expect("an interrupt, but no completion");
    let header = AcqHeader::of(&completion);
    assert_eq!(
        (header.command_id.id, header.status),
        (id, Status::Success.into())
    );
    let pd = AllocPdResponse::from_entry(&completion).pd;
    let state = machine.state();
    assert_eq!(state.resources.pd, 1);

    guest.set_vector(0, &[]);
    guest.submit(&DeallocPd { pd });
    wait_until("completion", || guest.completion().is_some());
    assert!(!interrupt.take(), "an interrupt of a disabled vector");
    let state = machine.state();
    assert_eq!((state.resources.pd, state.protocol_errors), (0, 0));
    assert_eq!(state.resets, ["NORMAL"]);
    let trace: Vec<_> = machine.trace.try_iter().collect();
    assert!(
        trace.iter().any(|line| line.contains("ALLOC_PD")),
        "{trace:#?}"
    );
}

#[test]
fn events_come_without_a_message_of_the_monitor() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    guest.power_on();
    guest.reset();
    guest.start_queues();
    // Completed later, by the timer: the client sends nothing meanwhile.
    let rule = serde_json::from_str(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"delay_ms":50}}"#);
    machine
        .function
        .with(|device, _, _| device.inject(rule.unwrap()));
    let interrupt = Interrupt::new();
    guest.set_vector(0, &[interrupt.0.as_fd()]);
    guest.submit(&AllocPd::default());
    interrupt.wait();
    assert!(guest.completion().is_some());
}

#[test]
fn a_function_that_is_no_bus_master_does_not_answer() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    guest.power_on();
    assert!(guest.read(Register::DevSts).is_some());
    guest.enable(0);
    assert_eq!(guest.read(Register::DevSts), None);
    guest.enable(MEMORY_AND_BUS_MASTER);
    assert!(guest.read(Register::DevSts).is_some());
}

#[test]
fn memory_that_is_not_mapped_is_not_written() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    guest.power_on();
    guest.client.dma_unmap(RAM, RAM_SIZE).unwrap();
    assert_eq!(guest.read(Register::DevSts), None);
    guest.map();
    assert!(guest.read(Register::DevSts).is_some());
}

#[test]
fn registers_are_not_read_by_mmio() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    for region in [VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX] {
        let mut value = [0; 4];
        guest
            .client
            .region_read(region, Register::DevSts as u64, &mut value)
            .unwrap();
        assert_eq!(value, [0xff; 4]);
    }
}

#[test]
fn send_queues_are_shared_memory() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    guest.power_on();
    let memory = guest.send_queues();
    memory.get_slice(0x1000, 5).unwrap().copy_from(b"hello");
    let mut found = [0; 5];
    guest
        .client
        .region_read(VFIO_PCI_BAR2_REGION_INDEX, 0x1000, &mut found)
        .unwrap();
    assert_eq!(&found, b"hello");
    guest
        .client
        .region_write(VFIO_PCI_BAR2_REGION_INDEX, 0x1000, b"J")
        .unwrap();
    memory.get_slice(0x1000, 5).unwrap().copy_to(&mut found);
    assert_eq!(&found, b"Jello");
}

#[test]
fn accesses_outside_of_a_region_do_nothing() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    guest.power_on();
    for region in 0..9 {
        for offset in [1, 0x3ffc, 0x3ffe, 1 << 40, u64::MAX - 3, u64::MAX - 1] {
            for data in [&mut [0xff; 7][..], &mut [0xff; 8]] {
                let size = guest.client.region_info(region).unwrap().size;
                let end = offset.checked_add(data.len() as u64);
                let inside = end.is_some_and(|end| end <= size);
                let written = guest.client.region_write(region, offset, data);
                assert_eq!(written.is_ok(), inside, "{region} {offset}");
                let read = guest.client.region_read(region, offset, data);
                assert_eq!(read.is_ok(), inside, "{region} {offset}");
            }
        }
    }
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    guest.client.set_irqs(0, flags, 0, 1, &[]).unwrap_err();
    let beyond = u32::from(VECTORS);
    let set = guest
        .client
        .set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, beyond, 1, &[]);
    set.unwrap_err();
    guest.enable(MEMORY_AND_BUS_MASTER);
    assert!(guest.status().ready);
}

#[test]
fn a_missing_bar_has_no_region() {
    for (bar, index) in [(Bar::Registers, 0), (Bar::Llq, 2), (Bar::Doorbells, 4)] {
        let machine = Machine::start(Some(bar));
        let mut guest = machine.connect();
        for region in [0, 2, 4] {
            let size = guest.client.region_info(region).unwrap().size;
            assert_eq!(size == 0, region == index, "BAR {region} without {bar:?}");
        }
    }
}

#[test]
fn the_next_guest_finds_a_fresh_device() {
    let machine = Machine::start(None);
    let mut first = machine.connect();
    first.power_on();
    first.reset();
    first.start_queues();
    first.submit(&AllocPd::default());
    assert_eq!(machine.state().resources.pd, 1);
    first.client.shutdown().unwrap();
    drop(first);

    // It waits until the first is gone.
    let mut second = machine.connect();
    assert_eq!(second.command(), 0);
    assert_eq!(machine.state().resources.pd, 0);
    second.power_on();
    second.reset();
}

#[test]
fn a_function_reset_keeps_what_the_monitor_mapped() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    guest.power_on();
    guest.reset();
    guest.start_queues();
    guest.submit(&AllocPd::default());
    guest.client.reset().unwrap();
    assert_eq!(machine.state().resources.pd, 0);
    assert_eq!(
        guest.read(Register::DevSts),
        None,
        "it is still a bus master"
    );
    assert_eq!(guest.command(), 0);
    guest.enable(MEMORY_AND_BUS_MASTER);
    guest.write(Register::MmioRespHi, 0);
    guest.write(Register::MmioRespLo, (RAM + RESPONSE) as u32);
    assert!(guest.status().ready);
}

#[test]
fn a_function_reset_ends_all_that_the_device_does() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    guest.power_on();
    guest.reset();
    guest.start_queues();
    let rule = serde_json::from_str(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"hold":"pd"}}"#);
    machine
        .function
        .with(|device, _, _| device.inject(rule.unwrap()));
    for _ in 0..3 {
        guest.submit(&AllocPd::default());
    }
    let llq = VFIO_PCI_BAR2_REGION_INDEX;
    guest.client.region_write(llq, 0x1000, b"secret").unwrap();
    guest.client.reset().unwrap();
    // Also if the driver lets it access memory again.
    guest.enable(MEMORY_AND_BUS_MASTER);
    guest.store(ACQ, &[0; 64 * DEPTH as usize]);
    // What has survived comes now.
    machine.function.with(|device, _, _| device.clear());
    assert_eq!(guest.load(ACQ), [0; 64 * DEPTH as usize]);
    let mut found = [0xff; 6];
    guest.client.region_read(llq, 0x1000, &mut found).unwrap();
    assert_eq!(found, [0; 6]);
    let state = machine.state();
    assert_eq!((state.admin.in_flight, state.function_resets), (0, 1));
    assert!(
        machine
            .trace
            .try_iter()
            .any(|line| line == "function reset")
    );
}

#[test]
fn a_function_without_power_forgets() {
    const POWER_CONTROL: u64 = 0x44;
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    guest.power_on();
    guest.reset();
    guest.start_queues();
    guest.submit(&AllocPd::default());
    guest.completion().unwrap();
    let interrupt = Interrupt::new();
    guest.set_vector(0, &[interrupt.0.as_fd()]);
    let config = VFIO_PCI_CONFIG_REGION_INDEX;
    guest
        .client
        .region_write(config, POWER_CONTROL, &[3])
        .unwrap();
    // In D3hot there is a configuration space, and nothing else.
    assert_eq!(guest.command(), MEMORY_AND_BUS_MASTER);
    assert_eq!(guest.read(Register::DevSts), None);
    guest.submit(&AllocPd::default());
    let fatal = |device: &mut Device, host: &mut dyn Host, now| device.post_event(host, now, 1, 0);
    machine.function.with(fatal);
    assert_eq!(guest.completion(), None);
    assert!(!interrupt.take());

    guest
        .client
        .region_write(config, POWER_CONTROL, &[0])
        .unwrap();
    assert_eq!(guest.command(), 0);
    let state = machine.state();
    assert_eq!((state.resources.pd, state.fatal_error), (0, false));
    assert_eq!(state.protocol_errors, 0);
    guest.power_on_again();
    guest.reset();
}

#[test]
fn a_device_that_is_pulled_out_is_gone() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    guest.power_on();
    guest.reset();
    guest.start_queues();
    guest.submit(&AllocPd::default());
    guest.completion().unwrap();
    let interrupt = Interrupt::new();
    guest.set_vector(0, &[interrupt.0.as_fd()]);
    machine.function.unplug();
    let state = machine.state();
    assert!(!state.plugged);
    assert_eq!(state.resources.pd, 0);

    // No access does anything.
    for region in [
        VFIO_PCI_CONFIG_REGION_INDEX,
        VFIO_PCI_BAR0_REGION_INDEX,
        VFIO_PCI_BAR2_REGION_INDEX,
        VFIO_PCI_BAR4_REGION_INDEX,
    ] {
        let mut found = [0; 8];
        guest.client.region_write(region, 4, &[0; 4]).unwrap();
        guest.client.region_read(region, 0, &mut found).unwrap();
        assert_eq!(found, [0xff; 8], "region {region}");
    }
    assert_eq!(guest.read(Register::DevSts), None);
    guest.submit(&AllocPd::default());
    guest.client.reset().unwrap();
    assert_eq!(guest.completion(), None);
    assert!(!interrupt.take());
    assert_eq!(machine.state().protocol_errors, 0);

    // In its slot again, it has lost all; the VMM's mappings of memory and interrupts are as they were.
    machine.function.plug();
    assert_eq!(guest.command(), 0);
    assert_eq!(guest.read(Register::DevSts), None);
    guest.power_on_again();
    guest.reset();
    guest.start_queues();
    guest.submit(&AllocPd::default());
    interrupt.wait();
    assert!(guest.completion().is_some());
    let state = machine.state();
    assert_eq!((state.plugged, state.resources.pd), (true, 1));
}

#[test]
fn another_vmm_can_have_a_device_that_was_pulled_out() {
    let machine = Machine::start(None);
    let mut first = machine.connect();
    first.power_on();
    first.reset();
    first.start_queues();
    machine.function.unplug();
    let mut second = machine.connect();
    second.power_on();
    assert!(machine.state().plugged);
    second.reset();
    second.start_queues();
    second.submit(&AllocPd::default());
    assert!(second.completion().is_some());

    // The first still is answered, but has nothing.
    assert_eq!(first.command(), 0xffff);
    first.enable(MEMORY_AND_BUS_MASTER);
    first.client.reset().unwrap();
    first.submit(&AllocPd::default());
    assert_eq!(first.completion(), None);
    first.client.dma_unmap(RAM, RAM_SIZE).unwrap();
    first.client.shutdown().unwrap();
    drop(first);
    second.submit(&AllocPd::default());
    assert!(second.completion().is_some());
    assert_eq!(machine.state().resources.pd, 2);
}

#[test]
fn a_vmm_waits_for_a_device_that_another_one_has() {
    let machine = Machine::start(None);
    let mut first = machine.connect();
    first.power_on();
    first.reset();
    let socket = machine.folder.path().join("socket");
    let (waits, is_gone) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut second = Guest::connect(&socket);
            waits.store(true, Ordering::SeqCst);
            second.power_on();
            assert!(is_gone.load(Ordering::SeqCst));
            second.reset();
        });
        wait_until("second VMM", || waits.load(Ordering::SeqCst));
        for _ in 0..100 {
            assert!(first.status().ready);
        }
        is_gone.store(true, Ordering::SeqCst);
        first.client.shutdown().unwrap();
        drop(first);
    });
}

#[test]
fn the_send_queues_are_of_one_vmm_only() {
    let machine = Machine::start(None);
    let mut first = machine.connect();
    first.power_on();
    let old = first.send_queues();
    let file = first
        .client
        .region_info(VFIO_PCI_BAR2_REGION_INDEX)
        .unwrap();
    let slice = |memory: &MmapRegion, offset, bytes: &[u8]| {
        memory
            .get_slice(offset, bytes.len())
            .unwrap()
            .copy_from(bytes);
    };
    slice(&old, 0x1000, b"secret");
    // It can't be taken away from the device, which reads it.
    file.file.unwrap().set_len(0).unwrap_err();
    first.client.shutdown().unwrap();

    let mut second = machine.connect();
    second.power_on();
    let new = second.send_queues();
    let mut found = [0xff; 6];
    new.get_slice(0x1000, 6).unwrap().copy_to(&mut found);
    assert_eq!(found, [0; 6]);
    // The first one has its mapping still, of its own memory.
    slice(&old, 0x1000, b"attack");
    new.get_slice(0x1000, 6).unwrap().copy_to(&mut found);
    assert_eq!(found, [0; 6]);
    let region = VFIO_PCI_BAR2_REGION_INDEX;
    second
        .client
        .region_read(region, 0x1000, &mut found)
        .unwrap();
    assert_eq!(found, [0; 6]);
    slice(&new, 0x1000, b"mine");
    second
        .client
        .region_read(region, 0x1000, &mut found)
        .unwrap();
    assert_eq!(&found, b"mine\0\0");

    // A reset of the function clears it for those who have mapped it, too.
    second.client.reset().unwrap();
    new.get_slice(0x1000, 6).unwrap().copy_to(&mut found);
    assert_eq!(found, [0; 6]);
}

#[test]
fn a_vmm_that_takes_its_memory_away_harms_only_itself() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    guest.ram = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
    guest.ram.set_len(RAM_SIZE).unwrap();
    let memory = FileOffset::new(guest.ram.try_clone().unwrap(), 0);
    guest.memory = MmapRegion::from_file(memory, RAM_SIZE as usize).unwrap();
    guest.power_on();
    guest.reset();
    guest.start_queues();
    guest.submit(&AllocPd::default());
    assert!(guest.completion().is_some());
    guest.ram.set_len(0).unwrap();
    // The device can't read the command, and has a fatal error.
    guest.write(Register::AqProdDb, u32::from(guest.producer) + 1);
    drop(guest);
    let mut guest = machine.connect();
    guest.power_on();
    guest.reset();
}

#[test]
fn silent_vmms_do_not_keep_others_away() {
    let limits = Limits {
        start: Duration::from_millis(50),
        message: patience(),
    };
    let machine = Machine::start_with(None, limits);
    let socket = machine.folder.path().join("socket");
    // Some say what the protocol wants, others nothing.
    let polite: Vec<_> = (0..4).map(|_| Client::connect(&socket)).collect();
    let connect = |_| UnixStream::connect(&socket).unwrap();
    let silent: Vec<_> = (0..2).map(connect).collect();
    // It is served when the first of them have had their time, unless it takes longer itself.
    wait_for("place", || Client::connect(&socket)?.reset());
    drop((polite, silent));
}

/// Those that wait for a device and say nothing more keep no other one from waiting.
#[test]
fn one_more_vmm_has_the_place_of_the_one_that_has_waited_for_longest() {
    let machine = Machine::start(None);
    let mut first = machine.connect();
    first.power_on();
    let socket = machine.folder.path().join("socket");
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let mut client = Client::connect(&socket).unwrap();
            let (command, flags) = (vfio_user::Command::DeviceReset, Flags::COMMAND);
            client.send(command, flags, &[], &[]).unwrap();
            client
        })
        .collect();
    assert!(first.status().ready);
    drop((first, waiting));
    machine.connect().power_on();
}

#[test]
fn vmms_that_wait_and_are_gone_leave_their_places() {
    let machine = Machine::start(None);
    let mut first = machine.connect();
    first.power_on();
    let socket = machine.folder.path().join("socket");
    for _ in 0..12 {
        // It wants the function, and does not wait for it.
        let mut client = Client::connect(&socket).unwrap();
        client
            .send(vfio_user::Command::DeviceReset, Flags::COMMAND, &[], &[])
            .unwrap();
    }
    assert!(first.status().ready);
    first.client.shutdown().unwrap();
    let mut last = machine.connect();
    last.power_on();
    last.reset();
}

/// Any write, but most often one of a register with a value that has an effect.
fn any_write() -> impl Strategy<Value = (u32, u64, u32)> {
    let register = select(Register::ALL).prop_map(|register| u64::from(u16::from(register)));
    let region = prop_oneof![
        8 => Just(VFIO_PCI_BAR0_REGION_INDEX),
        1 => Just(VFIO_PCI_BAR4_REGION_INDEX),
        1 => Just(VFIO_PCI_CONFIG_REGION_INDEX),
    ];
    let offset = prop_oneof![8 => register, 1 => 0..0x5000_u64, 1 => any::<u64>()];
    let value = prop_oneof![
        4 => (0..RAM_SIZE).prop_map(|offset| (RAM + offset) as u32),
        2 => Just(AqCaps { depth: DEPTH, entry_size: 64 }.into_raw()),
        2 => 0..64_u32,
        1 => any::<u32>(),
    ];
    (region, offset, value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_hostile_guest_harms_nobody(
        writes in vec(any_write(), 1..200),
        memory in vec(any::<u8>(), 64..4096),
    ) {
        let machine = Machine::start(None);
        let mut guest = machine.connect();
        guest.power_on();
        guest.reset();
        guest.start_queues();
        for page in 0..4 {
            guest.store(page * 0x1000, &memory);
        }
        for (region, offset, value) in writes {
            // One outside of its region fails.
            let _ = guest.client.region_write(region, offset, &value.to_le_bytes());
        }
        drop(guest);
        // The next one finds a device that works.
        let mut guest = machine.connect();
        guest.power_on();
        guest.reset();
    }
}
