// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Other emulators with devices of the same network, over TCP.
//!
//! Each end first sends its version and its devices, then the number of its session with the other end, and then packets. Each
//! message follows its length. TCP only transports packets: the emulated network of the sender decides about losses and delays.

use std::{
    io::{self, BufReader, BufWriter, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use efa_fabric::{Frame, LINK_VERSION, Link, Newcomer};
use efa_vfio::Runtime;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    clients::{Place, end, serve_all},
    deadline::Until,
};

/// Limit on a message in bytes: a packet with the largest payload, or the addresses of all devices of a program.
const MAX_MESSAGE: usize = 16 << 10;

/// Bytes that a system call moves at once, in each direction of a link: several packets.
const BUFFER: usize = 64 << 10;

/// Limit on connections, including those that have not joined. One more replaces the oldest of the latter.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// Limit on packets that wait to be sent to an emulator. Further packets are dropped.
const MAX_WAITING: usize = 1024;

/// Time between two attempts to connect to an emulator.
const RETRY: Duration = Duration::from_secs(1);

/// Time without a packet after which a keep-alive message is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Time that an emulator may take to send its greeting.
const GREETING: Duration = Duration::from_secs(10);

/// Time without a message after which a link is closed. Also the timeout of a write to a link.
const SILENCE: Duration = Duration::from_secs(10);

/// First message of each end, its greeting.
#[derive(Serialize, Deserialize)]
struct Hello {
    version: u32,
    /// Random number that distinguishes this run of the program from other programs and runs.
    program: u64,
    devices: Vec<[u8; 16]>,
}

/// Any later message.
#[derive(Serialize, Deserialize)]
enum Message {
    Alive,
    Packet(Frame),
}

/// This program's end of all links.
#[derive(Clone)]
pub(crate) struct Peers {
    runtime: Arc<Runtime>,
    program: u64,
}

/// Packets that wait to be sent to an emulator.
#[derive(Debug)]
struct Queue(SyncSender<Frame>);

impl Link for Queue {
    fn send(&self, frame: Frame) {
        // The packet is dropped if the queue is full, or if the emulator is gone.
        let _ = self.0.try_send(frame);
    }
}

impl Peers {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, program: fastrand::u64(..) }
    }

    /// Accepts links of other emulators. Never returns, so it needs a thread of its own.
    pub(crate) fn listen(&self, listener: &TcpListener) -> ! {
        let peers = self.clone();
        serve_all(
            "link",
            MAX_CONNECTIONS,
            || Ok(listener.accept()?.0),
            move |stream, place| report(&peers.run_link(stream, Some(place))),
        )
    }

    /// Joins an emulator, and reconnects when the link is lost. Never returns, so it needs a thread of its own.
    pub(crate) fn join(&self, target: &str, addresses: &[SocketAddr]) -> ! {
        loop {
            match TcpStream::connect(addresses) {
                Ok(stream) => report(&self.run_link(&stream, None)),
                Err(error) => tracing::info!(%error, %target, "cannot join; retrying"),
            }
            thread::sleep(RETRY);
        }
    }

    /// Exchanges packets with an emulator until one end closes the link. A joined emulator keeps its place, even without traffic.
    fn run_link(&self, stream: &TcpStream, place: Option<&Place<TcpStream>>) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SILENCE))?;
        let mut writer = BufWriter::with_capacity(BUFFER, stream.try_clone()?);
        let limited = Until::new(stream, Instant::now() + GREETING);
        let mut reader = BufReader::with_capacity(BUFFER, limited);
        let addresses = self.runtime.fabric().addresses();
        let Some((program, devices)) = greet(&mut reader, &mut writer, self.program, addresses)? else {
            return Ok(());
        };
        let session = self.runtime.fabric().session(program, &devices);
        write(&mut writer, &session.number)?;
        writer.flush()?;
        let Some(offered) = read(&mut reader)? else {
            return Ok(());
        };
        reader.get_mut().lift(SILENCE)?;
        let host = stream.peer_addr()?.ip().to_canonical();
        let newcomer = Newcomer { program, host: place.map(|_| host), addresses: &devices, session, offered };
        let exchange = || self.exchange(stream, reader, writer, &newcomer);
        match place {
            Some(place) => place.work(exchange).unwrap_or(Ok(())),
            None => exchange(),
        }
    }

    /// Exchanges packets with an emulator that has joined.
    fn exchange(
        &self,
        stream: &TcpStream,
        mut reader: BufReader<Until<'_>>,
        mut writer: BufWriter<TcpStream>,
        newcomer: &Newcomer<'_>,
    ) -> io::Result<()> {
        let (sender, frames) = mpsc::sync_channel(MAX_WAITING);
        let way: Arc<dyn Link> = Arc::new(Queue(sender));
        let joined = self.runtime.join(newcomer, &way);
        let link = joined.map_err(io::Error::other)?;
        // The runtime has the only reference now, and drops it in leave(), which ends the writer.
        drop(way);
        tracing::info!("an emulator has joined");
        let writing = thread::Builder::new().name("link writer".into());
        match writing.spawn(move || send(&mut writer, &frames)) {
            Ok(writing) => {
                let result = receive(&mut reader, |frame| self.runtime.accept(link, frame));
                self.runtime.fabric().leave(self.runtime.now(), link);
                end(stream);
                let _ = writing.join();
                result
            }
            Err(error) => {
                self.runtime.fabric().leave(self.runtime.now(), link);
                Err(error)
            }
        }
    }
}

/// Exchanges greetings. Returns the other emulator's number and device addresses, or `None` if it has closed the connection.
///
/// # Errors
///
/// The connection fails, or the other emulator has another version.
pub fn greet(
    reader: &mut impl Read,
    writer: &mut impl Write,
    program: u64,
    devices: Vec<[u8; 16]>,
) -> io::Result<Option<(u64, Vec<[u8; 16]>)>> {
    let hello = Hello { version: LINK_VERSION, program, devices };
    write(writer, &hello)?;
    writer.flush()?;
    let Some(Hello { version, program, devices }) = read(reader)? else {
        return Ok(None);
    };
    if version != LINK_VERSION {
        return Err(io::Error::other(format!(
            "the other emulator has protocol version {version}, this one {LINK_VERSION}: use the same build"
        )));
    }
    Ok(Some((program, devices)))
}

/// Receives packets from an emulator until it closes the connection.
///
/// # Errors
///
/// The connection fails, or a message is invalid.
pub fn receive(reader: &mut impl Read, mut accept: impl FnMut(Frame)) -> io::Result<()> {
    while let Some(message) = read(reader)? {
        if let Message::Packet(frame) = message {
            accept(frame);
        }
    }
    Ok(())
}

fn report(end: &io::Result<()>) {
    match end {
        Ok(()) => tracing::info!("an emulator has left"),
        Err(error) => tracing::warn!(%error, "the connection to an emulator has ended"),
    }
}

/// Writes queued packets in batches, and keep-alive messages while there are none.
fn send(writer: &mut impl Write, frames: &Receiver<Frame>) -> io::Result<()> {
    loop {
        match frames.recv_timeout(KEEP_ALIVE) {
            Ok(frame) => {
                write(writer, &Message::Packet(frame))?;
                while let Ok(frame) = frames.try_recv() {
                    write(writer, &Message::Packet(frame))?;
                }
            }
            Err(RecvTimeoutError::Timeout) => write(writer, &Message::Alive)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        writer.flush()?;
    }
}

fn write(writer: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(value).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    writer.write_all(&length.to_le_bytes())?;
    writer.write_all(&bytes)
}

/// Reads the next value, or `None` if the other end has closed the connection.
fn read<T: DeserializeOwned>(reader: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match reader.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(io::Error::other(format!("a message of {length} bytes exceeds the limit of {MAX_MESSAGE}")));
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map(Some).map_err(io::Error::other)
}
