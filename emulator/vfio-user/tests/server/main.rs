// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A server and a client at both ends of a pair of sockets.

mod connections;
mod requests;

use std::{
    fs::File,
    io,
    os::{
        fd::BorrowedFd,
        unix::{fs::FileExt, net::UnixStream},
    },
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::Errno,
};
use vfio_user_server::{
    Action, Backend, Client, Command, Device, DmaMap, Error, Flags, Header, Irq, IrqData, IrqSet, Limits, MAX_DATA,
    Region, RegionWrite, serve,
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
                0 => self.state().memory[offset..offset + write.data.len()].copy_from_slice(write.data),
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
    let state = State { memory: vec![0; SIZE], started: true, ..State::default() };
    Memory(Arc::new(Mutex::new(state)), Arc::new(file), Arc::default())
}

type Server = JoinHandle<Result<(), Error>>;

/// Returns limits that a client exceeds only if it hangs.
fn patient() -> Limits {
    let hang = Duration::from_secs(600);
    Limits { start: hang, message: hang }
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
    let header = Header { command, flags: Flags(flags), ..Header::default() };
    header.encode(&[], &mut bytes);
    bytes[4..8].copy_from_slice(&size.to_ne_bytes());
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn write(region: u32, offset: u64, data: &[u8]) -> RegionWrite<'_> {
    RegionWrite { region, offset, data }
}

/// Checks that a request is invalid.
fn refused(client: &mut Client, command: Command, payload: &[u8], fds: &[BorrowedFd<'_>]) {
    let result = client.request(command, payload, fds);
    assert_eq!(errno(result), EINVAL, "{command:?} of {}", payload.len());
}
