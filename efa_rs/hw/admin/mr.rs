// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for memory regions.

use super::*;

/// Number of page addresses that fit into the command itself.
pub const INLINE_PAGES: usize = 4;

bits! {
    /// Page size and addressing mode of a memory region.
    pub struct RegMrFlags(u8) {
        /// Binary logarithm of the page size in bytes.
        5:0 phys_page_size_shift => u8,
        /// The region is bus addresses, without translation; the device ignores its only page.
        7:7 mem_addr_phy_mode_en => bool,
    }
}

bits! {
    /// Permitted accesses to a memory region, besides sending from it.
    pub struct RegMrPermissions(u8) {
        /// Local writes: receives, and RDMA reads from a peer into the region.
        0:0 local_write_enable => bool,
        /// RDMA writes to the region by a peer.
        1:1 remote_write_enable => bool,
        /// RDMA reads of the region by a peer.
        2:2 remote_read_enable => bool,
        /// The device may reorder its writes to the region. The bit is a guess, see
        /// [`DeviceCaps`](super::super::features::DeviceCaps::relaxed_ordering).
        3:3 relaxed_ordering => bool,
    }
}

layout! {
    /// Bus addresses of pages, in the command itself.
    pub struct InlinePages[32] {
        /// First page.
        first @ 0: u64 as Hex,
        /// Second page.
        second @ 8: u64 as Hex,
        /// Third page.
        third @ 16: u64 as Hex,
        /// Fourth page.
        fourth @ 24: u64 as Hex,
    }
}

impl From<[u64; INLINE_PAGES]> for InlinePages {
    #[inline]
    fn from([first, second, third, fourth]: [u64; INLINE_PAGES]) -> Self {
        Self {
            first,
            second,
            third,
            fourth,
        }
    }
}

impl From<InlinePages> for [u64; INLINE_PAGES] {
    #[inline]
    fn from(pages: InlinePages) -> Self {
        [pages.first, pages.second, pages.third, pages.fourth]
    }
}

/// Location of the bus addresses of a memory region's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageList {
    /// In the command; unused entries are zero.
    Inline([u64; INLINE_PAGES]),
    /// In a contiguous control buffer, 8 bytes each.
    Direct(CtrlBuffInfo),
    /// In an [indirect control buffer](super::control), whose first chunk this refers to.
    Indirect(CtrlBuffInfo),
}

layout! {
    /// Registers a memory region.
    pub struct RegMr[60] {
        /// Kind of the [`PageList`].
        control: AqFlags,
        /// Protection domain.
        pd @ 0: u16 as Id,
        /// Encoding of the [`PageList`], padded with zeroes.
        page_list @ 4: [u8; 32],
        /// Length of the region in bytes.
        mr_length @ 36: u64,
        /// Page size and addressing mode.
        flags @ 44: RegMrFlags,
        /// Permitted accesses.
        permissions @ 45: RegMrPermissions,
        /// Number of pages, or 0: the device derives it from the other fields.
        page_num @ 48: u32,
        /// IOVA: address of the region's start in work requests.
        iova @ 52: u64 as Address,
    }
}

impl RegMr {
    /// Sets the location of the pages' addresses.
    #[inline]
    pub fn set_page_list(&mut self, pages: PageList) {
        let (buffer, ctrl_data_indirect) = match pages {
            PageList::Inline(pages) => {
                self.control = AqFlags::default();
                self.page_list = InlinePages::from(pages).encode();
                return;
            }
            PageList::Direct(buffer) => (buffer, false),
            PageList::Indirect(chunk) => (chunk, true),
        };
        self.control = AqFlags {
            phase: false,
            ctrl_data: true,
            ctrl_data_indirect,
        };
        self.page_list = [0; 32];
        wire::At::<0>::store(&mut self.page_list, buffer.encode());
    }

    /// Returns the location of the pages' addresses, or `None` if the flags are contradictory.
    #[inline]
    pub fn page_list(&self) -> Option<PageList> {
        let buffer = CtrlBuffInfo::decode(&wire::At::<0>::load(&self.page_list));
        match (self.control.ctrl_data, self.control.ctrl_data_indirect) {
            (false, false) => Some(PageList::Inline(
                InlinePages::decode(&self.page_list).into(),
            )),
            (true, false) => Some(PageList::Direct(buffer)),
            (true, true) => Some(PageList::Indirect(buffer)),
            (false, true) => None,
        }
    }
}

bits! {
    /// Valid interconnect ids of a response.
    pub struct InterconnectValidity(u8) {
        /// [`RegMrResponse::recv_ic_id`].
        0:0 recv_ic_id => bool,
        /// [`RegMrResponse::rdma_read_ic_id`].
        1:1 rdma_read_ic_id => bool,
        /// [`RegMrResponse::rdma_recv_ic_id`].
        2:2 rdma_recv_ic_id => bool,
    }
}

layout! {
    /// The new memory region.
    pub struct RegMrResponse[64] {
        /// Local key of the region, for work requests.
        l_key @ 8: u32 as Key,
        /// Remote key of the region, for peers.
        r_key @ 12: u32 as Key,
        /// Valid interconnect ids.
        validity @ 16: InterconnectValidity,
        /// Interconnect through which the device reaches the region for receives.
        recv_ic_id @ 17: u8,
        /// Interconnect through which the device reaches the region for RDMA reads by peers.
        rdma_read_ic_id @ 18: u8,
        /// Interconnect through which the device reaches the region for RDMA writes by peers.
        rdma_recv_ic_id @ 19: u8,
    }
}

command!(Opcode::RegMr, RegMr with control => RegMrResponse);

layout! {
    /// Removes a memory region.
    pub struct DeregMr[60] {
        /// Local key of the region.
        l_key @ 0: u32 as Key,
    }
}

command!(Opcode::DeregMr, DeregMr => NoData);

layout! {
    /// Allocates a memory region whose pages are set by a work request (fast registration).
    pub struct AllocMr[60] {
        /// Protection domain.
        pd @ 0: u16 as Id,
        /// Maximum number of pages of the region.
        max_pages @ 4: u32,
    }
}

layout! {
    /// The new memory region.
    pub struct AllocMrResponse[64] {
        /// Local key of the region, for work requests.
        l_key @ 8: u32 as Key,
        /// Remote key of the region, for peers.
        r_key @ 12: u32 as Key,
    }
}

command!(Opcode::AllocMr, AllocMr => AllocMrResponse);
