// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices that die, their revival, and devices that are hot-unplugged.

use super::*;

/// Bytes that a dead device writes.
const STRAY: [u8; 8] = [0xef, 0xa0, 0xde, 0xad, 0xef, 0xa0, 0xde, 0xad];

/// Returns a driver that has enabled fatal errors and keep-alives.
fn driver() -> Driver {
    let mut driver = Driver::new(Profile::Efa2);
    let groups = AenqGroup::FatalError.mask() | AenqGroup::KeepAlive.mask();
    driver.enable_events(groups);
    driver.world.take_interrupts();
    driver
}

/// Creates objects to whose memory the device writes; returns their addresses.
fn objects(driver: &mut Driver) -> [u64; 5] {
    driver.set(r#"{"event_counters":true,"max_event_counters":1}"#);
    let [eq, cq, writable, read_only, counter] = [(); 5].map(|()| driver.world.map(1));
    let mut create = create_eq(eq);
    create.depth = 256;
    driver.execute(&create).unwrap();
    let uar = driver.execute(&AllocUar {}).unwrap().uar;
    driver.execute(&create_cq(uar, cq)).unwrap();
    let pd = driver.execute(&AllocPd {}).unwrap().pd;
    for (page, local_write_enable) in [(writable, true), (read_only, false)] {
        // The region is in the middle of its page.
        let mut command = reg_mr(pd, 0x7f00_0000_0400, 2048);
        command.permissions.local_write_enable = local_write_enable;
        command.set_page_list(PageList::Inline([page, 0, 0, 0]));
        driver.execute(&command).unwrap();
    }
    // The value may be anywhere in the page.
    driver.execute(&CreateEventCounter { uar, paddr: counter + 24 }).unwrap();
    [eq, cq, writable, read_only, counter]
}

/// Returns which lines of a page have been overwritten.
fn strays(driver: &mut Driver, page: u64) -> Vec<u64> {
    let end = |line: &u64| driver.world.entry(page + line * 64 + 56) == STRAY;
    (0..64).filter(end).collect()
}

#[test]
fn may_continue_to_write_to_memory() {
    let mut driver = driver();
    let [eq, cq, writable, read_only, counter] = objects(&mut driver);
    let (acq, aenq) = (driver.acq.base, driver.aenq.base);
    driver.die(r#"{"silent":true,"resets":2,"dma":true}"#);
    let run = |driver: &mut Driver| {
        for _ in 0..10 {
            let next = driver.run(Duration::from_millis(1));
            assert!(next.is_some_and(|next| next > driver.now));
        }
    };
    run(&mut driver);
    for (page, lines) in
        [(eq, 0..64), (cq, 0..32), (writable, 16..48), (read_only, 0..0), (acq, 0..32), (aenq, 0..16), (counter, 0..0)]
    {
        assert_eq!(strays(&mut driver, page), lines.collect::<Vec<_>>());
    }
    let mut expected = [0; 64];
    expected[24..32].copy_from_slice(&STRAY);
    assert_eq!(driver.world.entry(counter), expected);
    // No entry of a queue looks new.
    assert!(driver.completion().is_none() && driver.event().is_none());
    let state = driver.device.state();
    assert!(state.stray_writes > 0);
    assert_eq!((state.stray_writes_refused, state.dma_after_reset), (0, 0));

    // Neither a failed reset nor unmapped memory ends the writes.
    assert!(!reset_works(&mut driver));
    driver.world.store(cq, &[0; 4096]);
    driver.world.unmap(writable);
    run(&mut driver);
    assert_eq!(strays(&mut driver, cq).len(), 32);
    let state = driver.device.state();
    assert!(state.dma_after_reset > 0 && state.stray_writes_refused > 0);
    assert_eq!(state.protocol_errors, 0);

    // A reset that revives the device does.
    assert!(reset_works(&mut driver));
    driver.world.store(cq, &[0; 4096]);
    let before = driver.device.state().stray_writes;
    assert_eq!(driver.run(SECOND), None);
    assert_eq!(strays(&mut driver, cq), [0; 0]);
    assert_eq!(driver.device.state().stray_writes, before);
}

#[test]
fn its_writes_are_bounded_and_end_with_its_function() {
    let mut driver = driver();
    objects(&mut driver);
    driver.die(r#"{"resets":3,"dma":true}"#);
    driver.world.dma_bytes = 0;
    driver.run(SECOND);
    assert!((1..=512 * 8).contains(&driver.world.dma_bytes));
    // Nothing is written before the next write is due.
    driver.world.dma_bytes = 0;
    driver.run(Duration::ZERO);
    assert_eq!(driver.world.dma_bytes, 0);
    driver.device.reset(&mut driver.world);
    assert_eq!(driver.run(SECOND), None);
    assert_eq!(driver.world.dma_bytes, 0);
    assert!(!reset_works(&mut driver));
}

/// A peer of a device that dies, or the device, has a transfer in flight: no byte moves any more that was not sent before.
#[test]
fn dead_peers() {
    const LARGE: u32 = 600 * PAGE as u32;
    let unreachable = Some(CompStatus::LocalUnreachRemote);
    let silent = Some(CompStatus::LocalUnrespRemote);
    for (who, dies, reads, length, after_us, ends) in [
        ("a sender", 0, false, 60_000, 0, None),
        ("a receiver", 1, false, 60_000, 0, unreachable),
        ("a reader", 0, true, 60_000, 150, None),
        ("a responder", 1, true, LARGE, 250, silent),
    ] {
        let mut peers = Peers::of(delay(100.0), QpType::Srd, 600);
        let send = if reads { peers.read(length) } else { peers.write(length) };
        let count = if reads { 1 } else { 4 };
        for _ in 0..count {
            peers.post(&send);
        }
        peers.run_for(Duration::from_micros(after_us));
        peers.driver(PortId(dies), |driver| driver.die(r#"{"silent":true}"#));
        // Only packets that were sent before the death arrive.
        let target = usize::from(!reads);
        peers.run_for(SECOND);
        let before = peers.content(target, 0, length as usize);
        let ended = peers.all(0);
        let ids = 0..if ends.is_some() { count } else { 0 };
        let expected = ids.map(|id| (id, ends.unwrap()));
        assert!(ended.iter().copied().eq(expected), "{who}: {ended:?}");
        assert_eq!(peers.content(target, 0, length as usize), before, "{who}");
        // A receiver and a reader that die get nothing.
        let gets_none = target == dies;
        assert!(!gets_none || peers.are_untouched(), "{who}");
        assert_eq!(peers.poll(1), None, "{who}");
        let idle = peers.run();
        assert!(who != "a sender" || idle.is_none(), "{idle:?}");
    }
}
