// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A function as a virtual machine uses it: a vfio-user client with memory of its own, and a driver.

mod device;
mod vmms;

use std::{
    fs::File,
    io::Read,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    thread,
    time::Instant,
};

use efa_fabric::Settings;
use efa_hw::regs::{AqCaps, Register, ResetReason};
use efa_model::{Config, Profile, State};
use efa_testing::{
    bus::{Memory, PAGE},
    driver::DEPTH,
    machine::{BASE, MEMORY_AND_BUS_MASTER, Machine as Guest, Ram},
    wait::{patience, wait_until},
};
use efa_vfio::{Allowed, Bar, Function, Limits, Runtime, Server, listen};
use proptest::{collection::vec, prelude::*, sample::select};
use rustix::event::{EventfdFlags, eventfd};
use tempfile::TempDir;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX,
    VFIO_PCI_BAR4_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::Client;
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
        let limits = Limits { start: patience(), message: patience() };
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
        let server = Server::new(listener, Arc::clone(&function), limits, Allowed::Memory);
        thread::spawn(move || server.run());
        thread::spawn(move || runtime.work());
        Self { folder, function, trace }
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
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, vector.into(), 1, fds).unwrap();
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
    /// Sets the interrupt of the guest's first vector.
    fn of(guest: &mut Guest) -> Self {
        let interrupt = Self(File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
        set_vector(guest, 0, &[interrupt.0.as_fd()]);
        interrupt
    }

    fn take(&self) -> bool {
        (&self.0).read_exact(&mut [0; 8]).is_ok()
    }

    fn wait(&self) {
        wait_until("interrupt", || self.take());
    }
}

/// An arbitrary write, but most often to a register and with a value that has an effect.
fn any_write() -> impl Strategy<Value = (u32, u64, Vec<u8>)> {
    let register = select(Register::ALL).prop_map(|register| u64::from(u16::from(register)));
    let region = prop_oneof![
        8 => Just(VFIO_PCI_BAR0_REGION_INDEX),
        1 => Just(LLQ),
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
    let length = prop_oneof![8 => Just(4), 1 => 1..9_usize];
    let data = (value, length).prop_map(|(value, length)| value.to_le_bytes().repeat(2)[..length].to_vec());
    (region, offset, data)
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
        for (region, offset, mut data) in writes {
            // Accesses outside of their region fail.
            let _ = guest.device.client.region_write(region, offset, &data);
            let _ = guest.device.client.region_read(region, offset, &mut data);
        }
        // The thread of its VMM has not panicked.
        guest.command();
        drop(guest);
        // The next guest finds a device that works.
        let mut guest = machine.guest();
        reset(&mut guest);
    }
}
