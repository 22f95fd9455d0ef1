// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions and the lists of their pages.

use std::time::Duration;

use efa_hw::{
    admin::{
        Command, CtrlBuffInfo, Status,
        control::{CHUNK_ENTRIES, CHUNK_NEXT_OFFSET},
        mr::{AllocMr, AllocMrResponse, DeregMr, PageList, RegMr, RegMrFlags, RegMrResponse},
        pd::AllocPd,
    },
    features::DeviceAttr,
    regs::ResetReason,
};
use efa_model::Profile;
use efa_testing::{
    bus::PAGE,
    commands::reg_mr,
    mock::{Driver, World},
};

type Registered = Result<RegMrResponse, Status>;

const MALFORMED: Registered = Err(Status::MalformedRequest);
const ILLEGAL: Registered = Err(Status::IllegalParameter);
const FULL: Registered = Err(Status::ResourceAllocationFailure);

struct Set {
    driver: Driver,
    pd: u16,
}

impl Set {
    fn new(profile: Profile) -> Self {
        let mut driver = Driver::new(profile);
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        Self { driver, pd }
    }

    /// Returns a command that registers `pages` pages of 4 KiB.
    fn region(&self, pages: u64, list: PageList) -> RegMr {
        let mut command = reg_mr(self.pd, 0x7f00_0000_0000, pages * PAGE);
        command.permissions.local_write_enable = true;
        command.set_page_list(list);
        command
    }

    fn register(&mut self, command: &RegMr) -> Registered {
        let before = self.driver.device.state().resources;
        let result = self.driver.execute(command);
        if result.is_err() {
            assert_eq!(self.driver.device.state().resources, before);
        }
        result
    }

    fn allocate(&mut self, max_pages: u32) -> Result<AllocMrResponse, Status> {
        let pd = self.pd;
        self.driver.execute(&AllocMr { pd, max_pages })
    }

    fn pages(&self) -> usize {
        self.driver.device.state().resources.mr_pages
    }
}

fn one_page(address: u64) -> PageList {
    PageList::Inline([address, 0, 0, 0])
}

/// Writes a list of pages; returns its length and address.
fn write_list(world: &mut World, pages: &[u64]) -> CtrlBuffInfo {
    let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
    let address = world.map((bytes.len() as u64).div_ceil(PAGE));
    world.write(address, &bytes);
    CtrlBuffInfo {
        length: bytes.len() as u32,
        address,
    }
}

/// Writes an indirect list of pages; returns its chunks.
fn write_chunks(world: &mut World, pages: &[u64]) -> Vec<CtrlBuffInfo> {
    let buffers: Vec<u64> = pages
        .chunks(512)
        .map(|pages| write_list(world, pages).address)
        .collect();
    let chunks: Vec<CtrlBuffInfo> = buffers
        .chunks(CHUNK_ENTRIES)
        .map(|buffers| {
            let address = world.map(1);
            for (index, buffer) in buffers.iter().enumerate() {
                world.write(address + index as u64 * 8, &buffer.to_le_bytes());
            }
            CtrlBuffInfo {
                length: buffers.len() as u32 * 8 + 12,
                address,
            }
        })
        .collect();
    for pair in chunks.windows(2) {
        world.write(
            pair[0].address + CHUNK_NEXT_OFFSET as u64,
            &pair[1].encode(),
        );
    }
    chunks
}

fn page_addresses(count: u64) -> Vec<u64> {
    (1..=count).map(|page| page * PAGE).collect()
}

#[test]
fn pages_in_the_command() {
    let mut set = Set::new(Profile::Efa2);
    for count in 1..=4 {
        let mut pages = [0; 4];
        for page in 0..count {
            pages[page as usize] = (page + 1) * PAGE;
        }
        let command = set.region(count, PageList::Inline(pages));
        let response = set.register(&command).unwrap();
        assert_ne!(response.l_key, response.r_key);
        assert!(response.l_key < 1 << 24 && response.r_key < 1 << 24);
        assert!(response.validity.recv_ic_id && response.validity.rdma_read_ic_id);
        assert_eq!(set.pages(), count as usize);
        let l_key = response.l_key;
        set.driver.execute(&DeregMr { l_key }).unwrap();
        assert_eq!(set.pages(), 0);

        // One page less than the region has, and one more.
        pages[count as usize - 1] = 0;
        let command = set.region(count + 1, PageList::Inline(pages));
        assert!(set.register(&command).is_err());
    }
    let command = set.region(1, PageList::Inline([PAGE, PAGE, 0, 0]));
    assert_eq!(set.register(&command), MALFORMED);
    let command = set.region(5, PageList::Inline([PAGE; 4]));
    assert_eq!(set.register(&command), MALFORMED);
    assert_eq!(set.driver.device.state().protocol_errors, 0);
}

#[test]
fn pages_in_a_buffer() {
    let mut set = Set::new(Profile::Efa2);
    for count in [1, 5, 512, 513, 3000] {
        let buffer = write_list(&mut set.driver.world, &page_addresses(count));
        let before = set.pages();
        let good = set.region(count, PageList::Direct(buffer));
        set.register(&good).unwrap();
        assert_eq!(set.pages() - before, count as usize);

        for length in [0, buffer.length - 8, buffer.length - 1, buffer.length + 8] {
            let mut wrong = good;
            wrong.set_page_list(PageList::Direct(CtrlBuffInfo { length, ..buffer }));
            assert_eq!(set.register(&wrong), MALFORMED);
        }
        let mut wrong = good;
        wrong.control.ctrl_data = false;
        wrong.control.ctrl_data_indirect = true;
        assert_eq!(set.register(&wrong), MALFORMED);
    }
    assert_eq!(set.driver.device.state().protocol_errors, 0);
}

#[test]
fn pages_in_chunks() {
    let mut set = Set::new(Profile::Efa2);
    // Up to and beyond a buffer, a chunk, and two chunks.
    let full = 512 * CHUNK_ENTRIES as u64;
    for count in [1, 512, 513, full, full + 1, 2 * full, 2 * full + 1] {
        let chunks = write_chunks(&mut set.driver.world, &page_addresses(count));
        assert_eq!(chunks.len() as u64, count.div_ceil(full));
        let first = chunks[0];
        let good = set.region(count, PageList::Indirect(first));
        let l_key = set.register(&good).unwrap().l_key;
        assert_eq!(set.pages(), count as usize);
        set.driver.execute(&DeregMr { l_key }).unwrap();

        for length in [0, 11, 12, first.length - 8, first.length + 8, u32::MAX] {
            let mut wrong = good;
            wrong.set_page_list(PageList::Indirect(CtrlBuffInfo { length, ..first }));
            assert_eq!(set.register(&wrong), MALFORMED, "{length}");
        }
        if let [.., last, _] = chunks[..] {
            let next = last.address + CHUNK_NEXT_OFFSET as u64;
            set.driver.world.write(next, &[0xff; 4]);
            assert_eq!(set.register(&good), MALFORMED);
        }
    }
    assert_eq!(set.driver.device.state().protocol_errors, 0);
}

/// Limit on page addresses that are read in one call, and bytes that are read besides.
const PAGES_PER_CALL: usize = 1 << 14;
const OVERHEAD: usize = 1024 + 2 * 4096;

/// A long list is read a part at a time. Commands that come after it wait.
#[test]
fn long_lists_are_read_in_pieces() {
    let count = 3 * PAGES_PER_CALL + 1;
    for indirect in [false, true] {
        let mut set = Set::new(Profile::Efa2);
        let pages = page_addresses(count as u64);
        let world = &mut set.driver.world;
        let list = if indirect {
            PageList::Indirect(write_chunks(world, &pages)[0])
        } else {
            PageList::Direct(write_list(world, &pages))
        };
        let command = set.region(count as u64, list);
        let driver = &mut set.driver;
        for request in [command.to_request(), AllocPd {}.to_request()] {
            let entry = driver.entry(&request);
            driver.put(&entry);
        }
        for call in 1..=4 {
            driver.world.dma_bytes = 0;
            if call == 1 {
                driver.ring();
            } else {
                let due = driver.run(Duration::ZERO);
                assert_eq!(due == Some(driver.now), call < 4);
            }
            assert!(driver.world.dma_bytes < PAGES_PER_CALL * 8 + OVERHEAD);
            let state = driver.device.state();
            let left = if call < 4 { 2 } else { 0 };
            assert_eq!(state.admin.in_flight, left, "after call {call}");
            let known = if call < 4 { 0 } else { count };
            assert_eq!(
                (state.resources.mr_pages, state.resources.pd),
                (known, 1 + usize::from(call == 4))
            );
        }
        let [first, second] = [(); 2].map(|()| driver.completion().unwrap());
        assert_eq!((first.1, second.1, second.0), (0, 0, first.0 + 1));
        assert_eq!(driver.device.state().protocol_errors, 0);
    }
}

#[test]
fn a_reset_ends_a_long_registration() {
    let mut set = Set::new(Profile::Efa2);
    let count = 2 * PAGES_PER_CALL as u64;
    let list = write_list(&mut set.driver.world, &page_addresses(count));
    let command = set.region(count, PageList::Direct(list));
    let driver = &mut set.driver;
    driver.submit(&command);
    assert_eq!(driver.device.state().admin.in_flight, 1);
    driver.reset(ResetReason::Normal);
    driver.set_up();
    driver.run(Duration::ZERO);
    assert_eq!(driver.device.state().admin.in_flight, 0);
    assert_eq!(driver.completion(), None);
    assert_eq!(driver.device.state().resources, Default::default());
}

/// Faults in any part of a long list are detected.
#[test]
fn invalid_long_lists() {
    let mut set = Set::new(Profile::Efa2);
    let mut pages = page_addresses(2 * PAGES_PER_CALL as u64);
    let list = write_list(&mut set.driver.world, &pages);
    let command = set.region(pages.len() as u64, PageList::Direct(list));
    let last = list.address + u64::from(list.length) - PAGE;
    set.driver.world.unmap(last);
    assert_eq!(set.register(&command), Err(Status::UnknownError));
    assert_eq!(set.driver.device.state().protocol_errors, 1);

    pages[PAGES_PER_CALL - 1] += 1;
    let list = write_list(&mut set.driver.world, &pages);
    let command = set.region(pages.len() as u64, PageList::Direct(list));
    assert_eq!(set.register(&command), ILLEGAL);
}

/// A chain that refers to itself ends where the region does.
#[test]
fn endless_chain() {
    let mut set = Set::new(Profile::Efa2);
    let count = 1 << 20;
    let world = &mut set.driver.world;
    let chunk = write_chunks(world, &page_addresses(512 * CHUNK_ENTRIES as u64))[0];
    world.write(chunk.address + CHUNK_NEXT_OFFSET as u64, &chunk.encode());
    let command = set.region(count, PageList::Indirect(chunk));
    // The last chunk would have to be shorter.
    assert_eq!(set.register(&command), MALFORMED);
    set.driver.world.dma_bytes = 0;
    let mut command = set.region(u64::from(u32::MAX), PageList::Indirect(chunk));
    assert_eq!(set.register(&command), FULL);
    command.mr_length = u64::MAX - command.iova;
    assert_eq!(set.register(&command), FULL);
    let bytes = set.driver.world.dma_bytes;
    assert!(bytes < 10_000, "the device has read the list");
}

#[test]
fn list_that_is_not_mapped() {
    let mut set = Set::new(Profile::Efa2);
    let buffer = CtrlBuffInfo {
        length: 40,
        address: 0xdead_0000,
    };
    let command = set.region(5, PageList::Direct(buffer));
    assert_eq!(set.register(&command), Err(Status::UnknownError));
    assert_eq!(set.driver.device.state().protocol_errors, 1);

    let world = &mut set.driver.world;
    let chunk = write_chunks(world, &page_addresses(1000))[0];
    world.write(chunk.address + 8, &0xdead_0000_u64.to_le_bytes());
    let command = set.region(1000, PageList::Indirect(chunk));
    assert_eq!(set.register(&command), Err(Status::UnknownError));
    assert_eq!(set.driver.device.state().protocol_errors, 2);
}

#[test]
fn page_sizes() {
    let mut set = Set::new(Profile::Efa2);
    let mut command = set.region(1, one_page(1 << 30));
    for shift in 0..64 {
        command.flags.phys_page_size_shift = shift;
        command.iova = 0;
        command.mr_length = 1 << shift;
        let expected = (12..=30).contains(&shift);
        assert_eq!(set.register(&command).is_ok(), expected, "shift {shift}");
    }
    // A region that starts and ends within pages has one page more than its length suggests.
    command.flags.phys_page_size_shift = 12;
    command.iova = PAGE - 1;
    command.mr_length = 2;
    assert_eq!(set.register(&command), ILLEGAL);
    command.set_page_list(PageList::Inline([PAGE, 3 * PAGE, 0, 0]));
    command.page_num = 3;
    assert_eq!(set.register(&command), ILLEGAL);
    command.page_num = 2;
    set.register(&command).unwrap();
}

#[test]
fn addresses_of_pages() {
    let mut set = Set::new(Profile::Efa2);
    for address in [0, 1, PAGE - 1, PAGE + 8, 1 << 48, u64::MAX - PAGE + 1] {
        let command = set.region(1, one_page(address));
        assert_eq!(set.register(&command), ILLEGAL, "{address:#x}");
    }
    let command = set.region(1, one_page((1 << 48) - PAGE));
    set.register(&command).unwrap();
}

#[test]
fn lengths() {
    let mut set = Set::new(Profile::Efa2);
    let mut command = set.region(1, one_page(PAGE));
    command.mr_length = 0;
    assert_eq!(set.register(&command), ILLEGAL);
    command.iova = u64::MAX;
    command.mr_length = 2;
    assert_eq!(set.register(&command), ILLEGAL);
    // A region may end at the last byte of the address space.
    command.mr_length = 1;
    set.register(&command).unwrap();
}

#[test]
fn permissions() {
    for (profile, read, write) in [
        (Profile::Efa0, false, false),
        (Profile::Efa1, true, false),
        (Profile::Efa2, true, true),
    ] {
        let mut set = Set::new(profile);
        let mut command = set.region(1, one_page(PAGE));
        command.permissions.remote_read_enable = true;
        assert_eq!(set.register(&command).is_ok(), read, "{profile:?}");
        command.permissions.remote_read_enable = false;
        command.permissions.remote_write_enable = true;
        assert_eq!(set.register(&command).is_ok(), write, "{profile:?}");
        command.permissions.remote_write_enable = false;
        command.permissions.relaxed_ordering = true;
        assert_eq!(set.register(&command), ILLEGAL, "{profile:?}");
        let overrides = r#"{"relaxed_ordering": true}"#;
        let device = &mut set.driver.device;
        device.set(serde_json::from_str(overrides).unwrap());
        set.register(&command).unwrap();
        let device: DeviceAttr = set.driver.feature().unwrap();
        assert!(device.device_caps.relaxed_ordering);
    }
}

#[test]
fn physical_memory() {
    let mut set = Set::new(Profile::Efa2);
    let mut command = set.region(1, PageList::Inline([0; 4]));
    command.flags = RegMrFlags {
        phys_page_size_shift: 0,
        mem_addr_phy_mode_en: true,
    };
    // The parameters of Amazon's driver.
    command.iova = 0;
    command.mr_length = 1 << 48;
    set.register(&command).unwrap();
    // The parameters according to the header.
    command.iova = PAGE;
    command.mr_length = PAGE;
    command.page_num = 1;
    command.set_page_list(one_page(PAGE));
    set.register(&command).unwrap();
    assert_eq!(set.pages(), 0);

    let good = command;
    command.page_num = 2;
    assert_eq!(set.register(&command), MALFORMED);
    for pages in [[PAGE, PAGE, 0, 0], [PAGE, 0, 0, 1]] {
        command = good;
        command.set_page_list(PageList::Inline(pages));
        assert_eq!(set.register(&command), MALFORMED);
    }
    let buffer = write_list(&mut set.driver.world, &[PAGE]);
    for list in [PageList::Direct(buffer), PageList::Indirect(buffer)] {
        command = good;
        command.set_page_list(list);
        assert_eq!(set.register(&command), MALFORMED);
    }
    for (iova, length) in [
        (0, (1 << 48) + 1),
        ((1 << 48) - PAGE, PAGE + 1),
        (1 << 48, 1),
        (0, u64::MAX),
        (0, 0),
    ] {
        command = good;
        (command.iova, command.mr_length) = (iova, length);
        assert_eq!(set.register(&command), ILLEGAL, "{iova:#x}");
    }
    assert_eq!(set.driver.device.state().protocol_errors, 0);
}

/// Not all devices have the features that only kernel verbs need.
#[test]
fn devices_without_kernel_verbs() {
    let unsupported = Err(Status::UnsupportedOpcode);
    for (profile, supported) in [
        (Profile::Efa0, false),
        (Profile::Efa1, false),
        (Profile::Efa2, true),
        (Profile::Efa3, true),
        (Profile::Efa4, true),
    ] {
        let mut set = Set::new(profile);
        let mut physical = set.region(1, PageList::Inline([0; 4]));
        physical.flags.mem_addr_phy_mode_en = true;
        if supported {
            set.register(&physical).unwrap();
            set.allocate(1).unwrap();
        }
        // Each feature is supported without the other.
        for (fast_mr, physical_mr) in [(false, false), (true, false), (false, true)] {
            if supported || fast_mr || physical_mr {
                let json = format!(r#"{{"fast_mr":{fast_mr},"physical_mr":{physical_mr}}}"#);
                set.driver.device.set(serde_json::from_str(&json).unwrap());
            }
            let result = set.allocate(1).map(|_| ());
            assert_eq!(result, if fast_mr { Ok(()) } else { unsupported });
            let result = set.register(&physical).map(|_| ());
            assert_eq!(result, if physical_mr { Ok(()) } else { unsupported });
        }
    }
}

#[test]
fn room_for_pages() {
    let mut set = Set::new(Profile::Efa2);
    let limits = serde_json::from_str(r#"{"max_mr_pages":4,"max_total_pages":6}"#);
    set.driver.device.set(limits.unwrap());
    let buffer = write_list(&mut set.driver.world, &page_addresses(5));
    let command = set.region(5, PageList::Direct(buffer));
    assert_eq!(set.register(&command), FULL);
    let four = set.region(4, PageList::Inline([PAGE; 4]));
    let l_key = set.register(&four).unwrap().l_key;
    assert_eq!(set.register(&four), FULL);
    set.allocate(2).unwrap();
    let one = set.region(1, one_page(PAGE));
    assert_eq!(set.register(&one), FULL);
    set.driver.execute(&DeregMr { l_key }).unwrap();
    set.register(&four).unwrap();
}

/// Lustre's efalnd allocates a region of 1 MiB per message that may be in flight: 512, and 4,096 for each queue pair.
#[test]
fn room_for_the_regions_of_efalnd() {
    let mut set = Set::new(Profile::Efa2);
    for _ in 0..512 + 8 * 4096 {
        set.allocate(256).unwrap();
    }
}
