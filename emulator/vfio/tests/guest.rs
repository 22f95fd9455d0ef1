// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A function as a virtual machine uses it: a vfio-user client with memory of its own, and a driver.

use std::{
    fs::File,
    io::Read,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
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
        AcqHeader, Command, Response, Status,
        pd::{AllocPd, AllocPdResponse, DeallocPd},
    },
    regs::{AqCaps, Register, ResetReason},
};
use efa_model::{Config, Device, Host, Profile, State};
use efa_testing::{
    bus::{Memory, PAGE},
    driver::DEPTH,
    machine::{BASE, MEMORY_AND_BUS_MASTER, Machine as Guest, Ram},
    wait::{patience, wait_for, wait_until},
};
use efa_vfio::{Bar, Function, Limits, Runtime, Server, listen};
use proptest::{collection::vec, prelude::*, sample::select};
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::MemfdFlags,
};
use tempfile::TempDir;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_NORESIZE, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::{Client, Flags, RegionWrite};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// Bytes of a guest's memory.
const RAM_SIZE: u64 = 1 << 20;

const VECTORS: u16 = 5;

/// The region of the send queues, and the offset in it at which tests write.
const LLQ: u32 = VFIO_PCI_BAR2_REGION_INDEX;
const OFFSET: u64 = 0x1000;

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

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Adds a rule, given as JSON.
    fn inject(&self, rule: &str) {
        let rule = serde_json::from_str(rule).unwrap();
        self.function.with(|device, _, _| device.inject(rule));
    }

    fn connect(&self) -> Guest {
        connect(&self.socket())
    }

    /// Connects a guest that is set up.
    fn guest(&self) -> Guest {
        let mut guest = self.connect();
        power_on(&mut guest);
        guest
    }

    /// Connects a guest, the driver of which has started the device.
    fn started_guest(&self) -> Guest {
        let mut guest = self.guest();
        start(&mut guest);
        guest
    }
}

/// Connects a guest, the memory of which is not mapped for the device yet.
fn connect(socket: &Path) -> Guest {
    Guest::of(Client::connect(socket).unwrap(), Ram::new(RAM_SIZE))
}

/// Sets up the function as firmware and a driver do before they use the device.
fn power_on(guest: &mut Guest) {
    guest.share_memory();
    power_on_again(guest);
}

/// The same setup, with memory that is mapped already.
fn power_on_again(guest: &mut Guest) {
    guest.enable(MEMORY_AND_BUS_MASTER);
    guest.set_response_address();
}

fn reset(guest: &mut Guest) {
    guest.reset(ResetReason::Normal);
}

/// Has a driver reset the device and set up its queues.
fn start(guest: &mut Guest) {
    reset(guest);
    guest.set_up();
    guest.mask(false);
}

/// Whether the device responds to the read of a register. It responds before the request's write returns.
fn answers(guest: &mut Guest) -> bool {
    guest.read_raw(Register::DevSts.into()).is_some()
}

/// Maps the memory of the device that holds the send queues.
fn send_queues(guest: &mut Guest) -> MmapRegion {
    let region = guest.device.client.region_info(LLQ);
    let region = region.unwrap();
    let file = FileOffset::new(region.file.expect("no shared memory"), 0);
    MmapRegion::from_file(file, region.size as usize).unwrap()
}

fn copy_to(send_queues: &MmapRegion, bytes: &[u8]) {
    let slice = send_queues.get_slice(OFFSET as usize, bytes.len());
    slice.unwrap().copy_from(bytes);
}

fn copy_of<const N: usize>(send_queues: &MmapRegion) -> [u8; N] {
    let mut found = [0xa5; N];
    let slice = send_queues.get_slice(OFFSET as usize, N);
    slice.unwrap().copy_to(&mut found);
    found
}

fn set_vector(guest: &mut Guest, vector: u16, fds: &[BorrowedFd<'_>]) {
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    let client = &mut guest.device.client;
    client
        .set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, vector.into(), 1, fds)
        .unwrap();
}

fn region_read<const N: usize>(guest: &mut Guest, region: u32, offset: u64) -> [u8; N] {
    let mut found = [0xa5; N];
    let client = &mut guest.device.client;
    client.region_read(region, offset, &mut found).unwrap();
    found
}

fn region_write(guest: &mut Guest, region: u32, offset: u64, data: &[u8]) {
    let client = &mut guest.device.client;
    client.region_write(region, offset, data).unwrap();
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
    let mut guest = machine.guest();
    let interrupt = Interrupt::new();
    set_vector(&mut guest, 0, &[interrupt.0.as_fd()]);
    start(&mut guest);

    let id = guest.submit(&AllocPd::default());
    interrupt.wait();
    let (_, _, completion) = guest.completion().expect("an interrupt, but no completion");
    let header = AcqHeader::of(&completion);
    assert_eq!(
        (header.command_id.id, header.status),
        (id, Status::Success.into())
    );
    let pd = AllocPdResponse::from_entry(&completion).pd;
    let state = machine.state();
    assert_eq!(state.resources.pd, 1);

    set_vector(&mut guest, 0, &[]);
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
fn events_arrive_without_a_message_of_the_vmm() {
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    // Completed later, by the timer: the client sends nothing meanwhile.
    machine.inject(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"delay_ms":50}}"#);
    let interrupt = Interrupt::new();
    set_vector(&mut guest, 0, &[interrupt.0.as_fd()]);
    guest.submit(&AllocPd::default());
    interrupt.wait();
    assert!(guest.completion().is_some());
}

#[test]
fn a_function_that_is_no_bus_master_does_not_answer() {
    let machine = Machine::start(None);
    let mut guest = machine.guest();
    assert!(answers(&mut guest));
    guest.enable(0);
    assert!(!answers(&mut guest));
    guest.enable(MEMORY_AND_BUS_MASTER);
    assert!(answers(&mut guest));
}

#[test]
fn memory_that_is_not_mapped_is_not_written() {
    let machine = Machine::start(None);
    let mut guest = machine.guest();
    guest.device.client.dma_unmap(BASE, RAM_SIZE).unwrap();
    assert!(!answers(&mut guest));
    guest.share_memory();
    assert!(answers(&mut guest));
}

#[test]
fn registers_are_not_read_by_mmio() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    for region in [VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX] {
        let value = region_read(&mut guest, region, Register::DevSts as u64);
        assert_eq!(value, [0xff; 4]);
    }
}

#[test]
fn send_queues_are_shared_memory() {
    let machine = Machine::start(None);
    let mut guest = machine.guest();
    let memory = send_queues(&mut guest);
    copy_to(&memory, b"hello");
    assert_eq!(&region_read(&mut guest, LLQ, OFFSET), b"hello");
    region_write(&mut guest, LLQ, OFFSET, b"J");
    assert_eq!(&copy_of(&memory), b"Jello");
}

#[test]
fn accesses_outside_of_a_region_do_nothing() {
    let machine = Machine::start(None);
    let mut guest = machine.guest();
    for region in 0..9 {
        for offset in [1, 0x3ffc, 0x3ffe, 1 << 40, u64::MAX - 3, u64::MAX - 1] {
            for data in [&mut [0xff; 7][..], &mut [0xff; 8]] {
                let size = guest.device.client.region_info(region).unwrap().size;
                let end = offset.checked_add(data.len() as u64);
                let inside = end.is_some_and(|end| end <= size);
                let written = guest.device.client.region_write(region, offset, data);
                assert_eq!(written.is_ok(), inside, "{region} {offset}");
                let read = guest.device.client.region_read(region, offset, data);
                assert_eq!(read.is_ok(), inside, "{region} {offset}");
            }
        }
    }
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    guest
        .device
        .client
        .set_irqs(0, flags, 0, 1, &[])
        .unwrap_err();
    let beyond = u32::from(VECTORS);
    let set = guest
        .device
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
            let size = guest.device.client.region_info(region).unwrap().size;
            assert_eq!(size == 0, region == index, "BAR {region} without {bar:?}");
        }
    }
}

#[test]
fn the_next_guest_finds_a_fresh_device() {
    let machine = Machine::start(None);
    let mut first = machine.started_guest();
    first.submit(&AllocPd::default());
    assert_eq!(machine.state().resources.pd, 1);
    first.device.client.shutdown().unwrap();
    drop(first);

    // The second guest waits until the first has disconnected.
    let mut second = machine.connect();
    assert_eq!(second.command(), 0);
    assert_eq!(machine.state().resources.pd, 0);
    power_on(&mut second);
    reset(&mut second);
}

#[test]
fn a_function_reset_keeps_the_mappings_of_the_vmm() {
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    guest.submit(&AllocPd::default());
    guest.device.client.reset().unwrap();
    assert_eq!(machine.state().resources.pd, 0);
    assert!(!answers(&mut guest), "the function is still a bus master");
    assert_eq!(guest.command(), 0);
    guest.enable(MEMORY_AND_BUS_MASTER);
    guest.set_response_address();
    assert!(guest.status().ready);
}

#[test]
fn a_function_reset_ends_all_work_of_the_device() {
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    machine.inject(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"hold":"pd"}}"#);
    for _ in 0..3 {
        guest.submit(&AllocPd::default());
    }
    region_write(&mut guest, LLQ, OFFSET, b"secret");
    guest.device.client.reset().unwrap();
    // The commands do not complete, even if the driver enables bus mastering again.
    guest.enable(MEMORY_AND_BUS_MASTER);
    const RING: usize = 64 * DEPTH as usize;
    guest.world.store(guest.acq.base, &[0; RING]);
    // Commands that had survived the reset would complete now.
    machine.function.with(|device, _, _| device.clear());
    assert_eq!(guest.world.entry(guest.acq.base), [0; RING]);
    assert_eq!(region_read(&mut guest, LLQ, OFFSET), [0; 6]);
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
fn a_function_without_power_loses_its_state() {
    const POWER_CONTROL: u64 = 0x44;
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    guest.submit(&AllocPd::default());
    guest.completion().unwrap();
    let interrupt = Interrupt::new();
    set_vector(&mut guest, 0, &[interrupt.0.as_fd()]);
    let config = VFIO_PCI_CONFIG_REGION_INDEX;
    region_write(&mut guest, config, POWER_CONTROL, &[3]);
    // In D3hot, only the configuration space is accessible.
    assert_eq!(guest.command(), MEMORY_AND_BUS_MASTER);
    assert!(!answers(&mut guest));
    guest.submit(&AllocPd::default());
    let fatal = |device: &mut Device, host: &mut dyn Host, now| device.post_event(host, now, 1, 0);
    machine.function.with(fatal);
    assert!(guest.completion().is_none());
    assert!(!interrupt.take());

    region_write(&mut guest, config, POWER_CONTROL, &[0]);
    assert_eq!(guest.command(), 0);
    let state = machine.state();
    assert_eq!((state.resources.pd, state.fatal_error), (0, false));
    assert_eq!(state.protocol_errors, 0);
    power_on_again(&mut guest);
    reset(&mut guest);
}

#[test]
fn an_unplugged_device_does_not_respond() {
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    guest.submit(&AllocPd::default());
    guest.completion().unwrap();
    let interrupt = Interrupt::new();
    set_vector(&mut guest, 0, &[interrupt.0.as_fd()]);
    machine.function.unplug();
    let state = machine.state();
    assert!(!state.plugged);
    assert_eq!(state.resources.pd, 0);

    // No access has an effect.
    for region in [
        VFIO_PCI_CONFIG_REGION_INDEX,
        VFIO_PCI_BAR0_REGION_INDEX,
        LLQ,
        VFIO_PCI_BAR4_REGION_INDEX,
    ] {
        region_write(&mut guest, region, 4, &[0; 4]);
        let found = region_read(&mut guest, region, 0);
        assert_eq!(found, [0xff; 8], "region {region}");
    }
    assert!(!answers(&mut guest));
    guest.submit(&AllocPd::default());
    guest.device.client.reset().unwrap();
    assert!(guest.completion().is_none());
    assert!(!interrupt.take());
    assert_eq!(machine.state().protocol_errors, 0);

    // In its slot again, the device has lost its state. The VMM's mappings of memory and interrupts are unchanged.
    machine.function.plug();
    assert_eq!(guest.command(), 0);
    assert!(!answers(&mut guest));
    power_on_again(&mut guest);
    start(&mut guest);
    guest.submit(&AllocPd::default());
    interrupt.wait();
    assert!(guest.completion().is_some());
    let state = machine.state();
    assert_eq!((state.plugged, state.resources.pd), (true, 1));
}

/// A rule can unplug the device between two writes of one message.
#[test]
fn the_rest_of_a_message_has_no_effect_on_an_unplugged_device() {
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    machine.inject(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"unplug":true}}"#);
    let entry = guest.entry(&AllocPd::default().to_request());
    guest.put(&entry);
    let doorbell = RegionWrite {
        region: VFIO_PCI_BAR0_REGION_INDEX,
        offset: Register::AqProdDb as u64,
        data: &1_u32.to_le_bytes(),
    };
    let function_reset = RegionWrite {
        region: VFIO_PCI_CONFIG_REGION_INDEX,
        offset: 0x78,
        data: &0x8000_u16.to_le_bytes(),
    };
    let client = &mut guest.device.client;
    client
        .region_write_multi(&[doorbell, function_reset])
        .unwrap();
    let state = machine.state();
    assert_eq!((state.plugged, state.function_resets), (false, 0));
}

/// QEMU disables all vectors to enable one more of a device that can't change their number.
#[test]
fn vectors_are_enabled_one_by_one() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    let irq = guest.device.client.irq_info(VFIO_PCI_MSIX_IRQ_INDEX);
    assert_eq!(irq.unwrap().flags & VFIO_IRQ_INFO_NORESIZE, 0);
}

#[test]
fn another_vmm_can_claim_an_unplugged_device() {
    let machine = Machine::start(None);
    let mut first = machine.started_guest();
    machine.function.unplug();
    let mut second = machine.guest();
    assert!(machine.state().plugged);
    start(&mut second);
    second.submit(&AllocPd::default());
    assert!(second.completion().is_some());

    // Requests of the first VMM still succeed, but have no effect.
    assert_eq!(first.command(), 0xffff);
    first.enable(MEMORY_AND_BUS_MASTER);
    first.device.client.reset().unwrap();
    first.submit(&AllocPd::default());
    assert!(first.completion().is_none());
    first.device.client.dma_unmap(BASE, RAM_SIZE).unwrap();
    first.device.client.shutdown().unwrap();
    drop(first);
    second.submit(&AllocPd::default());
    assert!(second.completion().is_some());
    assert_eq!(machine.state().resources.pd, 2);
}

#[test]
fn a_vmm_waits_for_a_device_in_use() {
    let machine = Machine::start(None);
    let mut first = machine.guest();
    reset(&mut first);
    let socket = machine.socket();
    let (waits, is_gone) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut second = connect(&socket);
            waits.store(true, Ordering::SeqCst);
            power_on(&mut second);
            assert!(is_gone.load(Ordering::SeqCst));
            reset(&mut second);
        });
        wait_until("second VMM", || waits.load(Ordering::SeqCst));
        for _ in 0..100 {
            assert!(first.status().ready);
        }
        is_gone.store(true, Ordering::SeqCst);
        first.device.client.shutdown().unwrap();
        drop(first);
    });
}

#[test]
fn send_queues_are_private_to_a_vmm() {
    let machine = Machine::start(None);
    let mut first = machine.guest();
    let old = send_queues(&mut first);
    copy_to(&old, b"secret");
    // The VMM can't shrink the memory, which the device reads.
    let region = first.device.client.region_info(LLQ).unwrap();
    region.file.unwrap().set_len(0).unwrap_err();
    first.device.client.shutdown().unwrap();

    let mut second = machine.guest();
    let new = send_queues(&mut second);
    assert_eq!(copy_of(&new), [0; 6]);
    // The first VMM still has its mapping, but of its own memory.
    copy_to(&old, b"attack");
    assert_eq!(copy_of(&new), [0; 6]);
    assert_eq!(region_read(&mut second, LLQ, OFFSET), [0; 6]);
    copy_to(&new, b"mine");
    assert_eq!(&region_read(&mut second, LLQ, OFFSET), b"mine\0\0");

    // A reset of the function clears the memory, also in existing mappings.
    second.device.client.reset().unwrap();
    assert_eq!(copy_of(&new), [0; 6]);
}

#[test]
fn a_vmm_that_truncates_its_memory_harms_only_itself() {
    let machine = Machine::start(None);
    let client = Client::connect(&machine.socket()).unwrap();
    let mut guest = Guest::of(client, Ram::with(RAM_SIZE, MemfdFlags::CLOEXEC));
    power_on(&mut guest);
    start(&mut guest);
    guest.submit(&AllocPd::default());
    assert!(guest.completion().is_some());
    guest.world.file().set_len(0).unwrap();
    // The device can't read the command, and has a fatal error.
    guest.write(Register::AqProdDb, 2);
    drop(guest);
    let mut guest = machine.guest();
    reset(&mut guest);
}

#[test]
fn silent_vmms_do_not_block_others() {
    let limits = Limits {
        start: Duration::from_millis(50),
        message: patience(),
    };
    let machine = Machine::start_with(None, limits);
    let socket = machine.socket();
    // Some negotiate the version, others send nothing.
    let negotiated: Vec<_> = (0..4).map(|_| Client::connect(&socket)).collect();
    let connect = |_| UnixStream::connect(&socket).unwrap();
    let silent: Vec<_> = (0..2).map(connect).collect();
    // This client is served once the limit of the first ones has expired. It is retried if it exceeds the limit itself.
    wait_for("place", || Client::connect(&socket)?.reset());
    drop((negotiated, silent));
}

/// VMMs that wait for a device and send nothing more do not prevent another one from waiting.
#[test]
fn a_new_vmm_replaces_the_longest_waiting_one() {
    let machine = Machine::start(None);
    let mut first = machine.guest();
    let socket = machine.socket();
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
    power_on(&mut machine.connect());
}

#[test]
fn disconnected_vmms_free_their_places() {
    let machine = Machine::start(None);
    let mut first = machine.guest();
    let socket = machine.socket();
    for _ in 0..12 {
        // The client requests the function, and disconnects before it gets it.
        let mut client = Client::connect(&socket).unwrap();
        client
            .send(vfio_user::Command::DeviceReset, Flags::COMMAND, &[], &[])
            .unwrap();
    }
    assert!(first.status().ready);
    first.device.client.shutdown().unwrap();
    let mut last = machine.guest();
    reset(&mut last);
}

/// An arbitrary write, but most often to a register and with a value that has an effect.
fn any_write() -> impl Strategy<Value = (u32, u64, u32)> {
    let register = select(Register::ALL).prop_map(|register| u64::from(u16::from(register)));
    let region = prop_oneof![
        8 => Just(VFIO_PCI_BAR0_REGION_INDEX),
        1 => Just(VFIO_PCI_BAR4_REGION_INDEX),
        1 => Just(VFIO_PCI_CONFIG_REGION_INDEX),
    ];
    let offset = prop_oneof![8 => register, 1 => 0..0x5000_u64, 1 => any::<u64>()];
    let value = prop_oneof![
        4 => (0..RAM_SIZE).prop_map(|offset| (BASE + offset) as u32),
        2 => Just(AqCaps { depth: DEPTH, entry_size: 64 }.into_raw()),
        2 => 0..64_u32,
        1 => any::<u32>(),
    ];
    (region, offset, value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_hostile_guest_does_no_harm(
        writes in vec(any_write(), 1..200),
        memory in vec(any::<u8>(), 64..4096),
    ) {
        let machine = Machine::start(None);
        let mut guest = machine.started_guest();
        for page in 0..4 {
            guest.world.store(BASE + page * PAGE, &memory);
        }
        for (region, offset, value) in writes {
            // A write outside of its region fails.
            let _ = guest.device.client.region_write(region, offset, &value.to_le_bytes());
        }
        drop(guest);
        // The next guest finds a device that works.
        let mut guest = machine.guest();
        reset(&mut guest);
    }
}
