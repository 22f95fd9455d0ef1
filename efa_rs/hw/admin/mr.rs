// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for memory regions.

use super::{
    super::{
        admin,
        wire::{
            self,
            bits,
            layout, //
        }, //
    },
    command,
    AqFlags,
    CtrlBuffInfo,
    NoData,
    Opcode, //
};

/// Pages of a region that fit into the command.
pub const INLINE_PAGES: usize = 4;

bits! {
    /// Form of a memory region.
    pub struct RegMrFlags(u8) {
        /// Size of each page, as a power of two.
        5:0 phys_page_size_shift => u8,
        /// The region is bus addresses, without a translation; its one page is not looked at.
        7:7 mem_addr_phy_mode_en => bool,
    }
}

bits! {
    /// What a memory region may be used for, besides sending from it.
    pub struct RegMrPermissions(u8) {
        /// Receiving into it, and reading into it from a peer.
        0:0 local_write_enable => bool,
        /// Writing to it by a peer.
        1:1 remote_write_enable => bool,
        /// Reading from it by a peer.
        2:2 remote_read_enable => bool,
    }
}

layout! {
    /// Bus addresses of pages, in the command itself.
    pub struct InlinePages[32] {
        /// First page.
        first @ 0: u64,
        /// Second page.
        second @ 8: u64,
        /// Third page.
        third @ 16: u64,
        /// Fourth page.
        fourth @ 24: u64,
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

/// Where the bus addresses of a memory region's pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageList {
    /// In the command; unused ones are zero.
    Inline([u64; INLINE_PAGES]),
    /// In a contiguous control buffer, 8 bytes each.
    Direct(CtrlBuffInfo),
    /// In the pages of an [indirect control buffer](super::control), of which this is the first
    /// chunk.
    Indirect(CtrlBuffInfo),
}

layout! {
    /// Registers a memory region.
    pub struct RegMr[60] {
        /// Which kind of [`PageList`] it is.
        control: AqFlags,
        /// Protection domain.
        pd @ 0: u16,
        /// Encoding of the [`PageList`], with zeroes to its end.
        page_list @ 4: [u8; 32],
        /// Length of the region in bytes.
        mr_length @ 36: u64,
        /// Form of the region.
        flags @ 44: RegMrFlags,
        /// What it may be used for.
        permissions @ 45: RegMrPermissions,
        /// Number of pages, or 0: it follows from the other fields.
        page_num @ 48: u32,
        /// Address by which work requests refer to the region's start.
        iova @ 52: u64,
    }
}

impl RegMr {
    /// Sets where the pages' addresses are.
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

    /// Returns where the pages' addresses are, or nothing if the flags contradict each other.
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
    /// Which interconnect ids of a response are valid.
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
        /// Key by which local work requests refer to it.
        l_key @ 8: u32,
        /// Key by which peers refer to it.
        r_key @ 12: u32,
        /// Which of the other fields are valid.
        validity @ 16: InterconnectValidity,
        /// Interconnect by which the device receives into it.
        recv_ic_id @ 17: u8,
        /// Interconnect by which the device answers reads of it.
        rdma_read_ic_id @ 18: u8,
        /// Interconnect by which the device does writes to it.
        rdma_recv_ic_id @ 19: u8,
    }
}

command!(Opcode::RegMr, RegMr with control => RegMrResponse);

layout! {
    /// Removes a memory region.
    pub struct DeregMr[60] {
        /// Its local key.
        l_key @ 0: u32,
    }
}

command!(Opcode::DeregMr, DeregMr => NoData);

layout! {
    /// Allocates a memory region that gets its pages by a work request later.
    pub struct AllocMr[60] {
        /// Protection domain.
        pd @ 0: u16,
        /// Most pages that it is to have.
        max_pages @ 4: u32,
    }
}

layout! {
    /// The new memory region.
    pub struct AllocMrResponse[64] {
        /// Key by which local work requests refer to it.
        l_key @ 8: u32,
        /// Key by which peers refer to it.
        r_key @ 12: u32,
    }
}

command!(Opcode::AllocMr, AllocMr => AllocMrResponse);
