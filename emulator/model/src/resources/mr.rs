// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions.

use efa_hw::admin::{
    NoData, Status,
    mr::{AllocMr, AllocMrResponse, DeregMr, InterconnectValidity, PageList, RegMr, RegMrPermissions, RegMrResponse},
};
use efa_hw::io::{CompStatus, FastMrRegReq, Key, PblMode};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    failure::Failure,
    memory::{self, Access, Denied, Keyed, Segment},
    page_list::PageReader,
    page_runs::PageRuns,
    pd::Pds,
    table::Table,
};
use crate::{Host, ensure, profile::attributes::Attributes, queue::Place, view};

/// Bit that distinguishes a remote key from the local key of the same region, to detect a driver that confuses them. It is in the
/// part of a [`Key`] that identifies the region.
const REMOTE_KEY: u32 = 1 << 19;

/// Size of an address in a page list, and alignment of such a list, in bytes.
const PAGE_ADDRESS_SIZE: u64 = 8;

/// A memory region.
#[derive(Debug, Default)]
pub(crate) struct Mr {
    pd: u16,
    /// The generation of its keys.
    generation: u8,
    /// Address of its first byte in work requests.
    iova: u64,
    /// Length in bytes; 0 for a region without memory.
    length: u64,
    permissions: RegMrPermissions,
    /// Whether its addresses are bus addresses.
    pub(super) physical: bool,
    /// Whether it gets its pages by work requests.
    pub(super) fast: bool,
    /// Size of each page, as a power of two.
    page_shift: u8,
    /// Its pages; none for a physical region, or one without memory.
    pub(super) pages: PageRuns,
    /// Limit on its pages, which counts against the limit on pages of all regions.
    capacity: u64,
}

view! {
    /// A memory region.
    MemoryRegion from (number, mr): (u32, &Mr) {
        /// Its number, which is in its keys.
        number: u32 = number,
        /// Its protection domain.
        pd: u16 = mr.pd,
        /// The generation of its keys.
        generation: u8 = mr.generation,
        /// Address of its start in work requests.
        iova: u64 = mr.iova,
        /// Length in bytes; 0 for a region without memory.
        length: u64 = mr.length,
        /// Size of its pages, as an exponent of two.
        page_shift: u8 = mr.page_shift,
        /// Whether its device may write to it.
        local_write: bool = mr.permissions.local_write_enable,
        /// Whether peers may read it.
        remote_read: bool = mr.permissions.remote_read_enable,
        /// Whether peers may write to it.
        remote_write: bool = mr.permissions.remote_write_enable,
        /// Whether it gets its pages by work requests (fast registration).
        fast: bool = mr.fast,
        /// Whether its addresses are bus addresses.
        physical: bool = mr.physical,
    }
}

impl Mr {
    /// Whether work requests can use it.
    pub(super) fn has_memory(&self) -> bool {
        self.length > 0
    }

    fn allows(&self, access: Access) -> bool {
        match access {
            Access::LocalRead => true,
            Access::LocalWrite => self.permissions.local_write_enable,
            Access::RemoteRead => self.permissions.remote_read_enable,
            Access::RemoteWrite => self.permissions.remote_write_enable,
        }
    }

    /// Appends the location of `length` bytes at `address` to `segments`. The caller has checked that they are in the region.
    fn translate(&self, address: u64, length: u32, segments: &mut Vec<Segment>) -> Option<()> {
        let relaxed = self.permissions.relaxed_ordering;
        if self.physical {
            memory::add(segments, address, length, relaxed);
            return Some(());
        }
        let start = self.iova & !((1 << self.page_shift) - 1);
        let (mut offset, mut rest) = (address - start, length);
        while rest > 0 {
            let (address, contiguous) = self.pages.at(offset, self.page_shift)?;
            // CAST: at most `rest`.
            let part = contiguous.min(rest.into()) as u32;
            memory::add(segments, address, part, relaxed);
            offset += u64::from(part);
            rest -= part;
        }
        Some(())
    }
}

/// A region that is being registered.
#[derive(Debug)]
pub(crate) struct Registration {
    command: RegMr,
    pub(crate) pages: PageReader,
}

/// All memory regions. The local key of a new region is its number.
#[derive(Debug, Default)]
pub(crate) struct Mrs {
    pub(crate) table: Table<Mr, u32>,
    total_pages: u64,
}

impl Mrs {
    /// Removes all memory regions, as a reset does.
    pub(super) fn end(&mut self) {
        self.table.end();
        self.total_pages = 0;
    }

    /// The region that a local or remote key belongs to.
    fn find(&self, key: Key) -> Result<&Mr, Denied> {
        let mr = self.table.get(key.region & !REMOTE_KEY);
        let mr = mr.map_err(|_| Denied)?;
        ensure(key.generation == mr.generation, Denied)?;
        Ok(mr)
    }

    /// Finds the region of a local key of any generation, if it belongs to `pd` and gets its pages by work requests.
    fn find_fast(&mut self, pd: u16, key: u32) -> Result<&mut Mr, Denied> {
        let parts = Key::from_raw(key);
        let mr = self.table.get_mut(parts.region).map_err(|_| Denied)?;
        let is_right = mr.fast && mr.pd == pd && parts.into_raw() == key;
        ensure(is_right, Denied)?;
        Ok(mr)
    }

    /// Begins a fast registration for a work request of a queue pair of `pd`. The caller then reads its pages, and
    /// [finishes](Self::finish_fast) it.
    pub(crate) fn begin_fast(
        &mut self,
        attributes: &Attributes,
        pd: u16,
        request: FastMrRegReq,
    ) -> Result<PageReader, CompStatus> {
        let mr = self.find_empty(pd, request.lkey)?;
        let shift = request.flags.phys_page_size_shift;
        let mode = PblMode::try_from(request.flags.pbl_mode);
        let mode = mode.map_err(|_| CompStatus::LocalUnsupportedOp)?;
        let supported = permits(attributes, request.permissions) && attributes.page_size_cap & (1 << shift) != 0;
        ensure(supported, CompStatus::LocalUnsupportedOp)?;
        let most = match mode {
            PblMode::Inline => 1,
            PblMode::Direct => mr.capacity,
        };
        let count = page_count(request.iova, request.mr_length, shift)
            .filter(|count| *count <= most)
            .and_then(|count| usize::try_from(count).ok())
            .ok_or(CompStatus::LocalBadLength)?;
        match mode {
            PblMode::Inline => Ok(PageReader::inline(attributes, &[request.pbl], shift)),
            PblMode::Direct if request.pbl % PAGE_ADDRESS_SIZE == 0 => {
                Ok(PageReader::direct(request.pbl, count, shift))
            }
            PblMode::Direct => Err(CompStatus::LocalInvalidLkey),
        }
    }

    /// Finishes a fast registration whose pages are all read.
    pub(crate) fn finish_fast(&mut self, pd: u16, request: FastMrRegReq, pages: PageReader) -> Result<(), CompStatus> {
        // The region may have been deregistered or registered meanwhile.
        let mr = self.find_empty(pd, request.lkey)?;
        mr.pages = pages.finish().ok_or(CompStatus::LocalInvalidLkey)?;
        mr.generation = Key::from_raw(request.lkey).generation;
        mr.iova = request.iova;
        mr.length = request.mr_length;
        mr.permissions = request.permissions;
        mr.page_shift = request.flags.phys_page_size_shift;
        Ok(())
    }

    /// Finds the region of a fast registration by a queue pair of `pd`. A region that has memory must be invalidated first.
    fn find_empty(&mut self, pd: u16, lkey: u32) -> Result<&mut Mr, CompStatus> {
        self.find_fast(pd, lkey).ok().filter(|mr| !mr.has_memory()).ok_or(CompStatus::LocalInvalidLkey)
    }

    /// Invalidates a region for a work request of a queue pair of `pd`. Amazon's driver uses either key for that.
    pub(crate) fn invalidate(&mut self, host: &mut dyn Host, pd: u16, key: u32) -> Result<(), Denied> {
        let mr = self.find_fast(pd, key & !REMOTE_KEY)?;
        let is_valid = mr.has_memory() && mr.generation == Key::from_raw(key).generation;
        ensure(is_valid, Denied)?;
        host.quiesce();
        mr.length = 0;
        mr.pages = PageRuns::default();
        Ok(())
    }

    /// Fails if there is no room for another region of `pages` pages.
    fn check_room(&self, attributes: &Attributes, pages: u64) -> Result<(), Status> {
        let room = pages <= u64::from(attributes.max_mr_pages)
            && self.total_pages.checked_add(pages).is_some_and(|total| total <= attributes.max_total_pages)
            && self.table.len() < attributes.max_mr as usize;
        ensure(room, Status::ResourceAllocationFailure)
    }

    /// Returns the region of memory that a queue pair of `pd` accesses.
    pub(crate) fn check(&self, pd: u16, memory: Keyed, access: Access) -> Result<&Mr, Denied> {
        let key = Key::from_raw(memory.key);
        ensure((key.region & REMOTE_KEY != 0) == access.is_remote(), Denied)?;
        let mr = self.find(key)?;
        let end = memory.address.checked_add(memory.length.into());
        let inside = memory.address >= mr.iova && end.is_some_and(|end| end - mr.iova <= mr.length);
        ensure(mr.pd == pd && mr.allows(access) && inside, Denied)?;
        Ok(mr)
    }

    /// Appends the location of memory that a queue pair of `pd` accesses to `segments`.
    pub(crate) fn translate(
        &self,
        pd: u16,
        memory: Keyed,
        access: Access,
        segments: &mut Vec<Segment>,
    ) -> Result<(), Denied> {
        let mr = self.check(pd, memory, access)?;
        if memory.length == 0 {
            return Ok(());
        }
        mr.translate(memory.address, memory.length, segments).ok_or(Denied)
    }

    /// Returns the first page of each writable region, without the parts outside the region.
    pub(crate) fn written_places(&self) -> impl Iterator<Item = Place> {
        let writable = |mr: &&Mr| mr.allows(Access::LocalWrite) || mr.allows(Access::RemoteWrite);
        self.table.iter().filter(writable).filter_map(|mr| {
            let (first, page_size) = (mr.pages.first()?, 1 << mr.page_shift);
            // Memory before and behind the region in its pages has other uses.
            let offset = mr.iova & (page_size - 1);
            Some(Place { base: first + offset, size: mr.length.min(page_size - offset) })
        })
    }

    /// Returns the locations of the pages of all regions.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        self.table.iter().flat_map(|mr| {
            // Memory before and behind the region in its pages has other uses.
            let start = mr.iova & ((1 << mr.page_shift) - 1);
            mr.pages.places(start..start + mr.length, mr.page_shift)
        })
    }

    fn insert(&mut self, attributes: &Attributes, mr: Mr) -> Result<u32, Status> {
        let capacity = mr.capacity;
        let l_key = self.table.insert(attributes, attributes.max_mr, mr)?;
        self.total_pages += capacity;
        Ok(l_key)
    }

    /// Begins to register a region. The caller then reads its pages, and [finishes](Self::finish) it, which creates the region.
    pub(crate) fn begin(&self, attributes: &Attributes, pds: &Pds, command: RegMr) -> Result<Registration, Failure> {
        let list = command.page_list().ok_or(Status::MalformedRequest)?;
        let last = command.mr_length.checked_sub(1);
        let valid = last.is_some_and(|last| command.iova.checked_add(last).is_some());
        let legal = valid && permits(attributes, command.permissions);
        ensure(legal, Status::IllegalParameter)?;
        pds.get(command.pd)?;

        let shift = command.flags.phys_page_size_shift;
        if command.flags.mem_addr_phy_mode_en {
            ensure(attributes.physical_mr, Status::UnsupportedOpcode)?;
            // Amazon's driver passes no page.
            let legal = matches!(list, PageList::Inline([_, 0, 0, 0])) && command.page_num <= 1;
            ensure(legal, Status::MalformedRequest)?;
            let legal = attributes.reaches(command.iova, command.mr_length);
            ensure(legal, Status::IllegalParameter)?;
            let pages = PageReader::inline(attributes, &[], shift);
            return Ok(Registration { command, pages });
        }
        let legal = attributes.page_size_cap & (1 << shift) != 0;
        ensure(legal, Status::IllegalParameter)?;
        let count = page_count(command.iova, command.mr_length, shift);
        let count = count.ok_or(Status::IllegalParameter)?;
        let legal = [0, count].contains(&command.page_num.into());
        ensure(legal, Status::IllegalParameter)?;
        self.check_room(attributes, count)?;
        let pages = PageReader::of_command(attributes, list, count, shift)?;
        Ok(Registration { command, pages })
    }

    /// Creates a region whose pages are all read.
    pub(crate) fn finish(
        &mut self,
        attributes: &Attributes,
        pds: &mut Pds,
        registration: Registration,
    ) -> Result<RegMrResponse, Status> {
        let Registration { command, pages } = registration;
        let pages = pages.finish().ok_or(Status::IllegalParameter)?;
        let mr = Mr {
            pd: command.pd,
            generation: 0,
            iova: command.iova,
            length: command.mr_length,
            permissions: command.permissions,
            fast: false,
            physical: command.flags.mem_addr_phy_mode_en,
            page_shift: command.flags.phys_page_size_shift,
            capacity: pages.len().into(),
            pages,
        };
        let l_key = self.insert(attributes, mr)?;
        pds.add_user(command.pd);
        if command.flags.mem_addr_phy_mode_en {
            pds.make_privileged(command.pd);
        }
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

    pub(crate) fn alloc(
        &mut self,
        attributes: &Attributes,
        pds: &mut Pds,
        command: &AllocMr,
    ) -> Result<AllocMrResponse, Status> {
        ensure(attributes.fast_mr, Status::UnsupportedOpcode)?;
        pds.get(command.pd)?;
        ensure(command.max_pages != 0, Status::IllegalParameter)?;
        let capacity = command.max_pages.into();
        self.check_room(attributes, capacity)?;
        let mr = Mr { pd: command.pd, fast: true, capacity, ..Mr::default() };
        let l_key = self.insert(attributes, mr)?;
        pds.add_user(command.pd);
        pds.make_privileged(command.pd);
        Ok(AllocMrResponse { l_key, r_key: l_key | REMOTE_KEY })
    }

    pub(crate) fn dereg(&mut self, pds: &mut Pds, host: &mut dyn Host, command: &DeregMr) -> Result<NoData, Status> {
        let key = Key::from_raw(command.l_key);
        // The driver may have advanced the key of a fast region without registering it.
        let legal = (self.table.get(key.region)?.fast || key.generation == 0) && command.l_key == key.into_raw();
        ensure(legal, Status::IllegalParameter)?;
        host.quiesce();
        let mr = self.table.remove(key.region)?;
        self.total_pages -= mr.capacity;
        pds.remove_user(mr.pd);
        Ok(NoData {})
    }
}

/// Returns the number of pages of size `1 << shift` in a region, if its address and length are valid.
fn page_count(iova: u64, length: u64, shift: u8) -> Option<u64> {
    let last = length.checked_sub(1)?;
    iova.checked_add(last)?;
    let offset = iova & ((1 << shift) - 1);
    let end = offset.checked_add(length)?;
    Some(end.div_ceil(1 << shift))
}

/// Whether the device supports the permissions of a region.
fn permits(attributes: &Attributes, permissions: RegMrPermissions) -> bool {
    (attributes.rdma_read || !permissions.remote_read_enable)
        && (attributes.rdma_write || !permissions.remote_write_enable)
        && (attributes.relaxed_ordering || !permissions.relaxed_ordering)
}
