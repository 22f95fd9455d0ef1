// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A client for tests and attacks. It sends requests and waits for the replies, or sends arbitrary bytes.

use std::{
    fs::File,
    io,
    net::Shutdown,
    ops::Range,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::{Duration, Instant},
};

use vfio_bindings::bindings::vfio::{
    VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE, VFIO_DMA_UNMAP_FLAG_ALL, VFIO_REGION_INFO_CAP_SPARSE_MMAP,
};

use crate::{
    backend::{DmaMap, Irq, RegionWrite},
    channel::{Channel, Message, Received, send},
    error::Error,
    version::Capabilities,
    wire::{Command, Fields, Flags, Header, Payload, RegionAccess, size},
};

/// Limit on the time until a reply. Another client may use the device for a while.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    channel: Channel,
    next_id: u16,
}

/// A message of the server.
#[derive(Debug)]
pub struct Reply {
    /// The header of the message.
    pub header: Header,
    /// The bytes after the header.
    pub payload: Vec<u8>,
    /// The descriptors that were attached.
    pub fds: Vec<OwnedFd>,
}

/// The properties of a region, as the server reports them.
#[derive(Debug)]
pub struct RegionInfo {
    /// Size in bytes.
    pub size: u64,
    /// `VFIO_REGION_INFO_FLAG_...`
    pub flags: u32,
    /// Ranges that may be mapped.
    pub mappable: Vec<Range<u64>>,
    /// The file to map, if any range may be mapped.
    pub file: Option<File>,
}

impl Client {
    /// Connects to a server and negotiates the version.
    ///
    /// # Errors
    ///
    /// No server listens, or it refuses the version.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let mut client = Self::new(UnixStream::connect(path)?)?;
        client.negotiate()?;
        Ok(client)
    }

    /// Creates a client that has not negotiated the version yet.
    ///
    /// # Errors
    ///
    /// The socket fails.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { channel: Channel::new(&stream)?, stream, next_id: 0 })
    }

    /// Negotiates the version.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub fn negotiate(&mut self) -> io::Result<()> {
        let reply = self.request(Command::Version, &Capabilities::of_client().encode(), &[])?;
        Capabilities::decode(&reply.payload).ok_or_else(bad)?;
        Ok(())
    }

    /// Returns the numbers of regions and of kinds of interrupts.
    ///
    /// # Errors
    ///
    /// The request fails.
    pub fn device_info(&mut self) -> io::Result<(u32, u32)> {
        let payload = Payload::default().u32(size::DEVICE_INFO).u32(0).u64(0);
        let reply = self.request(Command::DeviceGetInfo, &payload.0, &[])?;
        let mut fields = Fields(&reply.payload);
        let mut decode = || {
            fields.u64()?;
            Some((fields.u32()?, fields.u32()?))
        };
        decode().ok_or_else(bad)
    }

    /// Returns the properties of a region.
    ///
    /// # Errors
    ///
    /// The request fails.
    pub fn region_info(&mut self, index: u32) -> io::Result<RegionInfo> {
        let request = |room: u32| Payload::default().u32(room).u32(0).u32(index).u32(0).u64(0).u64(0);
        let command = Command::DeviceGetRegionInfo;
        let first = self.request(command, &request(size::REGION_INFO).0, &[])?;
        let needed = Fields(&first.payload).u32().ok_or_else(bad)?;
        let reply = match needed {
            size::REGION_INFO => first,
            _ => self.request(command, &request(needed).0, &[])?,
        };
        let decode = || {
            let mut fields = Fields(&reply.payload);
            let (_, flags, _, capability) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
            let (size, _) = (fields.u64()?, fields.u64()?);
            let mut mappable = Vec::new();
            if capability > 0 {
                let mut list = Fields(reply.payload.get(capability as usize..)?);
                let (id, _, _) = (list.u16()?, list.u16()?, list.u32()?);
                let (areas, _) = (list.u32()?, list.u32()?);
                if u32::from(id) != VFIO_REGION_INFO_CAP_SPARSE_MMAP {
                    return None;
                }
                for _ in 0..areas {
                    let start = list.u64()?;
                    mappable.push(start..start.checked_add(list.u64()?)?);
                }
            }
            Some((size, flags, mappable))
        };
        let (size, flags, mappable) = decode().ok_or_else(bad)?;
        Ok(RegionInfo { size, flags, mappable, file: reply.fds.into_iter().next().map(File::from) })
    }

    /// Returns the properties of a kind of interrupts.
    ///
    /// # Errors
    ///
    /// The request fails.
    pub fn irq_info(&mut self, index: u32) -> io::Result<Irq> {
        let payload = Payload::default().u32(size::IRQ_INFO).u32(0).u32(index).u32(0);
        let reply = self.request(Command::DeviceGetIrqInfo, &payload.0, &[])?;
        let mut fields = Fields(&reply.payload);
        let mut decode = || {
            let (_, flags, _) = (fields.u32()?, fields.u32()?, fields.u32()?);
            Some(Irq { flags, count: fields.u32()? })
        };
        decode().ok_or_else(bad)
    }

    /// Carries out an action on interrupts. `flags` are `VFIO_IRQ_SET_...`.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let payload = Payload::default().u32(size::IRQ_SET).u32(flags).u32(index).u32(start).u32(count);
        self.request(Command::DeviceSetIrqs, &payload.0, fds)?;
        Ok(())
    }

    /// Maps memory for the device.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub fn dma_map(&mut self, map: DmaMap, file: Option<&File>) -> io::Result<()> {
        let flag = |is: bool, flag| if is { flag } else { 0 };
        let flags = flag(map.readable, VFIO_DMA_MAP_FLAG_READ) | flag(map.writable, VFIO_DMA_MAP_FLAG_WRITE);
        let payload = Payload::default().u32(size::DMA_MAP).u32(flags).u64(map.offset).u64(map.address).u64(map.size);
        let fds: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        self.request(Command::DmaMap, &payload.0, &fds)?;
        Ok(())
    }

    /// Unmaps memory of the device.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub fn dma_unmap(&mut self, address: u64, length: u64) -> io::Result<()> {
        self.unmap(0, address, length)
    }

    /// Unmaps all memory of the device.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub fn dma_unmap_all(&mut self) -> io::Result<()> {
        self.unmap(VFIO_DMA_UNMAP_FLAG_ALL, 0, 0)
    }

    fn unmap(&mut self, flags: u32, address: u64, length: u64) -> io::Result<()> {
        let payload = Payload::default().u32(size::DMA_UNMAP).u32(flags);
        let payload = payload.u64(address).u64(length);
        self.request(Command::DmaUnmap, &payload.0, &[])?;
        Ok(())
    }

    /// Reads a region.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let access = access(region, offset, data.len());
        let reply = self.request(Command::RegionRead, &access.encode().0, &[])?;
        let found = reply.payload.get(RegionAccess::SIZE..);
        let found = found.filter(|found| found.len() == data.len());
        data.copy_from_slice(found.ok_or_else(bad)?);
        Ok(())
    }

    /// Writes a region and waits for the reply.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let payload = write(region, offset, data);
        self.request(Command::RegionWrite, &payload, &[])?;
        Ok(())
    }

    /// Posts a write to a region, which has no reply.
    ///
    /// # Errors
    ///
    /// The server does not read.
    pub fn region_post(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let payload = write(region, offset, data);
        self.send(Command::RegionWrite, Flags::NO_REPLY, &payload, &[])?;
        Ok(())
    }

    /// Writes regions with one message, at most eight bytes per write.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub fn region_write_multi(&mut self, writes: &[RegionWrite<'_>]) -> io::Result<()> {
        let mut payload = Payload::default().u64(writes.len() as u64);
        for write in writes {
            let access = access(write.region, write.offset, write.data.len());
            payload.0.extend(access.encode().0);
            payload.0.extend(write.data);
            let padding = size::MULTI_DATA.saturating_sub(write.data.len());
            payload.0.extend(&[0; size::MULTI_DATA][..padding]);
        }
        self.request(Command::RegionWriteMulti, &payload.0, &[])?;
        Ok(())
    }

    /// Resets the device.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub fn reset(&mut self) -> io::Result<()> {
        self.request(Command::DeviceReset, &[], &[])?;
        Ok(())
    }

    /// Shuts the connection down in both directions.
    ///
    /// # Errors
    ///
    /// The connection has ended already.
    pub fn shutdown(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Both)
    }

    /// Shuts down the direction to the server.
    ///
    /// # Errors
    ///
    /// The connection has ended already.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    ///
    /// The server replies with an errno, or sends no valid reply in time.
    pub fn request(&mut self, command: Command, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<Reply> {
        let id = self.send(command, Flags::COMMAND, payload, fds)?;
        let reply = self.receive()?;
        let header = reply.header;
        if header.id != id || header.command != command as u16 {
            return Err(bad());
        }
        match header.flags {
            Flags::REPLY => Ok(reply),
            Flags::ERROR => Err(io::Error::from_raw_os_error(header.error as i32)),
            _ => Err(bad()),
        }
    }

    /// Sends a message and returns its id.
    ///
    /// # Errors
    ///
    /// The server does not read.
    pub fn send(&mut self, command: Command, flags: Flags, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<u16> {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let header = Header { id, command: command as u16, flags, ..Header::default() };
        let mut bytes = Vec::new();
        header.encode(&[payload], &mut bytes);
        self.send_raw(&bytes, fds)?;
        Ok(id)
    }

    /// Sends bytes, which need not be a valid message.
    ///
    /// # Errors
    ///
    /// The server does not read.
    pub fn send_raw(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.stream, bytes, fds, TIMEOUT).map_err(io::Error::other)
    }

    /// Waits for a message.
    ///
    /// # Errors
    ///
    /// The connection ends, no message arrives in time, or one is invalid.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(message) = self.channel.next().map_err(io::Error::other)? {
                let Message { header, payload, fds } = message;
                return Ok(Reply { header, payload: self.channel.bytes(payload).to_vec(), fds });
            }
            let received = self.channel.receive(&self.stream, None, Some(deadline));
            match received.map_err(io::Error::other)? {
                Received::Bytes | Received::Woken => {}
                Received::End => return Err(io::ErrorKind::UnexpectedEof.into()),
                Received::Nothing => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

fn access(region: u32, offset: u64, count: usize) -> RegionAccess {
    RegionAccess { offset, region, count: u32::try_from(count).unwrap_or(u32::MAX) }
}

fn write(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut payload = access(region, offset, data.len()).encode().0;
    payload.extend(data);
    payload
}

fn bad() -> io::Error {
    io::Error::other(Error::Reply)
}
