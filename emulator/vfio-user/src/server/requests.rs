// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The requests of a client: how they are decoded, and the content of their replies.

use std::{fs::File, io, ops::Range, os::fd::OwnedFd};

use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE,
    VFIO_DMA_UNMAP_FLAG_ALL, VFIO_IRQ_SET_ACTION_MASK, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_ACTION_UNMASK,
    VFIO_IRQ_SET_DATA_BOOL, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, VFIO_REGION_INFO_CAP_SPARSE_MMAP,
    VFIO_REGION_INFO_FLAG_CAPS, VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
};

use super::{Answer, Session, Write, invalid};
use crate::{
    backend::{Action, DmaMap, IrqData, IrqSet},
    wire::{Fields, MAX_DATA, Payload, RegionAccess, size},
};

/// The flags of a DMA mapping that permit accesses.
const READABLE: u32 = VFIO_DMA_MAP_FLAG_READ;
const WRITABLE: u32 = VFIO_DMA_MAP_FLAG_WRITE;

/// The flags for the kind of data of an action on interrupts.
const DATA: u32 = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_DATA_BOOL | VFIO_IRQ_SET_DATA_EVENTFD;

impl Session<'_> {
    pub(super) fn dma_map(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> io::Result<()> {
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

    pub(super) fn dma_unmap(&mut self, bytes: &[u8]) -> io::Result<Answer> {
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

    pub(super) fn device_info(&mut self, bytes: &[u8]) -> io::Result<Answer> {
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

    pub(super) fn region_info(&mut self, bytes: &[u8]) -> io::Result<Answer> {
        let mut fields = Fields(bytes);
        let mut decode = || {
            let (room, _, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
            let _ = (fields.u32()?, fields.u64()?, fields.u64()?);
            Some((room, index))
        };
        let (room, index) = decode().ok_or_else(invalid)?;
        fields.end().ok_or_else(invalid)?;
        let region = self.device.regions.get(index as usize).ok_or_else(invalid)?;
        if room < size::REGION_INFO {
            return Err(invalid());
        }
        let takes_fds = self.client.as_ref().and_then(|client| client.max_msg_fds) != Some(0);
        let areas = if takes_fds { &region.mappable[..] } else { &[] };
        let mut needed = size::REGION_INFO;
        let mut first_capability = 0;
        let mut flags = if region.size > 0 { VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE } else { 0 };
        if !areas.is_empty() {
            needed += size::SPARSE + size::AREA * areas.len() as u32;
            flags |= VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS;
            // QEMU requires the offset of the list even if its buffer has no space for it.
            first_capability = size::REGION_INFO;
        }
        // A client without space for the list repeats the request. The file is sent only with the list.
        let complete = !areas.is_empty() && room >= needed;
        let mut reply =
            Payload::default().u32(needed).u32(flags).u32(index).u32(first_capability).u64(region.size).u64(0);
        let mut file = None;
        if complete {
            reply = reply.u16(VFIO_REGION_INFO_CAP_SPARSE_MMAP as u16).u16(1).u32(0).u32(areas.len() as u32).u32(0);
            for area in areas {
                reply = reply.u64(area.start).u64(area.end - area.start);
            }
            file = Some(self.backend.region_file(index)?);
        }
        Ok(Answer { payload: reply.0, file })
    }

    pub(super) fn irq_info(&mut self, bytes: &[u8]) -> io::Result<Answer> {
        let mut fields = Fields(bytes);
        let mut decode = || {
            let (_, _, index, _) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
            Some(index)
        };
        let index = decode().ok_or_else(invalid)?;
        fields.end().ok_or_else(invalid)?;
        let irq = self.device.irqs.get(index as usize).ok_or_else(invalid)?;
        let reply = Payload::default().u32(size::IRQ_INFO).u32(irq.flags).u32(index).u32(irq.count);
        Ok(reply.into())
    }

    pub(super) fn set_irqs(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> io::Result<()> {
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
            VFIO_IRQ_SET_DATA_BOOL if fds.is_empty() && bools.len() == count as usize => IrqData::Bools(bools),
            VFIO_IRQ_SET_DATA_EVENTFD if bools.is_empty() && (fds.is_empty() || fds.len() == count as usize) => {
                IrqData::Eventfds(fds)
            }
            _ => return Err(invalid()),
        };
        self.backend.set_irqs(IrqSet { index, start, count, action, data })
    }

    pub(super) fn region_read(&mut self, bytes: &[u8]) -> io::Result<Answer> {
        let mut fields = Fields(bytes);
        let access = RegionAccess::decode(&mut fields).ok_or_else(invalid)?;
        fields.end().ok_or_else(invalid)?;
        let count = access.count as usize;
        self.check(access, count)?;
        let mut answer = Answer::from(access.encode());
        answer.payload.resize(RegionAccess::SIZE + count, 0);
        let data = &mut answer.payload[RegionAccess::SIZE..];
        self.backend.region_read(access.region, access.offset, data)?;
        Ok(answer)
    }

    pub(super) fn region_write(&self, bytes: &[u8], payload: Range<usize>) -> io::Result<(RegionAccess, Write)> {
        let mut fields = Fields(bytes);
        let access = RegionAccess::decode(&mut fields).ok_or_else(invalid)?;
        let count = fields.rest().len();
        if access.count as usize != count {
            return Err(invalid());
        }
        self.check(access, count)?;
        let write = Write { region: access.region, offset: access.offset, data: payload.end - count..payload.end };
        Ok((access, write))
    }

    /// Decodes the writes of a message: all of them, or none if one is invalid.
    pub(super) fn region_writes(&self, bytes: &[u8], payload: Range<usize>) -> io::Result<Vec<Write>> {
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
            Ok(Write { region: access.region, offset: access.offset, data: start..start + count })
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
        if inside && (1..=MAX_DATA).contains(&count) { Ok(()) } else { Err(invalid()) }
    }
}
