// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The server: it handles the requests of a client and sends the replies.

mod requests;

use std::{
    fs::File,
    io, mem,
    ops::Range,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{
    backend::{Backend, Device, RegionWrite},
    channel::{Channel, Message, Received, send},
    error::{Error, errno},
    version::Capabilities,
    wire::{Command, Fields, Flags, Header, MAX_DATA, Payload},
};

/// Limits on the time for which a client may make others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the connection until the first use of the device: QEMU needs milliseconds, but its machine may be busy.
    pub start: Duration,
    /// Until the rest of a message arrives, or until the client reads its replies.
    pub message: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(10),
            // Twice the time for which QEMU waits for a reply.
            message: Duration::from_secs(10),
        }
    }
}

/// Maximum number of writes per call of the backend, which may block other users of the device meanwhile.
pub const MAX_BATCH: usize = 64;

/// Bytes of queued replies from which on they are sent, even if more requests have arrived.
const REPLIES: usize = MAX_DATA;

/// Serves a client that has connected, until it disconnects.
///
/// # Errors
///
/// The socket fails, or the client is too slow or violates the protocol.
pub fn serve(stream: &UnixStream, device: &Device, backend: &mut dyn Backend, limits: Limits) -> Result<(), Error> {
    stream.set_write_timeout(Some(limits.message))?;
    let mut channel = Channel::new(stream)?;
    let mut session =
        Session { stream, device, backend, limits, client: None, writes: Vec::new(), replies: Vec::new() };
    let started = Instant::now();
    let mut within_since = None;
    loop {
        while let Some(message) = channel.next()? {
            within_since = None;
            session.handle(&channel, message)?;
        }
        session.post(&channel);
        session.send()?;

        let must_start = session.client.is_none() || !session.backend.may_idle();
        let start = must_start.then_some(started + limits.start);
        let message =
            channel.is_within_message().then(|| *within_since.get_or_insert_with(Instant::now) + limits.message);
        let deadline = start.into_iter().chain(message).min();
        match channel.receive(stream, session.backend.waker(), deadline)? {
            Received::Bytes => {}
            Received::Woken => session.backend.woken(),
            Received::End if channel.is_within_message() => return Err(Error::Truncated),
            Received::End => return Ok(()),
            Received::Nothing if start.is_some() && deadline == start => return Err(Error::Start),
            Received::Nothing => return Err(Error::Slow),
        }
    }
}

/// The state of a connection.
struct Session<'a> {
    stream: &'a UnixStream,
    device: &'a Device,
    backend: &'a mut dyn Backend,
    limits: Limits,
    /// The client's capabilities, once it has proposed a version.
    client: Option<Capabilities>,
    /// Posted writes that were not passed to the backend yet.
    writes: Vec<Write>,
    /// Replies that are not sent yet.
    replies: Vec<u8>,
}

/// A write. Its data is a range of the channel's buffer.
struct Write {
    region: u32,
    offset: u64,
    data: Range<usize>,
}

/// The content of the reply to a successful request.
#[derive(Default)]
struct Answer {
    payload: Vec<u8>,
    file: Option<Arc<File>>,
}

impl From<Payload> for Answer {
    fn from(payload: Payload) -> Self {
        Self { payload: payload.0, file: None }
    }
}

impl Session<'_> {
    /// Handles a message and queues its reply.
    fn handle(&mut self, channel: &Channel, message: Message) -> Result<(), Error> {
        let header = message.header;
        if !header.flags.is_command() {
            return Err(Error::Kind(header.flags.0));
        }
        let command = Command::from_raw(header.command);
        if self.client.is_none() {
            let proposal = channel.bytes(message.payload);
            let client = match command {
                Some(Command::Version) if message.fds.is_empty() => Capabilities::decode(proposal),
                _ => None,
            };
            let Some(client) = client else {
                self.reply(header, Err(invalid()))?;
                self.send()?;
                return Err(Error::Version);
            };
            tracing::debug!(?client, "version");
            let answer = Answer { payload: Capabilities::of_server(&client).encode(), file: None };
            self.client = Some(client);
            return self.reply(header, Ok(answer));
        }
        let is_write = matches!(command, Some(Command::RegionWrite | Command::RegionWriteMulti));
        if !is_write {
            // Earlier writes take effect before this request.
            self.post(channel);
        }
        let answer = match command {
            Some(command) => self.answer(channel, command, message),
            None => Err(Errno::NOSYS.into()),
        };
        if self.writes.len() >= MAX_BATCH {
            self.post(channel);
        }
        self.reply(header, answer)
    }

    /// Carries out a request and returns the content of its reply.
    fn answer(&mut self, channel: &Channel, command: Command, message: Message) -> io::Result<Answer> {
        let Message { header, payload, fds } = message;
        let takes_fds = matches!(command, Command::DmaMap | Command::DeviceSetIrqs);
        if !takes_fds && !fds.is_empty() {
            return Err(invalid());
        }
        let bytes = channel.bytes(payload.clone());
        match command {
            // The version has been negotiated already.
            Command::Version => Err(invalid()),
            Command::DmaMap => self.dma_map(bytes, fds).map(|()| Answer::default()),
            Command::DmaUnmap => self.dma_unmap(bytes),
            Command::DeviceGetInfo => self.device_info(bytes),
            Command::DeviceGetRegionInfo => self.region_info(bytes),
            Command::DeviceGetIrqInfo => self.irq_info(bytes),
            Command::DeviceSetIrqs => self.set_irqs(bytes, fds).map(|()| Answer::default()),
            Command::RegionRead => self.region_read(bytes),
            Command::RegionWrite => {
                let (access, write) = self.region_write(bytes, payload)?;
                self.writes.push(write);
                if !header.flags.no_reply() {
                    self.write(channel)?;
                }
                Ok(access.encode().into())
            }
            Command::RegionWriteMulti => {
                let writes = self.region_writes(bytes, payload)?;
                let count = writes.len() as u64;
                self.writes.extend(writes);
                if !header.flags.no_reply() {
                    self.write(channel)?;
                }
                Ok(Payload::default().u64(count).into())
            }
            Command::DeviceReset => {
                Fields(bytes).end().ok_or_else(invalid)?;
                self.backend.reset().map(|()| Answer::default())
            }
        }
    }

    /// Passes the posted writes to the backend. The client is not notified of a failure.
    fn post(&mut self, channel: &Channel) {
        if let Err(error) = self.write(channel) {
            tracing::debug!(%error, "posted writes failed");
        }
    }

    /// Passes all writes to the backend, and returns the result of the last batch.
    fn write(&mut self, channel: &Channel) -> io::Result<()> {
        let writes = mem::take(&mut self.writes);
        let mut result = Ok(());
        for batch in writes.chunks(MAX_BATCH) {
            let with_data = |write: &Write| RegionWrite {
                region: write.region,
                offset: write.offset,
                data: channel.bytes(write.data.clone()),
            };
            let batch: Vec<_> = batch.iter().map(with_data).collect();
            result = self.backend.region_write(&batch);
        }
        result
    }

    /// Queues the reply to a request, if the client needs one. A reply with a file is sent at once.
    fn reply(&mut self, request: Header, answer: io::Result<Answer>) -> Result<(), Error> {
        if let Err(error) = &answer {
            let command = request.command;
            tracing::debug!(command, %error, "a request has failed");
        }
        if request.flags.no_reply() {
            return Ok(());
        }
        let mut header = Header { flags: Flags::REPLY, ..request };
        header.error = 0;
        match answer {
            Ok(Answer { payload, file }) => {
                let start = self.replies.len();
                header.encode(&[&payload], &mut self.replies);
                if let Some(file) = file {
                    // A descriptor must be sent with the first byte of its message.
                    let reply = self.replies.split_off(start);
                    self.send()?;
                    return self.send_now(&reply, &[file.as_fd()]);
                }
            }
            Err(error) => {
                header.flags = Flags::ERROR;
                header.error = errno(&error);
                header.encode(&[], &mut self.replies);
            }
        }
        if self.replies.len() >= REPLIES {
            self.send()?;
        }
        Ok(())
    }

    /// Sends the queued replies.
    fn send(&mut self) -> Result<(), Error> {
        if !self.replies.is_empty() {
            self.send_now(&self.replies, &[])?;
            self.replies.clear();
        }
        Ok(())
    }

    fn send_now(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        send(self.stream, bytes, fds, self.limits.message)
    }
}

fn invalid() -> io::Error {
    Errno::INVAL.into()
}
