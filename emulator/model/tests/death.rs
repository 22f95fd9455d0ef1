// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices that die, their revival, and devices that are hot-unplugged.

use std::{ops::Range, time::Duration};

use efa_hw::{
    admin::{
        Command, eq::CreateEq, event_counter::CreateEventCounter, mr::PageList, pd::AllocPd,
        uar::AllocUar,
    },
    aenq::AenqGroup,
    regs::{Register, ResetReason},
};
use efa_model::{Death, Profile};
use efa_testing::{
    commands::{create_cq, create_eq, reg_mr},
    mock::Driver,
};

const SECOND: Duration = Duration::from_secs(1);

/// Bytes that a dead device writes.
const STRAY: [u8; 8] = [0xef, 0xa0, 0xde, 0xad, 0xef, 0xa0, 0xde, 0xad];

fn die(driver: &mut Driver, json: &str) {
    let death: Death = serde_json::from_str(json).unwrap();
    let Driver {
        device, world, now, ..
    } = driver;
    device.die(world, *now, death);
}

/// Returns a driver that has enabled fatal errors and keep-alives, with one event counter.
fn driver() -> Driver {
    let mut driver = Driver::new(Profile::Efa2);
    let groups = AenqGroup::FatalError.mask() | AenqGroup::KeepAlive.mask();
    driver.enable_events(groups).unwrap();
    driver.world.take_interrupts();
    let overrides = r#"{"event_counters":true,"max_event_counters":1}"#;
    driver.device.set(serde_json::from_str(overrides).unwrap());
    driver
}

/// Resets the device; returns whether the reset begins and ends as it should.
fn reset_works(driver: &mut Driver) -> bool {
    driver.set_response_address();
    driver.start_reset(ResetReason::KeepAliveTimeout);
    driver.set_response_address();
    driver.run(SECOND);
    if !driver.status().reset_in_progress {
        return false;
    }
    driver.write(Register::DevCtl, 0);
    driver.run(SECOND);
    !driver.status().reset_in_progress
}

#[test]
fn reports_a_fatal_error_and_stops() {
    let mut driver = driver();
    driver.device.inject(
        serde_json::from_str(r#"{"when":{"opcode":"ALLOC_UAR"},"then":{"delay_ms":50}}"#).unwrap(),
    );
    driver.submit(&AllocUar {});
    die(&mut driver, "{}");
    assert_eq!(driver.world.take_interrupts(), [0]);
    let event = driver.event().unwrap();
    assert_eq!(event.group, u16::from(AenqGroup::FatalError));
    assert!(driver.status().fatal_error && driver.status().ready);

    // The device completes and executes no commands, and raises no events.
    driver.submit(&AllocPd {});
    assert_eq!(driver.run(10 * SECOND), None);
    assert!(driver.completion().is_none() && driver.event().is_none());
    assert!(driver.world.take_interrupts().is_empty());
    let state = driver.device.state();
    assert!(state.dead && state.fatal_error);
    assert_eq!((state.resources.pd, state.admin.in_flight), (0, 1));

    driver.reset(ResetReason::KeepAliveTimeout);
    let state = driver.device.state();
    assert!(!state.dead && !state.fatal_error);
    assert_eq!(state.resources, Default::default());
    driver.set_up();
    assert!(driver.execute(&AllocPd {}).is_ok());
    // After a reset, the driver has to enable events again.
    assert_eq!(driver.run(10 * SECOND), None);
    driver.enable_keep_alive();
    driver.run(Duration::ZERO);
    driver.run(10 * SECOND);
    assert_eq!(
        driver.event().unwrap().group,
        u16::from(AenqGroup::KeepAlive)
    );
    assert_eq!(driver.device.state().protocol_errors, 0);
}

#[test]
fn may_die_silently() {
    let mut driver = driver();
    die(&mut driver, r#"{"silent":true}"#);
    driver.submit(&AllocPd {});
    assert!(driver.event().is_none() && driver.completion().is_none());
    assert!(driver.world.take_interrupts().is_empty());
    let status = driver.status();
    assert!(status.ready && !status.fatal_error);
    assert!(driver.device.state().dead);
    assert!(reset_works(&mut driver));
    driver.set_up();
    assert!(driver.execute(&AllocPd {}).is_ok());
}

#[test]
fn only_one_of_some_resets_revives_it() {
    for (how, in_progress) in [("never_starts", false), ("never_ends", true)] {
        let mut driver = driver();
        die(&mut driver, &format!(r#"{{"resets":3,"how":"{how}"}}"#));
        for _ in 0..2 {
            assert!(!reset_works(&mut driver), "{how}");
            assert_eq!(driver.status().reset_in_progress, in_progress);
            assert!(driver.status().fatal_error && driver.device.state().dead);
        }
        assert!(reset_works(&mut driver), "{how}");
        assert!(!driver.status().fatal_error && !driver.device.state().dead);
        driver.set_up();
        assert!(driver.execute(&AllocPd {}).is_ok());
        assert_eq!(driver.device.state().resets.len(), 4);
        assert_eq!(driver.device.state().protocol_errors, 0);
    }
}

#[test]
fn a_function_reset_is_a_reset_and_power_revives() {
    let mut driver = driver();
    die(&mut driver, r#"{"resets":2}"#);
    driver.device.reset(&mut driver.world);
    assert!(driver.device.state().dead);
    driver.device.reset(&mut driver.world);
    assert!(!driver.device.state().dead);
    die(&mut driver, r#"{"resets":1000000}"#);
    driver.device.power_on(&mut driver.world);
    assert!(!driver.device.state().dead);
    driver.reset(ResetReason::Normal);
}

#[test]
fn clearing_lets_the_next_reset_revive_it() {
    let mut driver = driver();
    die(&mut driver, r#"{"resets":1000000}"#);
    assert!(!reset_works(&mut driver));
    driver.device.clear();
    assert!(driver.device.state().dead);
    assert!(reset_works(&mut driver));
    assert!(!driver.device.state().dead);
}

/// Creates objects to whose memory the device writes; returns their addresses.
fn objects(driver: &mut Driver) -> [u64; 5] {
    let [eq, cq, writable, read_only, counter] = [(); 5].map(|()| driver.world.map(1));
    let create = CreateEq {
        depth: 256,
        ..create_eq(eq)
    };
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
    let paddr = counter + 24;
    driver.execute(&CreateEventCounter { uar, paddr }).unwrap();
    [eq, cq, writable, read_only, counter]
}

/// Returns how many lines of a page have been overwritten.
fn strays(driver: &mut Driver, page: u64) -> usize {
    strays_in(driver, page, 0..4096 / 64)
}

/// Returns how many of these lines of a page have been overwritten.
fn strays_in(driver: &mut Driver, page: u64, lines: Range<u64>) -> usize {
    let mut end = |line: u64| driver.world.read(page + line * 64 + 56) == STRAY;
    lines.filter(|line| end(*line)).count()
}

#[test]
fn may_continue_to_write_to_memory() {
    let mut driver = driver();
    let [eq, cq, writable, read_only, counter] = objects(&mut driver);
    let (acq, aenq) = (driver.acq.base, driver.aenq.base);
    die(&mut driver, r#"{"silent":true,"resets":2,"dma":true}"#);
    let run = |driver: &mut Driver, times: u32| {
        for _ in 0..times {
            let next = driver.run(Duration::from_millis(1));
            assert!(next.is_some_and(|next| next > driver.now));
        }
    };
    run(&mut driver, 10);
    for (page, lines) in [
        (eq, 64),
        (cq, 32),
        (writable, 32),
        (read_only, 0),
        (acq, 32),
        (aenq, 16),
    ] {
        assert_eq!(strays(&mut driver, page), lines);
    }
    assert_eq!(strays_in(&mut driver, writable, 16..48), 32);
    let mut expected = [0; 64];
    expected[24..32].copy_from_slice(&STRAY);
    assert_eq!(driver.world.read(counter), expected);
    assert_eq!(strays(&mut driver, counter), 0);
    // No entry of a queue looks new.
    assert!(driver.completion().is_none() && driver.event().is_none());
    let state = driver.device.state();
    assert!(state.stray_writes > 0);
    assert_eq!((state.stray_writes_refused, state.dma_after_reset), (0, 0));

    // Neither a failed reset nor unmapped memory ends the writes.
    assert!(!reset_works(&mut driver));
    driver.world.write(cq, &[0; 4096]);
    driver.world.unmap(writable);
    run(&mut driver, 10);
    assert_eq!(strays(&mut driver, cq), 32);
    let state = driver.device.state();
    assert!(state.dma_after_reset > 0 && state.stray_writes_refused > 0);
    assert_eq!(state.protocol_errors, 0);

    // A reset that revives the device does.
    assert!(reset_works(&mut driver));
    driver.world.write(cq, &[0; 4096]);
    assert_eq!(driver.run(SECOND), None);
    assert_eq!(strays(&mut driver, cq), 0);
    let before = driver.device.state().stray_writes;
    driver.run(SECOND);
    assert_eq!(driver.device.state().stray_writes, before);
}

#[test]
fn a_reset_of_its_function_ends_its_writes() {
    let mut driver = driver();
    objects(&mut driver);
    die(&mut driver, r#"{"resets":3,"dma":true}"#);
    driver.device.reset(&mut driver.world);
    assert_eq!(driver.run(SECOND), None);
    assert_eq!(driver.device.state().stray_writes, 0);
    assert!(!reset_works(&mut driver));
}

#[test]
fn writes_of_a_call_are_bounded() {
    let mut driver = driver();
    objects(&mut driver);
    die(&mut driver, r#"{"dma":true}"#);
    driver.world.dma_bytes = 0;
    driver.run(SECOND);
    assert!((1..=512 * 8).contains(&driver.world.dma_bytes));
    // Nothing is written before the next write is due.
    driver.world.dma_bytes = 0;
    driver.run(Duration::ZERO);
    assert_eq!(driver.world.dma_bytes, 0);
}

#[test]
fn may_die_at_any_event() {
    let mut driver = driver();
    let inject = |driver: &mut Driver, when: &str, skip: u32| {
        let rule =
            format!(r#"{{"when":{when},"then":{{"die":{{"resets":2}}}},"skip":{skip},"times":1}}"#);
        driver.device.inject(serde_json::from_str(&rule).unwrap());
    };
    // Death by a command: the device executes neither it nor later commands of the same doorbell.
    inject(&mut driver, r#"{"opcode":"ANY"}"#, 1);
    for _ in 0..3 {
        let entry = driver.entry(&AllocPd {}.to_request());
        driver.put(&entry);
    }
    driver.ring();
    assert!(driver.completion().is_some() && driver.completion().is_none());
    assert_eq!(driver.device.state().resources.pd, 1);
    assert!(driver.event().is_some() && driver.device.state().dead);

    // Death by a reset, which is the first of those that it takes.
    driver.device.clear();
    assert!(reset_works(&mut driver));
    inject(&mut driver, r#"{"reset":true}"#, 0);
    assert!(!reset_works(&mut driver));
    assert!(reset_works(&mut driver));

    // Death by a register read, whose response has the fatal error already.
    driver.device.clear();
    inject(&mut driver, r#"{"register":"DEV_STS"}"#, 1);
    assert!(!driver.status().fatal_error);
    assert!(driver.status().fatal_error);
    assert_eq!(driver.device.state().protocol_errors, 0);
}

#[test]
fn may_be_unplugged_at_any_step() {
    for (when, works) in [
        (r#"{"opcode":"ALLOC_PD"}"#, true),
        (r#"{"register":"VERSION"}"#, true),
        (r#"{"reset":true}"#, false),
    ] {
        let mut driver = driver();
        let rule = format!(r#"{{"when":{when},"then":{{"unplug":true}},"times":1}}"#);
        driver.device.inject(serde_json::from_str(&rule).unwrap());
        assert!(driver.read_raw(Register::DevSts.into()).is_some());
        driver.submit(&AllocUar {});
        if works {
            driver.submit(&AllocPd {});
            driver.read_raw(Register::Version.into());
        } else {
            driver.start_reset(ResetReason::Normal);
            driver.set_response_address();
        }
        let state = driver.device.state();
        assert!(!state.plugged && !state.dead, "{when}");
        assert_eq!(state.resources, Default::default());
        assert!(driver.read_raw(Register::DevSts.into()).is_none());
        // An unplugged device ignores this.
        die(&mut driver, "{}");
        driver.world.dma_bytes = 0;
        driver.world.take_interrupts();
        driver.submit(&AllocUar {});
        driver.start_reset(ResetReason::Normal);
        let now = driver.now;
        driver
            .device
            .post_event(&mut driver.world, now, AenqGroup::Warning.into(), 0);
        assert_eq!(driver.run(SECOND), None);
        assert_eq!(driver.world.dma_bytes, 0);
        assert!(driver.world.take_interrupts().is_empty());
        assert_eq!(driver.device.state().protocol_errors, 0);

        driver.device.plug(&mut driver.world);
        driver.reset(ResetReason::Normal);
        driver.set_up();
        assert!(driver.execute(&AllocPd {}).is_ok());
    }
}

#[test]
fn invalid_deaths() {
    for (json, part) in [
        (r#"{"resets":0}"#, "nonzero"),
        (r#"{"how":"slowly"}"#, "never_starts"),
        (r#"{"loud":true}"#, "unknown field"),
    ] {
        let error = serde_json::from_str::<Death>(json).expect_err(json);
        assert!(error.to_string().contains(part), "{json}: {error}");
    }
}
