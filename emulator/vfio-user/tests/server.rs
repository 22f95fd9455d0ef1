// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A server and a client at both ends of a pair of sockets.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{fs::FileExt, net::UnixStream},
    },
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use efa_testing::wait::{patience, wait_until};
use proptest::{collection::vec, prelude::*};
use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::Errno,
};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_MASK, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_BOOL,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, VFIO_REGION_INFO_FLAG_MMAP,
};
use vfio_user::{
    Action, Backend, Client, Command, Device, DmaMap, Error, Flags, HEADER, Header, Irq, IrqData,
    IrqSet, Limits, MAX_BATCH, MAX_DATA, MAX_FDS, Region, RegionWrite, serve,
};

const SIZE: usize = 0x100;
const IRQ: u32 = 2;
const IRQS: u32 = 4;

/// A call of the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    /// A batch of this number of writes.
    Writes(usize),
    Map(DmaMap, bool),
    Unmap(u64, u64),
    UnmapAll,
    Irqs(u32, u32, Action, String),
    Reset,
}

/// Region 0 is `memory`. The other regions are a file, which clients can map as region 1.
#[derive(Default)]
struct State {
    memory: Vec<u8>,
    events: Vec<Event>,
    files: Vec<File>,
    refuses: bool,
    started: bool,
}

/// A gate at which writes wait while a test holds the lock.
#[derive(Default)]
struct Gate {
    is_reached: AtomicBool,
    lock: Mutex<()>,
}

#[derive(Clone)]
struct Memory(Arc<Mutex<State>>, Arc<File>, Arc<Gate>);

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn event(&self, event: Event) -> io::Result<()> {
        let mut state = self.state();
        state.events.push(event);
        match state.refuses {
            true => Err(Errno::NOSPC.into()),
            false => Ok(()),
        }
    }

    fn events(&self) -> Vec<Event> {
        std::mem::take(&mut self.state().events)
    }
}

impl Backend for Memory {
    fn may_idle(&self) -> bool {
        self.state().started
    }

    fn region_file(&mut self, _: u32) -> io::Result<Arc<File>> {
        Ok(Arc::clone(&self.1))
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match region {
            0 => {
                let offset = offset as usize;
                data.copy_from_slice(&self.state().memory[offset..offset + data.len()]);
                Ok(())
            }
            _ => self.1.read_exact_at(data, offset),
        }
    }

    fn region_write(&mut self, writes: &[RegionWrite<'_>]) -> io::Result<()> {
        self.2.is_reached.store(true, Ordering::SeqCst);
        drop(self.2.lock.lock());
        for write in writes {
            let offset = write.offset as usize;
            match write.region {
                0 => self.state().memory[offset..offset + write.data.len()]
                    .copy_from_slice(write.data),
                _ => self.1.write_all_at(write.data, write.offset)?,
            }
        }
        self.event(Event::Writes(writes.len()))
    }

    fn dma_map(&mut self, map: DmaMap, file: Option<File>) -> io::Result<()> {
        let shared = file.is_some();
        self.state().files.extend(file);
        self.event(Event::Map(map, shared))
    }

    fn dma_unmap(&mut self, address: u64, size: u64) -> io::Result<()> {
        self.event(Event::Unmap(address, size))
    }

    fn dma_unmap_all(&mut self) -> io::Result<()> {
        self.event(Event::UnmapAll)
    }

    fn set_irqs(&mut self, set: IrqSet<'_>) -> io::Result<()> {
        assert_eq!(set.index, IRQ);
        let data = match &set.data {
            IrqData::None => "none".to_owned(),
            IrqData::Bools(bools) => format!("{bools:?}"),
            IrqData::Eventfds(fds) => format!("{} eventfds", fds.len()),
        };
        self.event(Event::Irqs(set.start, set.count, set.action, data))
    }

    fn reset(&mut self) -> io::Result<()> {
        self.event(Event::Reset)
    }
}

fn device() -> Device {
    let region = |size, mappable| Region { size, mappable };
    let irq = |count| Irq { flags: 1, count };
    Device {
        regions: vec![
            region(SIZE as u64, vec![]),
            region(0x3000, vec![0..0x1000, 0x2000..0x3000]),
            Region::default(),
            region(4 * MAX_DATA as u64, vec![]),
        ],
        irqs: vec![irq(0), irq(0), irq(IRQS)],
    }
}

fn memory() -> Memory {
    let file = File::from(memfd_create("region", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(4 * MAX_DATA as u64).unwrap();
    let state = State {
        memory: vec![0; SIZE],
        started: true,
        ..State::default()
    };
    Memory(Arc::new(Mutex::new(state)), Arc::new(file), Arc::default())
}

type Server = JoinHandle<Result<(), Error>>;

/// Returns limits that a client exceeds only if it hangs.
fn patient() -> Limits {
    Limits {
        start: patience(),
        message: patience(),
    }
}

/// Starts a server for a client that has sent nothing yet.
fn silent(limits: Limits) -> (Client, Memory, Server) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let memory = memory();
    let mut backend = memory.clone();
    let server = thread::spawn(move || serve(&theirs, &device(), &mut backend, limits));
    (Client::new(ours).unwrap(), memory, server)
}

fn connect() -> (Client, Memory, Server) {
    connect_with(patient())
}

fn connect_with(limits: Limits) -> (Client, Memory, Server) {
    let (mut client, memory, server) = silent(limits);
    client.negotiate().unwrap();
    (client, memory, server)
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().map(|error| error.raw_os_error().unwrap_or(0))
}

const EINVAL: Option<i32> = Some(22);
const ENOSPC: Option<i32> = Some(28);
const ENOSYS: Option<i32> = Some(38);

/// Returns a header with arbitrary values.
fn message(command: u16, size: u32, flags: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = Header {
        command,
        flags: Flags(flags),
        ..Header::default()
    };
    header.encode(&[], &mut bytes);
    bytes[4..8].copy_from_slice(&size.to_ne_bytes());
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn write(region: u32, offset: u64, data: &[u8]) -> RegionWrite<'_> {
    RegionWrite {
        region,
        offset,
        data,
    }
}

fn content<const N: usize>(file: &File, offset: u64) -> [u8; N] {
    let mut found = [0xa5; N];
    file.read_exact_at(&mut found, offset).unwrap();
    found
}

/// Checks that a request is invalid.
fn refused(client: &mut Client, command: Command, payload: &[u8], fds: &[BorrowedFd<'_>]) {
    let result = client.request(command, payload, fds);
    assert_eq!(errno(result), EINVAL, "{command:?} of {}", payload.len());
}

#[test]
fn clients_get_the_regions_and_interrupts_of_the_device() {
    let (mut client, ..) = connect();
    assert_eq!(client.device_info().unwrap(), (4, 3));
    let mmap = VFIO_REGION_INFO_FLAG_MMAP;
    let plain = client.region_info(0).unwrap();
    assert_eq!((plain.size, plain.flags & mmap), (SIZE as u64, 0));
    assert!(plain.file.is_none());
    let shared = client.region_info(1).unwrap();
    assert_eq!(shared.mappable, [0..0x1000, 0x2000..0x3000]);
    assert_eq!(shared.flags & mmap, mmap);
    client.region_write(1, 0x2345, b"hello").unwrap();
    assert_eq!(&content(&shared.file.unwrap(), 0x2345), b"hello");
    // A reply without space for the list of areas has no file, but QEMU requires the offset of the list.
    let mut request = vec![0; 32];
    (request[0], request[8]) = (32, 1);
    let reply = client
        .request(Command::DeviceGetRegionInfo, &request, &[])
        .unwrap();
    assert_eq!((reply.payload.len(), reply.fds.len()), (32, 0));
    assert_eq!((reply.payload[0], reply.payload[12]), (80, 32));
    let absent = client.region_info(2).unwrap();
    assert_eq!((absent.size, absent.flags), (0, 0));
    assert_eq!(errno(client.region_info(4)), EINVAL);
    assert_eq!(client.irq_info(IRQ).unwrap().count, IRQS);
    assert_eq!(errno(client.irq_info(3)), EINVAL);
}

#[test]
fn regions_are_read_and_written() {
    let (mut client, memory, _) = connect();
    client.region_write(0, 0x10, b"hello").unwrap();
    let mut found = [0; 7];
    client.region_read(0, 0xf, &mut found).unwrap();
    assert_eq!(&found, b"\0hello\0");
    let writes: Vec<_> = (0..5_u64)
        .map(|n| write(0, 0x20 + 2 * n, &b"abcdefgh"[..n as usize + 1]))
        .collect();
    client.region_write_multi(&writes).unwrap();
    let mut found = [0; 13];
    client.region_read(0, 0x20, &mut found).unwrap();
    assert_eq!(&found, b"a\0ababababcde");
    assert_eq!(memory.events(), [Event::Writes(1), Event::Writes(5)]);
    let mut large = vec![0; MAX_DATA];
    large[MAX_DATA - 1] = 7;
    client.region_write(3, 9, &large).unwrap();
    let mut found = vec![1; MAX_DATA];
    client.region_read(3, 9, &mut found).unwrap();
    assert_eq!(found, large);
}

#[test]
fn accesses_outside_of_regions_fail() {
    let (mut client, memory, _) = connect();
    for (region, offset, count) in [
        (0, SIZE as u64, 1),
        (0, SIZE as u64 - 1, 2),
        (0, u64::MAX, 1),
        (0, 0, SIZE + 1),
        (0, 0, 0),
        (2, 0, 1),
        (4, 0, 1),
        (u32::MAX, 0, 1),
    ] {
        let mut data = vec![0; count];
        let written = client.region_write(region, offset, &data);
        assert_eq!(errno(written), EINVAL, "{region} {offset}");
        let read = client.region_read(region, offset, &mut data);
        assert_eq!(errno(read), EINVAL, "{region} {offset}");
        if count <= 8 {
            let writes = [write(0, 0, &[1]), write(region, offset, &data)];
            let written = client.region_write_multi(&writes);
            assert_eq!(errno(written), EINVAL, "{region} {offset}");
        }
    }
    // More bytes than a message may read.
    let access = words(&[0, 0, 3, MAX_DATA as u32 + 1]);
    refused(&mut client, Command::RegionRead, &access, &[]);
    assert_eq!(memory.events(), []);
    assert_eq!(memory.state().memory[0], 0);
}

#[test]
fn posted_writes_are_batched_in_order() {
    let (mut client, memory, _) = connect();
    // The writes queue while the backend blocks.
    let busy = memory.2.lock.lock();
    client.region_post(0, 0, &[0]).unwrap();
    wait_until("write", || memory.2.is_reached.load(Ordering::SeqCst));
    for n in 1..=MAX_BATCH as u8 + 9 {
        client.region_post(0, 0, &[n]).unwrap();
    }
    // A posted write that fails has no reply, either.
    client.region_post(9, 0, &[1]).unwrap();
    // The read that follows the writes takes effect after them.
    let access = words(&[0, 0, 0, 1]);
    client
        .send(Command::RegionRead, Flags::COMMAND, &access, &[])
        .unwrap();
    drop(busy);
    let found = client.receive().unwrap().payload;
    assert_eq!(found.last(), Some(&(MAX_BATCH as u8 + 9)));
    let batches = [1, MAX_BATCH, 9].map(Event::Writes);
    assert_eq!(memory.events(), batches);
    client.region_post(0, 0, &[1]).unwrap();
    client.region_write(0, 1, &[1]).unwrap();
    client.reset().unwrap();
    assert_eq!(memory.state().memory[..2], [1, 1]);
}

#[test]
fn memory_is_mapped_and_unmapped() {
    let (mut client, memory, _) = connect();
    let ram = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
    ram.write_all_at(b"ram", 0).unwrap();
    let map = DmaMap {
        readable: true,
        writable: false,
        offset: 0x1000,
        address: 1 << 40,
        size: 0x2000,
    };
    client.dma_map(map, Some(&ram)).unwrap();
    assert_eq!(&content(&memory.state().files[0], 0), b"ram");
    let both = DmaMap {
        writable: true,
        ..map
    };
    client.dma_map(both, None).unwrap();
    client.dma_unmap(1 << 40, 0x2000).unwrap();
    client.dma_unmap_all().unwrap();
    let expected = [
        Event::Map(map, true),
        Event::Map(both, false),
        Event::Unmap(1 << 40, 0x2000),
        Event::UnmapAll,
    ];
    assert_eq!(memory.events(), expected);

    memory.state().refuses = true;
    assert_eq!(errno(client.dma_map(map, Some(&ram))), ENOSPC);
    assert_eq!(errno(client.dma_unmap(0, 1)), ENOSPC);
    assert_eq!(errno(client.reset()), ENOSPC);
    memory.events();
    // Unknown flags, two files, and a range in a request to unmap all.
    let mut payload = vec![0; 32];
    payload[4] = 4;
    refused(&mut client, Command::DmaMap, &payload, &[]);
    payload[4] = 3;
    let files = [ram.as_fd(), ram.as_fd()];
    refused(&mut client, Command::DmaMap, &payload, &files);
    let mut payload = vec![0; 24];
    (payload[4], payload[17]) = (2, 1);
    refused(&mut client, Command::DmaUnmap, &payload, &[]);
    assert_eq!(memory.events(), []);
}

#[test]
fn interrupts_are_set() {
    let (mut client, memory, _) = connect();
    let file = File::open("/dev/null").unwrap();
    let fds = [file.as_fd(); 3];
    let trigger = VFIO_IRQ_SET_ACTION_TRIGGER;
    let eventfd = VFIO_IRQ_SET_DATA_EVENTFD | trigger;
    client.set_irqs(IRQ, eventfd, 1, 3, &fds).unwrap();
    client.set_irqs(IRQ, eventfd, 0, 2, &[]).unwrap();
    client
        .set_irqs(IRQ, VFIO_IRQ_SET_DATA_NONE | trigger, 0, 0, &[])
        .unwrap();
    let mask = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_MASK;
    client.set_irqs(IRQ, mask, 0, IRQS, &[]).unwrap();
    let mut bools = words(&[23, VFIO_IRQ_SET_DATA_BOOL | trigger, IRQ, 1, 3]);
    bools.extend([1, 0, 1]);
    client.request(Command::DeviceSetIrqs, &bools, &[]).unwrap();
    let set = |start, count, action, data: &str| Event::Irqs(start, count, action, data.into());
    let expected = [
        set(1, 3, Action::Trigger, "3 eventfds"),
        set(0, 2, Action::Trigger, "0 eventfds"),
        set(0, 0, Action::Trigger, "none"),
        set(0, IRQS, Action::Mask, "none"),
        set(1, 3, Action::Trigger, "[1, 0, 1]"),
    ];
    assert_eq!(memory.events(), expected);

    let none = VFIO_IRQ_SET_DATA_NONE | trigger;
    for (index, flags, start, count, fds) in [
        (3, none, 0, 0, &fds[..0]),
        (0, none, 0, 1, &[]),
        (IRQ, none, IRQS, 1, &[]),
        (IRQ, none, u32::MAX, 2, &[]),
        (IRQ, none, 0, 1, &fds[..1]),
        (IRQ, eventfd, 0, 3, &fds[..2]),
        (IRQ, eventfd, 0, 1, &fds[..2]),
        (IRQ, trigger, 0, 1, &[]),
        (IRQ, VFIO_IRQ_SET_DATA_NONE, 0, 1, &[]),
        (IRQ, none | VFIO_IRQ_SET_ACTION_MASK, 0, 1, &[]),
        (IRQ, none | VFIO_IRQ_SET_DATA_BOOL, 0, 1, &[]),
        (IRQ, VFIO_IRQ_SET_DATA_BOOL | trigger, 0, 1, &[]),
        (IRQ, none | (1 << 31), 0, 1, &[]),
    ] {
        let set = client.set_irqs(index, flags, start, count, fds);
        assert_eq!(errno(set), EINVAL, "{index} {flags:#x} {start} {count}");
    }
    assert_eq!(memory.events(), []);
}

#[test]
fn invalid_requests_do_not_end_the_connection() {
    let (mut client, memory, server) = connect();
    let file = File::open("/dev/null").unwrap();
    let fd = [file.as_fd()];
    for command in [
        Command::DeviceReset,
        Command::RegionRead,
        Command::DeviceGetInfo,
    ] {
        refused(&mut client, command, &[0; 16], &fd);
    }
    for command in [
        Command::Version,
        Command::DmaMap,
        Command::DmaUnmap,
        Command::DeviceGetInfo,
        Command::DeviceGetRegionInfo,
        Command::DeviceGetIrqInfo,
        Command::DeviceSetIrqs,
        Command::RegionRead,
        Command::RegionWrite,
        Command::RegionWriteMulti,
        Command::DeviceReset,
    ] {
        // Too short or too long for any of them.
        for length in [3, 7, 35] {
            refused(&mut client, command, &vec![0; length], &[]);
            // A command without a reply gets none if it fails, either.
            client
                .send(command, Flags::NO_REPLY, &vec![0; length], &[])
                .unwrap();
        }
    }
    for command in [0, 6, 11, 12, 14, 16, 17, 18, 99, u16::MAX] {
        client
            .send_raw(&message(command, HEADER as u32, 0), &fd)
            .unwrap();
        let header = client.receive().unwrap().header;
        assert_eq!((header.command, header.flags), (command, Flags::ERROR));
        assert_eq!(Some(header.error as i32), ENOSYS);
        assert_eq!(header.size as usize, HEADER);
    }
    assert_eq!(memory.events(), []);
    client.reset().unwrap();
    drop(client);
    server.join().unwrap().unwrap();
    assert_eq!(memory.events(), [Event::Reset]);
}

#[test]
fn invalid_messages_end_the_connection() {
    for (bytes, what) in [
        (message(13, 15, 0), "Size(15)"),
        (message(13, 0, 0), "Size(0)"),
        (message(13, u32::MAX, 0), "Size(4294967295)"),
        (message(13, (MAX_DATA + 33) as u32, 0), "Size(65569)"),
        (message(13, HEADER as u32, 1), "Kind(1)"),
        (message(13, HEADER as u32, 0x12), "Kind(18)"),
        (message(13, HEADER as u32 + 1, 0), "Truncated"),
        (vec![0; 5], "Truncated"),
    ] {
        let (mut client, memory, server) = connect();
        client.send_raw(&bytes, &[]).unwrap();
        client.shutdown_write().unwrap();
        let error = server.join().unwrap().unwrap_err();
        assert_eq!(format!("{error:?}"), what);
        assert!(client.receive().is_err());
        assert_eq!(memory.events(), []);
    }
}

#[test]
fn the_first_message_is_a_version() {
    for (command, payload) in [
        (Command::Version, &b"\x01\0\0\0"[..]),
        (Command::Version, b""),
        (Command::Version, b"\0\0\0\0{"),
        (Command::Version, b"\0\0\0\0\0"),
        (Command::Version, b"\0\0\0\0[[[\0"),
        (Command::Version, b"\0\0\0\0\xff\xfe\0\0"),
        (Command::DeviceReset, b""),
    ] {
        let (mut client, memory, server) = silent(patient());
        refused(&mut client, command, payload, &[]);
        assert!(client.receive().is_err());
        assert!(matches!(server.join().unwrap(), Err(Error::Version)));
        assert_eq!(memory.events(), []);
    }
    let (mut client, ..) = silent(patient());
    client.request(Command::Version, &[0; 4], &[]).unwrap();
    client.reset().unwrap();
}

#[test]
fn messages_may_come_in_any_pieces() {
    let (mut client, memory, _) = connect();
    let file = File::open("/dev/null").unwrap();
    let fds = [file.as_fd()];
    let (fd, none) = fds.split_at(1);
    let mut bytes = message(Command::DmaMap as u16, HEADER as u32 + 32, 0);
    bytes.extend(words(&[0, 3]));
    bytes.extend([1; 24]);
    let reset = message(Command::DeviceReset as u16, HEADER as u32, 0);
    for cut in 1..bytes.len() - 1 {
        // The descriptor comes with the first piece or the second one.
        for (one, two) in [(fd, none), (none, fd)] {
            let mut before = reset.clone();
            before.extend(&bytes[..cut]);
            client.send_raw(&reset, &[]).unwrap();
            client.send_raw(&before, one).unwrap();
            client.send_raw(&bytes[cut..], two).unwrap();
            client.send_raw(&reset, &[]).unwrap();
            for _ in 0..4 {
                assert_eq!(client.receive().unwrap().header.flags, Flags::REPLY);
            }
            let events = memory.events();
            assert!(matches!(
                events[..],
                [
                    Event::Reset,
                    Event::Reset,
                    Event::Map(_, true),
                    Event::Reset
                ]
            ));
        }
    }
}

/// Counts the descriptors of this process for files of this name.
fn open(name: &str) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    links
        .filter_map(|link| fs::read_link(link.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy().contains(name))
        .count()
}

#[test]
fn descriptors_do_not_leak() {
    let file = File::from(memfd_create("leaky", MemfdFlags::CLOEXEC).unwrap());
    let (mut client, memory, server) = connect();
    let reset = message(Command::DeviceReset as u16, HEADER as u32, 0);
    for count in 1..=MAX_FDS {
        client.send_raw(&reset, &vec![file.as_fd(); count]).unwrap();
        assert_eq!(client.receive().unwrap().header.error, 22);
        client
            .send_raw(&message(99, HEADER as u32, 0), &vec![file.as_fd(); count])
            .unwrap();
        client.receive().unwrap();
    }
    assert_eq!(open("leaky"), 1);
    // Two pieces of one message, each with descriptors.
    client
        .send_raw(&reset[..1], &[file.as_fd(); MAX_FDS])
        .unwrap();
    client.send_raw(&reset[1..2], &[file.as_fd()]).unwrap();
    assert!(matches!(server.join().unwrap(), Err(Error::Descriptors)));
    assert_eq!((open("leaky"), memory.events()), (1, vec![]));
}

#[test]
fn a_client_that_does_nothing_is_disconnected() {
    let limits = Limits {
        start: Duration::from_millis(50),
        ..patient()
    };
    let (_silent, _, server) = silent(limits);
    assert!(matches!(server.join().unwrap(), Err(Error::Start)));
    // Requests do not extend the limit before the first use of the device, whether or not they arrive in time.
    let (mut client, memory, server) = silent(limits);
    memory.state().started = false;
    let _ = client.negotiate();
    let _ = client.reset();
    assert!(matches!(server.join().unwrap(), Err(Error::Start)));
    // Neither does a message that has only begun.
    let (mut client, _, server) = silent(limits);
    client.send_raw(&[1; 7], &[]).unwrap();
    assert!(matches!(server.join().unwrap(), Err(Error::Start)));
}

#[test]
fn a_client_that_stops_within_a_message_is_disconnected() {
    let limits = Limits {
        message: Duration::from_millis(50),
        ..patient()
    };
    let (mut client, _, server) = connect_with(limits);
    client.send_raw(&[1; 7], &[]).unwrap();
    assert!(matches!(server.join().unwrap(), Err(Error::Slow)));

    let (mut client, _, server) = connect_with(limits);
    let access = words(&[0, 0, 3, MAX_DATA as u32]);
    // The client reads nothing. The server may have disconnected it already.
    for _ in 0..16 {
        let _ = client.send(Command::RegionRead, Flags::COMMAND, &access, &[]);
    }
    assert!(matches!(server.join().unwrap(), Err(Error::Slow)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// For arbitrary data in arbitrary pieces, the server ends, and all its replies are valid messages.
    #[test]
    fn arbitrary_bytes_do_no_harm(
        pieces in vec((any_piece(), 0..4_usize), 0..12),
        negotiated: bool,
    ) {
        let file = File::open("/dev/null").unwrap();
        let (mut client, _, server) = silent(patient());
        if negotiated {
            client.negotiate().unwrap();
        }
        for (piece, fds) in pieces {
            // The server may have disconnected the client already.
            let _ = client.send_raw(&piece, &vec![file.as_fd(); fds]);
        }
        let _ = client.shutdown_write();
        let _ = server.join().unwrap();
        while let Ok(reply) = client.receive() {
            prop_assert!(matches!(reply.header.flags, Flags::REPLY | Flags::ERROR));
            prop_assert_eq!(reply.header.flags == Flags::ERROR, reply.header.error != 0);
        }
    }
}

/// A message with an arbitrary payload, or arbitrary bytes.
fn any_piece() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![4 => 0..4_u32, 2 => Just(IRQ), 1 => 0..0x100_u32, 1 => any::<u32>()];
    let parts = (
        0..20_u16,
        vec(word, 0..9),
        prop_oneof![8 => Just(0), 1 => any::<i8>()],
        prop_oneof![4 => Just(0_u32), 4 => Just(16), 1 => any::<u32>()],
    );
    let request = parts.prop_map(|(command, words, delta, flags)| {
        let size = (HEADER + 4 * words.len()) as u32;
        let mut bytes = message(command, size.wrapping_add_signed(delta.into()), flags);
        bytes.extend(words.into_iter().flat_map(u32::to_ne_bytes));
        bytes
    });
    prop_oneof![9 => request, 1 => vec(any::<u8>(), 1..64)]
}
