// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registered memory of a driver over any bus.

use std::ops::Range;

use efa_fabric::PortId;
use efa_hw::{
    admin::{
        CtrlBuffInfo,
        mr::{PageList, RegMr, RegMrFlags, RegMrPermissions},
    },
    io::{FastMrRegFlags, FastMrRegReq, Key, PblMode},
};

use crate::{
    bus::{Bus, Memory, PAGE},
    driver::Driver,
};

/// All permissions that a region can have.
pub const ALL_PERMISSIONS: RegMrPermissions = RegMrPermissions {
    local_write_enable: true,
    remote_write_enable: true,
    remote_read_enable: true,
    relaxed_ordering: false,
};

/// A region of memory, whose pages may be scattered.
#[derive(Clone, Debug)]
pub struct Region {
    /// Port of its device in the network.
    pub port: PortId,
    /// Its first IOVA.
    pub iova: u64,
    /// Its local key.
    pub lkey: u32,
    /// Its remote key.
    pub rkey: u32,
    /// The bus addresses of its pages.
    pub pages: Vec<u64>,
}

impl Region {
    /// Registers pages. The command has the rest: the protection domain, the addresses and the permissions.
    pub fn new<D: Bus>(driver: &mut Driver<D>, pages: Vec<u64>, mut command: RegMr) -> Self {
        if pages.len() <= 4 {
            let mut list = [0; 4];
            list[..pages.len()].copy_from_slice(&pages);
            command.set_page_list(PageList::Inline(list));
        } else {
            command.set_page_list(PageList::Direct(page_list(&mut driver.world, &pages)));
        }
        Self::register(driver, pages, &command)
    }

    /// Registers bus addresses, without any pages.
    pub fn physical<D: Bus>(driver: &mut Driver<D>, mut command: RegMr) -> Self {
        command.flags = RegMrFlags { phys_page_size_shift: 0, mem_addr_phy_mode_en: true };
        Self::register(driver, Vec::new(), &command)
    }

    fn register<D: Bus>(driver: &mut Driver<D>, pages: Vec<u64>, command: &RegMr) -> Self {
        let made = driver.execute(command).unwrap();
        Self { port: driver.port, iova: command.iova, lkey: made.l_key, rkey: made.r_key, pages }
    }

    /// Returns the number of bytes from its start to the end of its last page.
    pub fn length(&self) -> usize {
        self.pages.len() * PAGE as usize - (self.iova % PAGE) as usize
    }

    /// Splits `length` bytes from `offset` on at page boundaries; returns the bus address and the range of each part.
    fn parts(&self, offset: u64, length: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
        let start = self.iova % PAGE + offset;
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = start + done as u64;
            (done < length).then(|| {
                let address = self.pages[(at / PAGE) as usize] + at % PAGE;
                // CAST: at most a page.
                let part = done..length.min(done + (PAGE - at % PAGE) as usize);
                done = part.end;
                (address, part)
            })
        })
    }

    /// Writes to it, as the program does.
    pub fn fill(&self, memory: &impl Memory, offset: u64, bytes: &[u8]) {
        for (address, part) in self.parts(offset, bytes.len()) {
            memory.store(address, &bytes[part]);
        }
    }

    /// Reads it, as the program does.
    pub fn content(&self, memory: &impl Memory, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (address, part) in self.parts(offset, length) {
            memory.load(address, &mut bytes[part]);
        }
        bytes
    }

    /// Returns the request that registers all its pages, with all permissions.
    pub fn request(&self, mode: PblMode, pbl: u64) -> FastMrRegReq {
        FastMrRegReq {
            lkey: self.lkey,
            permissions: ALL_PERMISSIONS,
            flags: FastMrRegFlags { phys_page_size_shift: 12, pbl_mode: mode.into() },
            iova: self.iova,
            mr_length: self.length() as u64,
            pbl,
        }
    }

    /// As [`Self::request`], with the first page in the request itself.
    pub fn inline(&self) -> FastMrRegReq {
        self.request(PblMode::Inline, self.pages[0])
    }

    /// Advances its keys to the next generation, as clients do before a registration.
    pub fn renew(&mut self) {
        for key in [&mut self.lkey, &mut self.rkey] {
            let mut parts = Key::from_raw(*key);
            parts.generation = (parts.generation + 1) % 16;
            *key = parts.into_raw();
        }
    }
}

/// Writes a list of pages; returns its length and address.
pub fn page_list(memory: &mut impl Memory, pages: &[u64]) -> CtrlBuffInfo {
    let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
    let address = memory.allocate((bytes.len() as u64).div_ceil(PAGE));
    memory.store(address, &bytes);
    // CAST: lists in tests are short.
    let length = bytes.len() as u32;
    CtrlBuffInfo { length, address }
}

/// Returns pseudorandom bytes, so that misplaced ones differ.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(byte).collect()
}
