// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Other emulators with devices of the same network, over TCP.
//!
//! Each end first says its version and its devices. Then packets follow, each with its length before it. TCP only carries
//! them: what is lost or late is up to the network of the emulator that sends.

use std::{
    io::{self, BufReader, BufWriter, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use efa_fabric::Frame;
use efa_vfio::Fabric;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Changes when an older emulator would not understand.
const VERSION: u32 = 1;

/// Most bytes of a packet, much more than one has.
const MAX_FRAME: usize = 1 << 20;

/// Time between two tries to reach an emulator.
const RETRY: Duration = Duration::from_secs(1);

/// What each end says first.
#[derive(Serialize, Deserialize)]
struct Hello {
    version: u32,
    devices: Vec<[u8; 16]>,
}

/// Lets other emulators join. Returns only if none can any more.
pub(crate) fn listen(listener: &TcpListener, fabric: &Arc<Fabric>) -> io::Error {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => return error,
        };
        let fabric = Arc::clone(fabric);
        let link = thread::Builder::new().name("link".into());
        let started = link.spawn(move || report(&talk(&stream, &fabric)));
        if let Err(error) = started {
            tracing::warn!(%error, "an emulator is refused");
        }
    }
}

/// Joins an emulator, again whenever the connection is lost. Never returns; it needs a thread of its own.
pub(crate) fn join(address: &str, fabric: &Fabric) -> ! {
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => report(&talk(&stream, fabric)),
            Err(error) => tracing::info!(%error, address, "cannot join"),
        }
        thread::sleep(RETRY);
    }
}

fn report(end: &io::Result<()>) {
    match end {
        Ok(()) => tracing::info!("an emulator has left"),
        Err(error) => tracing::warn!(%error, "the connection to an emulator has ended"),
    }
}

/// Exchanges packets with an emulator until one of them ends.
fn talk(stream: &TcpStream, fabric: &Fabric) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let hello = Hello {
        version: VERSION,
        devices: fabric.addresses(),
    };
    let mut writer = BufWriter::new(stream.try_clone()?);
    write(&mut writer, &hello)?;
    writer.flush()?;
    let mut reader = BufReader::new(stream);
    let Some(Hello { version, devices }) = read(&mut reader)? else {
        return Ok(());
    };
    if version != VERSION {
        return Err(io::Error::other(format!(
            "the other emulator speaks version {version}, this one {VERSION}: use the same build"
        )));
    }
    if devices.iter().any(|device| hello.devices.contains(device)) {
        return Err(io::Error::other(
            "a device of the other emulator has the address of one of ours: give each a number of its own",
        ));
    }
    let (sender, frames) = mpsc::channel();
    let link = fabric.join(devices, sender);
    tracing::info!("an emulator has joined");
    let writer = thread::Builder::new()
        .name("link writer".into())
        .spawn(move || send(&mut writer, &frames))?;
    let end = loop {
        match read(&mut reader) {
            Ok(Some(frame)) => fabric.accept(link, frame),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    // Its channel ends with that, and so does the writer.
    fabric.leave(link);
    let _ = stream.shutdown(std::net::Shutdown::Both);
    let _ = writer.join();
    end
}

/// Writes packets as they come, together those that come together.
fn send(writer: &mut impl Write, frames: &Receiver<Frame>) -> io::Result<()> {
    while let Ok(frame) = frames.recv() {
        write(writer, &frame)?;
        while let Ok(frame) = frames.try_recv() {
            write(writer, &frame)?;
        }
        writer.flush()?;
    }
    Ok(())
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
    if length > MAX_FRAME {
        return Err(io::Error::other(format!(
            "a packet of {length} bytes is longer than any can be"
        )));
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes)
        .map(Some)
        .map_err(io::Error::other)
}
