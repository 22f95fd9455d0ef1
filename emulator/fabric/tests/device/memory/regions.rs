// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions of commands, and the lists of their pages.

use super::*;

type Registered = Result<RegMrResponse, Status>;

const MALFORMED: Registered = Err(Status::MalformedRequest);
const ILLEGAL: Registered = Err(Status::IllegalParameter);
const FULL: Registered = Err(Status::ResourceAllocationFailure);

impl Set {
    /// Returns a command that registers `pages` pages of 4 KiB.
    fn region(&self, pages: u64, list: PageList) -> RegMr {
        let mut command = reg_mr(self.pd, IOVA, pages * PAGE);
        command.permissions.local_write_enable = true;
        command.set_page_list(list);
        command
    }

    fn register(&mut self, command: &RegMr) -> Registered {
        let before = self.driver.counts();
        let result = self.driver.execute(command);
        assert!(result.is_ok() || self.driver.counts() == before);
        result
    }

    /// Registers a region after a change of its command.
    fn changed(&mut self, mut command: RegMr, change: impl FnOnce(&mut RegMr)) -> Registered {
        change(&mut command);
        self.register(&command)
    }
}

/// Writes an indirect list of pages; returns its chunks.
fn write_chunks(world: &mut World, pages: &[u64]) -> Vec<CtrlBuffInfo> {
    let buffers = pages.chunks(512).map(|pages| page_list(world, pages).address);
    let buffers: Vec<u64> = buffers.collect();
    let chunks = buffers
        .chunks(CHUNK_ENTRIES)
        .map(|buffers| CtrlBuffInfo { length: buffers.len() as u32 * 8 + 12, ..page_list(world, buffers) });
    let chunks: Vec<CtrlBuffInfo> = chunks.collect();
    for pair in chunks.windows(2) {
        let next = pair[0].address + CHUNK_NEXT_OFFSET as u64;
        world.store(next, &pair[1].encode());
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
        (0..count).for_each(|page| pages[page as usize] = (page + 1) * PAGE);
        let command = set.region(count, PageList::Inline(pages));
        let response = set.register(&command).unwrap();
        assert_ne!(response.l_key, response.r_key);
        assert!(response.l_key < 1 << 24 && response.r_key < 1 << 24);
        assert!(response.validity.recv_ic_id && response.validity.rdma_read_ic_id);
        assert_eq!(set.driver.counts().mr_pages, count as usize);
        set.execute(&DeregMr { l_key: response.l_key });
        assert_eq!(set.driver.counts().mr_pages, 0);

        // One page less than the region has, and one more.
        pages[count as usize - 1] = 0;
        let command = set.region(count + 1, PageList::Inline(pages));
        assert!(set.register(&command).is_err());
    }
    for (count, pages) in [(1, [PAGE, PAGE, 0, 0]), (5, [PAGE; 4])] {
        let command = set.region(count, PageList::Inline(pages));
        assert_eq!(set.register(&command), MALFORMED);
    }
    assert_eq!(set.driver.errors(), 0);
}

/// Lists in a buffer, and in chunks: up to and beyond a buffer, a chunk, and two chunks.
#[test]
fn lists_of_pages() {
    let mut set = Set::new(Profile::Efa2);
    let full = 512 * CHUNK_ENTRIES as u64;
    let counts = [1, 5, 512, 513, 3000, full, full + 1, 2 * full, 2 * full + 1];
    for (count, indirect) in counts.iter().flat_map(|count| [(*count, false), (*count, true)]) {
        let (world, pages) = (&mut set.driver.world, page_addresses(count));
        let chunks = if indirect { write_chunks(world, &pages) } else { vec![page_list(world, &pages)] };
        let list = |list| {
            if indirect { PageList::Indirect(list) } else { PageList::Direct(list) }
        };
        let first = chunks[0];
        let good = set.region(count, list(first));
        let l_key = set.register(&good).unwrap().l_key;
        assert_eq!(set.driver.counts().mr_pages, count as usize);
        set.execute(&DeregMr { l_key });

        let least = if indirect { 12 } else { 8 };
        for length in [0, least - 1, first.length - 8, first.length - 1, first.length + 8, u32::MAX] {
            let wrong = list(CtrlBuffInfo { length, ..first });
            let result = set.changed(good, |it| it.set_page_list(wrong));
            assert_eq!(result, MALFORMED, "{count} {indirect} {length}");
        }
        let other_kind = set.changed(good, |it| {
            (it.control.ctrl_data, it.control.ctrl_data_indirect) = (false, !indirect);
        });
        assert_eq!(other_kind, MALFORMED, "{count} {indirect}");
        if let [.., last, _] = chunks[..] {
            let next = last.address + CHUNK_NEXT_OFFSET as u64;
            set.driver.world.store(next, &[0xff; 4]);
            assert_eq!(set.register(&good), MALFORMED);
        }
    }
    assert_eq!(set.driver.errors(), 0);
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
        let list = match indirect {
            true => PageList::Indirect(write_chunks(world, &pages)[0]),
            false => PageList::Direct(page_list(world, &pages)),
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
            let (left, known, pds) = if call < 4 { (2, 0, 1) } else { (0, count, 2) };
            assert_eq!(state.admin.in_flight, left, "after call {call}");
            assert_eq!((state.resources.mr_pages, state.resources.pd), (known, pds));
        }
        let [first, second] = [(); 2].map(|()| driver.completion().unwrap());
        assert_eq!((first.1, second.1, second.0), (0, 0, first.0 + 1));
        assert_eq!(driver.errors(), 0);
    }
}

#[test]
fn a_reset_ends_a_long_registration() {
    let mut set = Set::new(Profile::Efa2);
    let count = 2 * PAGES_PER_CALL as u64;
    let list = page_list(&mut set.driver.world, &page_addresses(count));
    let command = set.region(count, PageList::Direct(list));
    let driver = &mut set.driver;
    driver.submit(&command);
    assert_eq!(driver.device.state().admin.in_flight, 1);
    driver.start_over();
    driver.run(Duration::ZERO);
    assert_eq!(driver.device.state().admin.in_flight, 0);
    assert_eq!(driver.completion(), None);
    assert_eq!(driver.counts(), Default::default());
}

/// Lists that are not mapped, and faults in any part of a long one.
#[test]
fn invalid_lists() {
    let mut set = Set::new(Profile::Efa2);
    let unmapped = 0xdead_0000;
    let (length, address) = (40, unmapped);
    let direct = set.region(5, PageList::Direct(CtrlBuffInfo { length, address }));
    let world = &mut set.driver.world;
    let chunk = write_chunks(world, &page_addresses(1000))[0];
    world.store(chunk.address + 8, &u64::to_le_bytes(unmapped));
    let indirect = set.region(1000, PageList::Indirect(chunk));
    let mut pages = page_addresses(2 * PAGES_PER_CALL as u64);
    let list = page_list(&mut set.driver.world, &pages);
    let long = set.region(pages.len() as u64, PageList::Direct(list));
    let last = list.address + u64::from(list.length) - PAGE;
    set.driver.world.unmap(last);
    for (errors, command) in (1..).zip([direct, indirect, long]) {
        assert_eq!(set.register(&command), Err(Status::UnknownError));
        assert_eq!(set.driver.errors(), errors);
    }
    pages[PAGES_PER_CALL - 1] += 1;
    let list = page_list(&mut set.driver.world, &pages);
    let command = set.region(pages.len() as u64, PageList::Direct(list));
    assert_eq!(set.register(&command), ILLEGAL);
}

/// A chain that refers to itself ends where the region does.
#[test]
fn endless_chain() {
    let mut set = Set::new(Profile::Efa2);
    let world = &mut set.driver.world;
    let chunk = write_chunks(world, &page_addresses(512 * CHUNK_ENTRIES as u64))[0];
    world.store(chunk.address + CHUNK_NEXT_OFFSET as u64, &chunk.encode());
    let command = set.region(1 << 20, PageList::Indirect(chunk));
    // The last chunk would have to be shorter.
    assert_eq!(set.register(&command), MALFORMED);
    set.driver.world.dma_bytes = 0;
    for mr_length in [u64::from(u32::MAX) * PAGE, u64::MAX - IOVA] {
        assert_eq!(set.changed(command, |it| it.mr_length = mr_length), FULL);
    }
    let bytes = set.driver.world.dma_bytes;
    assert!(bytes < 10_000, "the device has read the list");
}

#[test]
fn sizes_of_pages() {
    let mut set = Set::new(Profile::Efa2);
    let good = set.region(1, PageList::Inline([1 << 30, 0, 0, 0]));
    for shift in 0..64 {
        let result = set.changed(good, |it| {
            it.flags.phys_page_size_shift = shift;
            (it.iova, it.mr_length) = (0, 1 << shift);
        });
        assert_eq!(result.is_ok(), (12..=30).contains(&shift), "shift {shift}");
    }
}

/// Lustre's efalnd allocates a region of 1 MiB per message that may be in flight: 512, and 4,096 for each queue pair.
#[test]
fn room_for_the_regions_of_efalnd() {
    let mut set = Set::new(Profile::Efa2);
    for _ in 0..512 + 8 * 4096 {
        set.execute(&AllocMr { pd: set.pd, max_pages: 256 });
    }
}
