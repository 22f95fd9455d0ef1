// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The trace, with one line for each operation and event. All lines are in `trace.txt`.

use super::*;

/// The lines of each test, after its name.
const LINES: &str = include_str!("trace.txt");

/// Asserts that the trace of a device is the one that the file has.
#[track_caller]
fn check(driver: &Driver, name: &str) {
    let all = LINES
        .split("\n\n")
        .map(|part| part.split_once('\n').unwrap());
    let (_, expected) = all.into_iter().find(|part| part.0 == name).unwrap();
    let expected: Vec<_> = expected.lines().collect();
    for (line, expected) in driver.world.trace.iter().zip(&expected) {
        assert_eq!(line, expected, "{name}");
    }
    assert_eq!(driver.world.trace.len(), expected.len(), "{name}");
}

/// Executes a command.
fn execute(driver: &mut Driver, command: &impl Command) {
    driver.submit(command);
    driver.completion();
}

/// Returns a device with these attributes and an empty trace.
fn device(overrides: &str) -> Driver {
    let mut driver = Driver::new(Profile::Efa3);
    driver.set(overrides);
    driver.world.trace.clear();
    driver
}

#[test]
fn commands() {
    let mut driver = device(r#"{"relaxed_ordering":true}"#);
    execute(&mut driver, &AllocPd {});
    execute(&mut driver, &AllocUar {});
    execute(&mut driver, &create_eq(0x1000));
    let mut command = create_cq(1, 0x2000);
    (command.caps_1.interrupt_mode_enabled, command.eqn) = (true, 1);
    execute(&mut driver, &command);
    let mut command = create_qp(1, 1, 1, 0x3000);
    command.flags.unsolicited_write_recv = true;
    (command.sl, command.recv_queue_depth) = (8, 32);
    execute(&mut driver, &command);
    let mut command = to_state(1, QpState::Init);
    (command.modify_mask, command.qkey) = (ModifyQpMask::from_raw(0b111), 0x1234);
    execute(&mut driver, &command);
    command.modify_mask = ModifyQpMask::from_raw(0b11_1001);
    (command.qp_state, command.sq_psn, command.rnr_retry) = (77, 0xab, 7);
    command.sq_drained_async_notify = true;
    execute(&mut driver, &command);
    execute(&mut driver, &QueryQp { qp_handle: 1 });
    let dest_addr = driver.device.address();
    execute(&mut driver, &CreateAh { dest_addr, pd: 1 });
    let (length, address) = (20, 0x5000);
    let buffer = CtrlBuffInfo { length, address };
    for (list, is_physical) in [
        (PageList::Inline([0x4000, 0, 0, 0]), false),
        (PageList::Direct(buffer), false),
        (PageList::Indirect(buffer), true),
    ] {
        let mut command = reg_mr(1, 0x7000, 0x1000);
        command.permissions = RegMrPermissions::from_raw(0b1111);
        command.flags.mem_addr_phy_mode_en = is_physical;
        command.set_page_list(list);
        execute(&mut driver, &command);
    }
    execute(&mut driver, &alloc_mr(1, 9));
    let mut command = GetStats::default();
    for (stats_type, scope, scope_modifier) in [(4, 0, 0), (9, 1, 3)] {
        (command.stats_type, command.scope) = (stats_type, scope);
        command.scope_modifier = scope_modifier;
        execute(&mut driver, &command);
    }
    let mut command = SetFeature::default();
    (command.feature_id, command.data[4]) = (FeatureId::AenqConfig.into(), 0x1e);
    execute(&mut driver, &command);
    execute(&mut driver, &DestroyQp { qp_handle: 1 });
    execute(&mut driver, &DestroyCq { cq_idx: 1 });
    execute(&mut driver, &DestroyEq { eqn: 1 });
    execute(&mut driver, &DestroyAh { ah: 1, pd: 1 });
    execute(&mut driver, &DeregMr { l_key: 1 });
    execute(&mut driver, &DeallocPd { pd: 1 });
    execute(&mut driver, &DeallocUar { uar: 1 });
    check(&driver, "commands");
}

#[test]
fn event_counters() {
    let mut driver = device(
        r#"{"event_counters":true,"max_event_counters":2,"event_counter_max_val":255,"event_counter_events":1023}"#,
    );
    execute(&mut driver, &AllocUar {});
    let page = driver.world.map(1);
    execute(&mut driver, &create_counter(1, page));
    for operation in [0, 1, 9] {
        execute(&mut driver, &modify_counter(1, operation, 5));
    }
    execute(&mut driver, &attachment(1, 7, 0x203));
    let mut command = detachment(1, 7, 0);
    command.attach_type = 3;
    execute(&mut driver, &command);
    execute(&mut driver, &DestroyEventCounter { cntr_handle: 1 });
    driver.feature::<QueueAttr2>().unwrap();
    driver.world.trace.retain(|line| line.starts_with("aq "));
    check(&driver, "event counters");
}

#[test]
fn features() {
    let mut driver = device("{}");
    for feature in FeatureId::ALL {
        let command = GetFeature {
            feature_id: (*feature).into(),
            ..GetFeature::default()
        };
        execute(&mut driver, &command);
    }
    check(&driver, "features");
}

#[test]
fn other_events() {
    let mut driver = Driver::new(Profile::Efa2);
    check(&driver, "the start of a driver");
    driver.world.trace.clear();
    driver.post_event(AenqGroup::Warning.into(), 3);
    driver.read_raw(0x0c);
    driver.write(Register::Caps, 1);
    driver.inject(r#"{"when":{"register":"VERSION"},"then":{"silence":true}}"#);
    driver.read_raw(0);
    let mut request = AllocPd {}.to_request();
    request.opcode = 99;
    driver.submit_request(&request);
    driver.die("{}");
    driver.die(r#"{"silent":true}"#);
    driver.device.clear();
    driver.reset(ResetReason::Generic);
    driver.set_up();
    driver.device.storm(9, 3, 100).unwrap();
    driver.run(Duration::ZERO);
    driver.device.unplug(&mut driver.world);
    driver.device.plug(&mut driver.world);
    driver.start_reset(ResetReason::AdminTimeout);
    let is_other = |line: &String| !line.contains("DEV_STS") && !line.starts_with("write ");
    driver.world.trace.retain(is_other);
    check(&driver, "other events");
}

/// The number of commands in flight includes the command that completes.
#[test]
fn commands_in_flight() {
    let mut driver = device("{}");
    driver.inject(SLOW);
    [(); 3].map(|()| driver.submit(&AllocPd {}));
    driver.run(50 * MS);
    check(&driver, "commands in flight");
}
