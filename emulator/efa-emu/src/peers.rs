// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Other emulators with devices of the same network, over TCP.
//!
//! Each end first says its version and its devices. Then packets follow, each with its length before it. TCP only carries
//! them: what is lost or late is up to the network of the emulator that sends.

use std::{
    io::{self, BufReader, BufWriter, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use efa_fabric::{Frame, Link};
use efa_vfio::Runtime;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    clients::{Limit, Place, serve_all},
    deadline::Until,
};

/// Changes when an older emulator would not understand.
const VERSION: u32 = 3;

/// Most bytes of a message: a packet with the largest payload that one has, or the addresses of all devices of a program.
const MAX_MESSAGE: usize = 16 << 10;

/// Most connections at a time, including those that have not joined. One more replaces the oldest of these.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// Most packets that wait to be sent to an emulator. What comes then is lost.
const MAX_WAITING: usize = 1024;

/// Time between two tries to reach an emulator.
const RETRY: Duration = Duration::from_secs(1);

/// After how long without a packet an emulator says that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// How long an emulator may take to say who it is.
const GREETING: Duration = Duration::from_secs(10);

/// After how long of silence an emulator is gone; and how long it may leave what it is sent.
const SILENCE: Duration = Duration::from_secs(10);

/// What each end says first.
#[derive(Serialize, Deserialize)]
struct Hello {
    version: u32,
    /// Distinguishes the program from others, and from itself after it was started again.
    program: u64,
    devices: Vec<[u8; 16]>,
}

/// What each end says then.
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
struct Queue(SyncSender<Frame>);

impl Link for Queue {
    fn send(&self, frame: Frame) {
        // One too many is lost, and one for an emulator that is gone.
        let _ = self.0.try_send(frame);
    }
}

impl Peers {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self {
            runtime,
            program: fastrand::u64(..),
        }
    }

    /// Lets other emulators join. Never returns; it needs a thread of its own.
    pub(crate) fn listen(&self, listener: &TcpListener) -> ! {
        let peers = self.clone();
        let limit = Limit {
            name: "link",
            most: MAX_CONNECTIONS,
            disconnect: Some(disconnect),
        };
        serve_all(
            limit,
            || Ok(listener.accept()?.0),
            move |stream, place| report(&peers.talk(stream, Some(place))),
        )
    }

    /// Joins an emulator, again whenever the connection is lost. Never returns; it needs a thread of its own.
    pub(crate) fn join(&self, target: &str, addresses: &[SocketAddr]) -> ! {
        loop {
            match TcpStream::connect(addresses) {
                Ok(stream) => report(&self.talk(&stream, None)),
                Err(error) => tracing::info!(%error, %target, "cannot join"),
            }
            thread::sleep(RETRY);
        }
    }

    /// Exchanges packets with an emulator until one of them ends. One that has joined keeps its place, however little is sent.
    fn talk(&self, stream: &TcpStream, place: Option<&Place<TcpStream>>) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SILENCE))?;
        let mut writer = BufWriter::new(stream.try_clone()?);
        let mut reader = BufReader::new(Until::new(stream, Instant::now() + GREETING));
        let addresses = self.runtime.addresses();
        let Some((program, devices)) = greet(&mut reader, &mut writer, self.program, addresses)?
        else {
            return Ok(());
        };
        reader.get_mut().lift(SILENCE)?;
        let exchange = || self.exchange(stream, reader, writer, program, &devices);
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
        program: u64,
        devices: &[[u8; 16]],
    ) -> io::Result<()> {
        let (sender, frames) = mpsc::sync_channel(MAX_WAITING);
        let way: Arc<dyn Link> = Arc::new(Queue(sender));
        let joined = self.runtime.join(program, devices, &way);
        let link = joined.map_err(io::Error::other)?;
        // Only the runtime sends, until the link is lost.
        drop(way);
        tracing::info!("an emulator has joined");
        let writing = thread::Builder::new().name("link writer".into());
        match writing.spawn(move || send(&mut writer, &frames)) {
            Ok(writing) => {
                let end = receive(&mut reader, |frame| self.runtime.accept(link, frame));
                self.runtime.leave(link);
                disconnect(stream);
                let _ = writing.join();
                end
            }
            Err(error) => {
                self.runtime.leave(link);
                Err(error)
            }
        }
    }
}

/// Exchanges the first words with an emulator; returns which program it is and the addresses of its devices, unless it has ended.
///
/// # Errors
///
/// The connection fails, or the other one speaks another version.
pub fn greet(
    reader: &mut impl Read,
    writer: &mut impl Write,
    program: u64,
    devices: Vec<[u8; 16]>,
) -> io::Result<Option<(u64, Vec<[u8; 16]>)>> {
    let hello = Hello {
        version: VERSION,
        program,
        devices,
    };
    write(writer, &hello)?;
    writer.flush()?;
    let Some(Hello {
        version,
        program,
        devices,
    }) = read(reader)?
    else {
        return Ok(None);
    };
    if version != VERSION {
        return Err(io::Error::other(format!(
            "the other emulator speaks version {version}, this one {VERSION}: use the same build"
        )));
    }
    Ok(Some((program, devices)))
}

/// Takes packets from an emulator until it ends.
///
/// # Errors
///
/// The connection fails, or something else comes than packets.
pub fn receive(reader: &mut impl Read, mut accept: impl FnMut(Frame)) -> io::Result<()> {
    while let Some(message) = read(reader)? {
        if let Message::Packet(frame) = message {
            accept(frame);
        }
    }
    Ok(())
}

fn disconnect(stream: &TcpStream) {
    // One that has ended already needs no more.
    let _ = stream.shutdown(Shutdown::Both);
}

fn report(end: &io::Result<()>) {
    match end {
        Ok(()) => tracing::info!("an emulator has left"),
        Err(error) => tracing::warn!(%error, "the connection to an emulator has ended"),
    }
}

/// Writes packets as they come, together those that come together, and signs of life in between.
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

/// Reads the next value, unless the other end has ended.
fn read<T: DeserializeOwned>(reader: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match reader.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(io::Error::other(format!(
            "a message of {length} bytes is longer than any can be"
        )));
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes)
        .map(Some)
        .map_err(io::Error::other)
}
