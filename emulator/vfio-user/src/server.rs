// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The server: it handles the requests of a client and sends the replies.

use std::{
    fs::File,
    io, mem,
    ops::Range,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::io::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_DMA_MAP_FLAG_READ,
    VFIO_DMA_MAP_FLAG_WRITE, VFIO_DMA_UNMAP_FLAG_ALL, VFIO_IRQ_SET_ACTION_MASK,
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_ACTION_UNMASK, VFIO_IRQ_SET_DATA_BOOL,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, VFIO_REGION_INFO_CAP_SPARSE_MMAP,
    VFIO_REGION_INFO_FLAG_CAPS, VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE,
};

use crate::{
    backend::{Action, Backend, Device, DmaMap, IrqData, IrqSet, RegionWrite},
    channel::{Channel, Message, Received, send},
    error::{Error, errno},
    version::Capabilities,
    wire::{Command, Fields, Flags, Header, MAX_DATA, Payload, RegionAccess, size},
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

/// The flags of a DMA mapping that permit accesses.
const READABLE: u32 = VFIO_DMA_MAP_FLAG_READ;
const WRITABLE: u32 = VFIO_DMA_MAP_FLAG_WRITE;

/// The flags for the kind of data of an action on interrupts.
const DATA: u32 = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_DATA_BOOL | VFIO_IRQ_SET_DATA_EVENTFD;

/// Serves a client that has connected, until it disconnects.
///
/// # Errors
///
/// The socket fails, or the client is too slow or violates the protocol.
pub fn serve(
    stream: &UnixStream,
    device: &Device,
    backend: &mut dyn Backend,
    limits: Limits,
) -> Result<(), Error> {
    stream.set_write_timeout(Some(limits.message))?;
    let mut channel = Channel::new(stream)?;
    let mut session = Session {
        stream,
        device,
        backend,
        limits,
        client: None,
        writes: Vec::new(),
        replies: Vec::new(),
    };
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
        let message = channel
            .is_within_message()
            .then(|| *within_since.get_or_insert_with(Instant::now) + limits.message);
        let deadline = start.into_iter().chain(message).min();
        match channel.receive(stream, deadline)? {
            Received::Bytes => {}
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
        Self {
            payload: payload.0,
            file: None,
        }
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
            let answer = Answer {
                payload: Capabilities::of_server(&client).encode(),
                file: None,
            };
            self.client = Some(client);
            return self.reply(header, Ok(answer));
        }
        let is_write = matches!(
            command,
            Some(Command::RegionWrite | Command::RegionWriteMulti)
        );
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
    fn answer(
        &mut self,
        channel: &Channel,
        command: Command,
        message: Message,
    ) -> io::Result<Answer> {
        let Message {
            header,
            payload,
            fds,
        } = message;
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

    fn dma_map(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> io::Result<()> {
        let mut fields = Fields(bytes);
        let mut decode = || {
            let (_, flags) = (fields.u32()?, fields.u32()?);
            let map = DmaMap {
                readable: flags & READABLE != 0,
                writable: flags & WRITABLE != 0,
                offset: fields.u64()?,
                address: fields.u64()?,
                size: fields.u64()?,
            };
            (flags & !(READABLE | WRITABLE) == 0).then_some(map)
        };
        let map = decode().ok_or_else(invalid)?;
        fields.end().ok_or_else(invalid)?;
        let mut fds = fds.into_iter();
        let file = fds.next().map(File::from);
        if fds.next().is_some() {
            return Err(invalid());
        }
        self.backend.dma_map(map, file)
    }

    fn dma_unmap(&mut self, bytes: &[u8]) -> io::Result<Answer> {
        let mut fields = Fields(bytes);
        let mut decode = || {
            let (_, flags) = (fields.u32()?, fields.u32()?);
            Some((flags, fields.u64()?, fields.u64()?))
        };
        let (flags, address, length) = decode().ok_or_else(invalid)?;
        fields.end().ok_or_else(invalid)?;
        match flags {
            0 => self.backend.dma_unmap(address, length)?,
            VFIO_DMA_UNMAP_FLAG_ALL if (address, length) == (0, 0) => {
                self.backend.dma_unmap_all()?;
            }
            _ => return Err(invalid()),
        }
        let reply = Payload::default().u32(size::DMA_UNMAP).u32(flags);
        Ok(reply.u64(address).u64(length).into())
    }

    fn device_info(&mut self, bytes: &[u8]) -> io::Result<Answer> {
        let mut fields = Fields(bytes);
        for _ in 0..size::DEVICE_INFO / 4 {
            fields.u32().ok_or_else(invalid)?;
        }
        fields.end().ok_or_else(invalid)?;
        let reply = Payload::default()
            .u32(size::DEVICE_INFO)
            .u32(VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET)
            .u32(self.device.regions.len() as u32)
            .u32(self.device.irqs.len() as u32);
        Ok(reply.into())
    }

    fn region_info(&mut self, bytes: &[u8]) -> io::Result<Answer> {
        let mut fields = Fields(bytes);
        let mut decode = || {
            let (room, _, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
            let _ = (fields.u32()?, fields.u64()?, fields.u64()?);
            Some((room, index))
        };
        let (room, index) = decode().ok_or_else(invalid)?;
        fields.end().ok_or_else(invalid)?;
        let region = self
            .device
            .regions
            .get(index as usize)
            .ok_or_else(invalid)?;
        if room < size::REGION_INFO {
            return Err(invalid());
        }
        let takes_fds = self.client.as_ref().and_then(|client| client.max_msg_fds) != Some(0);
        let areas = if takes_fds { &region.mappable[..] } else { &[] };
        let mut needed = size::REGION_INFO;
        let mut first_capability = 0;
        let mut flags = if region.size > 0 {
            VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE
        } else {
            0
        };
        if !areas.is_empty() {
            needed += size::SPARSE + size::AREA * areas.len() as u32;
            flags |= VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS;
            // QEMU requires the offset of the list even if its buffer has no space for it.
            first_capability = size::REGION_INFO;
        }
        // A client without space for the list repeats the request. The file is sent only with the list.
        let complete = !areas.is_empty() && room >= needed;
        let mut reply = Payload::default()
            .u32(needed)
            .u32(flags)
            .u32(index)
            .u32(first_capability)
            .u64(region.size)
            .u64(0);
        let mut file = None;
        if complete {
            reply = reply
                .u16(VFIO_REGION_INFO_CAP_SPARSE_MMAP as u16)
                .u16(1)
                .u32(0)
                .u32(areas.len() as u32)
                .u32(0);
            for area in areas {
                reply = reply.u64(area.start).u64(area.end - area.start);
            }
            file = Some(self.backend.region_file(index)?);
        }
        Ok(Answer {
            payload: reply.0,
            file,
        })
    }

    fn irq_info(&mut self, bytes: &[u8]) -> io::Result<Answer> {
        let mut fields = Fields(bytes);
        let mut decode = || {
            let (_, _, index, _) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
            Some(index)
        };
        let index = decode().ok_or_else(invalid)?;
        fields.end().ok_or_else(invalid)?;
        let irq = self.device.irqs.get(index as usize).ok_or_else(invalid)?;
        let reply = Payload::default()
            .u32(size::IRQ_INFO)
            .u32(irq.flags)
            .u32(index)
            .u32(irq.count);
        Ok(reply.into())
    }

    fn set_irqs(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> io::Result<()> {
        let mut fields = Fields(bytes);
        let mut decode = || {
            let (_, flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
            Some((flags, index, fields.u32()?, fields.u32()?))
        };
        let (flags, index, start, count) = decode().ok_or_else(invalid)?;
        let bools = fields.rest();
        let irq = self.device.irqs.get(index as usize).ok_or_else(invalid)?;
        if start.checked_add(count).is_none_or(|end| end > irq.count) {
            return Err(invalid());
        }
        let action = match flags & !DATA {
            VFIO_IRQ_SET_ACTION_MASK => Action::Mask,
            VFIO_IRQ_SET_ACTION_UNMASK => Action::Unmask,
            VFIO_IRQ_SET_ACTION_TRIGGER => Action::Trigger,
            _ => return Err(invalid()),
        };
        let data = match flags & DATA {
            VFIO_IRQ_SET_DATA_NONE if fds.is_empty() && bools.is_empty() => IrqData::None,
            VFIO_IRQ_SET_DATA_BOOL if fds.is_empty() && bools.len() == count as usize => {
                IrqData::Bools(bools)
            }
            VFIO_IRQ_SET_DATA_EVENTFD
                if bools.is_empty() && (fds.is_empty() || fds.len() == count as usize) =>
            {
                IrqData::Eventfds(fds)
            }
            _ => return Err(invalid()),
        };
        self.backend.set_irqs(IrqSet {
            index,
            start,
            count,
            action,
            data,
        })
    }

    fn region_read(&mut self, bytes: &[u8]) -> io::Result<Answer> {
        let mut fields = Fields(bytes);
        let access = RegionAccess::decode(&mut fields).ok_or_else(invalid)?;
        fields.end().ok_or_else(invalid)?;
        let count = access.count as usize;
        self.check(access, count)?;
        let mut answer = Answer::from(access.encode());
        answer.payload.resize(RegionAccess::SIZE + count, 0);
        let data = &mut answer.payload[RegionAccess::SIZE..];
        self.backend
            .region_read(access.region, access.offset, data)?;
        Ok(answer)
    }

    fn region_write(
        &self,
        bytes: &[u8],
        payload: Range<usize>,
    ) -> io::Result<(RegionAccess, Write)> {
        let mut fields = Fields(bytes);
        let access = RegionAccess::decode(&mut fields).ok_or_else(invalid)?;
        let count = fields.rest().len();
        if access.count as usize != count {
            return Err(invalid());
        }
        self.check(access, count)?;
        let write = Write {
            region: access.region,
            offset: access.offset,
            data: payload.end - count..payload.end,
        };
        Ok((access, write))
    }

    /// Decodes the writes of a message: all of them, or none if one is invalid.
    fn region_writes(&self, bytes: &[u8], payload: Range<usize>) -> io::Result<Vec<Write>> {
        const EACH: usize = RegionAccess::SIZE + size::MULTI_DATA;
        let mut fields = Fields(bytes);
        let count = fields.u64().ok_or_else(invalid)?;
        let writes = fields.rest();
        if writes.len() % EACH != 0 || (writes.len() / EACH) as u64 != count {
            return Err(invalid());
        }
        let first = payload.end - writes.len();
        let decode = |(number, write): (usize, &[u8])| {
            let access = RegionAccess::decode(&mut Fields(write)).ok_or_else(invalid)?;
            let count = access.count as usize;
            if count > size::MULTI_DATA {
                return Err(invalid());
            }
            self.check(access, count)?;
            let start = first + number * EACH + RegionAccess::SIZE;
            Ok(Write {
                region: access.region,
                offset: access.offset,
                data: start..start + count,
            })
        };
        writes.chunks_exact(EACH).enumerate().map(decode).collect()
    }

    /// Checks that an access is within its region, and that its size is valid.
    fn check(&self, access: RegionAccess, count: usize) -> io::Result<()> {
        let region = self.device.regions.get(access.region as usize);
        let inside = region.is_some_and(|region| {
            let end = access.offset.checked_add(count as u64);
            end.is_some_and(|end| end <= region.size)
        });
        if inside && (1..=MAX_DATA).contains(&count) {
            Ok(())
        } else {
            Err(invalid())
        }
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
        let mut header = Header {
            flags: Flags::REPLY,
            ..request
        };
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
