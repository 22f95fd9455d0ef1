// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use efa_hw::admin::{
    NoData, Status,
    mr::{
        AllocMr, AllocMrResponse, DeregMr, InterconnectValidity, PageList, RegMr, RegMrPermissions,
        RegMrResponse,
    },
};

use efa_hw::io::Key;

use super::table::Table;
use crate::{
    Host,
    attributes::Attributes,
    firmware::{Execute, Failure, Firmware},
    page_list,
    queue::Place,
};

/// The bit that distinguishes a remote key from the local key of the same region, so that a driver
/// that mixes them up is noticed. It is of what keys have for the region itself, see [`Key`].
const REMOTE_KEY: u32 = 1 << 19;

/// Bytes in a page of the host.
const SMALLEST_PAGE: u64 = 4096;

/// A memory region.
#[derive(Debug, Default)]
pub(crate) struct Mr {
    pd: u16,
    /// The generation of its keys.
    generation: u8,
    /// Address of its first byte, as work requests have it.
    iova: u64,
    /// Length in bytes; 0 for one that has no memory yet.
    length: u64,
    permissions: RegMrPermissions,
    /// Its addresses are bus addresses.
    physical: bool,
    /// Size of each page, as a power of two.
    page_shift: u8,
    /// Bus addresses of its pages, as far as they are known.
    pages: Vec<u64>,
    /// Room that it has for pages.
    capacity: u64,
}

impl Mr {
    fn allows(&self, access: Access) -> bool {
        match access {
            Access::LocalRead => true,
            Access::LocalWrite => self.permissions.local_write_enable,
            Access::RemoteRead => self.permissions.remote_read_enable,
            Access::RemoteWrite => self.permissions.remote_write_enable,
        }
    }

    /// Adds to `segments` where `length` bytes at `address` are. The caller has checked that they are in the region.
    fn translate(&self, address: u64, length: u32, segments: &mut Vec<Segment>) -> Option<()> {
        if self.physical {
            add(segments, address, length);
            return Some(());
        }
        let size = 1 << self.page_shift;
        let start = self.iova & !(size - 1);
        let (mut offset, mut rest) = (address - start, length);
        while rest > 0 {
            let page = self
                .pages
                .get(usize::try_from(offset >> self.page_shift).ok()?)?;
            let within = offset & (size - 1);
            // CAST: at most `rest`.
            let part = (size - within).min(rest.into()) as u32;
            add(segments, page + within, part);
            offset += u64::from(part);
            rest -= part;
        }
        Some(())
    }
}

/// Adds contiguous memory, to the last segment if it follows that.
fn add(segments: &mut Vec<Segment>, address: u64, length: u32) {
    if let Some(last) = segments.last_mut() {
        let joined = last.length.checked_add(length);
        if let Some(joined) =
            joined.filter(|_| last.address.checked_add(last.length.into()) == Some(address))
        {
            last.length = joined;
            return;
        }
    }
    segments.push(Segment { address, length });
}

/// How memory is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Sent from by the queue pair.
    LocalRead,
    /// Received into by the queue pair.
    LocalWrite,
    /// Read by the peer.
    RemoteRead,
    /// Written by the peer.
    RemoteWrite,
}

impl Access {
    fn is_remote(self) -> bool {
        matches!(self, Self::RemoteRead | Self::RemoteWrite)
    }
}

/// Contiguous memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Bus address.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
}

/// There is no region of this protection domain that allows the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied;

/// Memory as a work request refers to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keyed {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) length: u32,
}

/// All memory regions. The local key of one is its number.
#[derive(Debug, Default)]
pub(crate) struct Mrs {
    table: Table<Mr>,
    total_pages: u64,
}

impl Mrs {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Removes all, as a reset does.
    pub(super) fn end(&mut self) {
        self.table.end();
        self.total_pages = 0;
    }

    /// Whether one was looked for since the last call that a reset has ended.
    pub(super) fn take_missed(&self) -> bool {
        self.table.take_missed()
    }

    /// How many pages the device knows.
    pub(crate) fn known_pages(&self) -> usize {
        self.table.iter().map(|mr| mr.pages.len()).sum()
    }

    /// The region that a local or remote key belongs to.
    fn find(&self, key: Key) -> Result<&Mr, Denied> {
        let number = u16::try_from(key.region & !REMOTE_KEY).map_err(|_| Denied)?;
        let mr = self.table.get(number).map_err(|_| Denied)?;
        if key.generation == mr.generation {
            Ok(mr)
        } else {
            Err(Denied)
        }
    }

    /// Fails if there is no room for another region of so many pages.
    fn check_room(&self, attributes: &Attributes, pages: u64) -> Result<(), Status> {
        let room = pages <= u64::from(attributes.max_mr_pages)
            && self
                .total_pages
                .checked_add(pages)
                .is_some_and(|total| total <= attributes.max_total_pages)
            && self.table.len() < attributes.max_mr as usize;
        if room {
            Ok(())
        } else {
            Err(Status::ResourceAllocationFailure)
        }
    }

    /// Adds to `segments` where memory is that a queue pair of `pd` wants to use.
    pub(crate) fn translate(
        &self,
        pd: u16,
        memory: Keyed,
        access: Access,
        segments: &mut Vec<Segment>,
    ) -> Result<(), Denied> {
        // No memory is used, so no key is looked at.
        if memory.length == 0 {
            return Ok(());
        }
        let key = Key::from_raw(memory.key);
        if (key.region & REMOTE_KEY != 0) != access.is_remote() {
            return Err(Denied);
        }
        let mr = self.find(key)?;
        let end = memory.address.checked_add(memory.length.into());
        let inside = memory.address >= mr.iova && end.is_some_and(|end| end - mr.iova <= mr.length);
        if mr.pd != pd || !mr.allows(access) || !inside {
            return Err(Denied);
        }
        mr.translate(memory.address, memory.length, segments)
            .ok_or(Denied)
    }

    /// The first page of each region that may be written to.
    pub(crate) fn written_places(&self) -> impl Iterator<Item = Place> {
        let writable = |mr: &&Mr| mr.allows(Access::LocalWrite) || mr.allows(Access::RemoteWrite);
        self.table.iter().filter(writable).filter_map(|mr| {
            let base = *mr.pages.first()?;
            Some(Place {
                base,
                size: 1 << mr.page_shift,
            })
        })
    }

    fn insert(&mut self, attributes: &Attributes, mr: Mr) -> Result<u32, Status> {
        let capacity = mr.capacity;
        let l_key = self.table.insert(attributes.max_mr, mr)?;
        self.total_pages += capacity;
        Ok(l_key.into())
    }
}

/// How many pages a region has.
fn page_count(command: &RegMr) -> Result<u64, Status> {
    let shift = command.flags.phys_page_size_shift;
    let offset = command.iova & ((1 << shift) - 1);
    offset
        .checked_add(command.mr_length)
        .map(|end| end.div_ceil(1 << shift))
        .ok_or(Status::IllegalParameter)
}

impl Execute for RegMr {
    fn execute(
        self,
        firmware: &mut Firmware,
        host: &mut dyn Host,
    ) -> Result<RegMrResponse, Failure> {
        let attributes = &firmware.attributes;
        let list = self.page_list().ok_or(Status::MalformedRequest)?;
        let permissions = self.permissions;
        let legal = self.mr_length > 0
            && self.iova.checked_add(self.mr_length - 1).is_some()
            && (attributes.rdma_read || !permissions.remote_read_enable)
            && (attributes.rdma_write || !permissions.remote_write_enable);
        if !legal {
            return Err(Status::IllegalParameter.into());
        }
        firmware.resources.pds.get(self.pd)?;

        let pages = if self.flags.mem_addr_phy_mode_en {
            if !attributes.physical_mr {
                return Err(Status::UnsupportedOpcode.into());
            }
            // Amazon's driver gives no page at all.
            if !matches!(list, PageList::Inline([_, 0, 0, 0])) || self.page_num > 1 {
                return Err(Status::MalformedRequest.into());
            }
            if !attributes.reaches(self.iova, self.mr_length) {
                return Err(Status::IllegalParameter.into());
            }
            Vec::new()
        } else {
            let page_size = 1_u64 << self.flags.phys_page_size_shift;
            if attributes.page_size_cap & page_size == 0 {
                return Err(Status::IllegalParameter.into());
            }
            let count = page_count(&self)?;
            if self.page_num != 0 && u64::from(self.page_num) != count {
                return Err(Status::IllegalParameter.into());
            }
            firmware.resources.mrs.check_room(attributes, count)?;
            let pages = page_list::read(host, list, count)?;
            // No host gives out its very first page. Larger pages may begin there.
            let possible = |page: &u64| {
                page % page_size == 0
                    && (*page != 0 || page_size > SMALLEST_PAGE)
                    && attributes.reaches(*page, page_size)
            };
            if !pages.iter().all(possible) {
                return Err(Status::IllegalParameter.into());
            }
            pages
        };
        let mr = Mr {
            pd: self.pd,
            generation: 0,
            iova: self.iova,
            length: self.mr_length,
            permissions,
            physical: self.flags.mem_addr_phy_mode_en,
            page_shift: self.flags.phys_page_size_shift,
            capacity: pages.len() as u64,
            pages,
        };
        let l_key = firmware.resources.mrs.insert(attributes, mr)?;
        firmware.resources.pds.add_user(self.pd);
        Ok(RegMrResponse {
            l_key,
            r_key: l_key | REMOTE_KEY,
            validity: InterconnectValidity {
                recv_ic_id: true,
                rdma_read_ic_id: attributes.rdma_read,
                rdma_recv_ic_id: attributes.rdma_write,
            },
            recv_ic_id: 1,
            rdma_read_ic_id: if attributes.rdma_read { 2 } else { 0 },
            rdma_recv_ic_id: if attributes.rdma_write { 3 } else { 0 },
        })
    }
}

impl Execute for AllocMr {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<AllocMrResponse, Failure> {
        let attributes = &firmware.attributes;
        if !attributes.fast_mr {
            return Err(Status::UnsupportedOpcode.into());
        }
        let resources = &mut firmware.resources;
        resources.pds.get(self.pd)?;
        if self.max_pages == 0 {
            return Err(Status::IllegalParameter.into());
        }
        let capacity = self.max_pages.into();
        resources.mrs.check_room(attributes, capacity)?;
        let mr = Mr {
            pd: self.pd,
            capacity,
            ..Mr::default()
        };
        let l_key = resources.mrs.insert(attributes, mr)?;
        resources.pds.add_user(self.pd);
        Ok(AllocMrResponse {
            l_key,
            r_key: l_key | REMOTE_KEY,
        })
    }
}

impl Execute for DeregMr {
    fn execute(self, firmware: &mut Firmware, _host: &mut dyn Host) -> Result<NoData, Failure> {
        let resources = &mut firmware.resources;
        let number = u16::try_from(self.l_key).map_err(|_| Status::IllegalParameter)?;
        let mr = resources.mrs.table.remove(number)?;
        resources.mrs.total_pages -= mr.capacity;
        resources.pds.remove_user(mr.pd);
        Ok(NoData {})
    }
}
