// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rules for commands, registers and resets.

use super::*;

/// Returns a device with a rule for ALLOC_PD.
fn with(then: &str) -> Driver {
    let mut driver = Driver::new(Profile::Efa2);
    driver.inject(&alloc_pd(then));
    driver
}

/// Returns a rule for ALLOC_PD. `then` may end with more than the effect.
fn alloc_pd(then: &str) -> String {
    format!(r#"{{"when":{{"opcode":"ALLOC_PD"}},"then":{then}}}"#)
}

#[test]
fn statuses() {
    let mut driver = with(r#"{"status":"RESOURCE_BUSY"}"#);
    // A failed command has no effect.
    driver.fails(&AllocPd {}, Status::ResourceBusy);
    assert!(driver.execute(&AllocUar {}).is_ok());
    // Statuses that are not defined are possible, too.
    driver.device.clear();
    driver.inject(&alloc_pd(r#"{"status":200}"#));
    assert_eq!(driver.execute_request(&AllocPd {}.to_request()).0, 200);
    assert!(driver.world.traced(&["ALLOC_PD() = status 200 (injected)"]));
}

#[test]
fn skip_and_times() {
    let mut driver = with(r#"{"status":"UNKNOWN_ERROR"},"skip":2,"times":3"#);
    let results = [(); 8].map(|()| driver.execute(&AllocPd {}).is_ok());
    assert_eq!(results, [true, true, false, false, false, true, true, true]);
    let state = driver.device.state();
    assert_eq!((state.faults, state.faults_hit), (1, 3));
    driver.device.clear();
    let state = driver.device.state();
    assert_eq!((state.faults, state.faults_hit), (0, 3));
}

#[test]
fn selected_features_and_statistics() {
    let mut driver = Driver::new(Profile::Efa2);
    for when in [
        r#""opcode":"GET_FEATURE","feature":"HW_HINTS""#,
        r#""opcode":"GET_STATS","stats":"NETWORK""#,
    ] {
        let then = r#"{"status":"BAD_OPCODE"}"#;
        driver.inject(&format!(r#"{{"when":{{{when}}},"then":{then}}}"#));
    }
    assert!(driver.feature::<DeviceAttr>().is_ok());
    assert_eq!(driver.feature::<HwHints>().err(), Some(Status::BadOpcode));
    assert!(driver.statistics::<BasicStats>().is_ok());
    let network = driver.statistics::<NetworkStats>();
    assert_eq!(network.err(), Some(Status::BadOpcode));
}

/// A completion: whether its id and its checksum are right, and its bytes 8 and 63.
type Seen = (bool, bool, [u8; 2]);

/// Takes all completions.
fn seen(driver: &mut Driver, id: u16) -> Vec<Seen> {
    let seen = |(its, _, entry): (u16, u8, AcqEntry)| {
        let checksum = AcqHeader::of(&entry).checksum == checksum::of_entry(&entry);
        (its == id, checksum, [entry[8], entry[63]])
    };
    from_fn(|| driver.completion()).map(seen).collect()
}

/// Each command is executed. It has these completions, at once and after 50 ms, and this many interrupts.
#[test]
fn completions() {
    // The number of the protection domain is in byte 8.
    let (good, bad_checksum) = ((true, true, [1, 0]), (true, false, [1, 0]));
    let corrupt = r#"{"corrupt":[{"offset":8,"value":255},{"offset":63,"value":1}]}"#;
    let rows: [(&str, &[Seen], &[Seen], usize); 8] = [
        (r#"{"silence":true}"#, &[], &[], 0),
        (r#"{"delay_ms":50}"#, &[], &[good], 1),
        (r#"{"duplicate":true}"#, &[good, good], &[], 1),
        (r#"{"wrong_id":true}"#, &[(false, true, [1, 0])], &[], 1),
        (r#"{"wrong_checksum":true}"#, &[bad_checksum], &[], 1),
        (r#"{"wrong_phase":true}"#, &[], &[], 1),
        (r#"{"no_interrupt":true}"#, &[good], &[], 0),
        (corrupt, &[(true, true, [255, 1])], &[], 1),
    ];
    for (then, at_once, later, interrupts) in rows {
        let mut driver = with(then);
        let id = driver.submit(&AllocPd {});
        assert_eq!(seen(&mut driver, id), at_once, "{then}");
        driver.run(Duration::from_millis(50));
        assert_eq!(seen(&mut driver, id), later, "{then}");
        let raised = driver.world.take_interrupts();
        assert_eq!(raised, vec![0; interrupts], "{then}");
        // The command is not in flight any more.
        let state = driver.device.state();
        assert_eq!(state.resources.pd, 1, "{then}");
        assert_eq!(state.admin.in_flight, 0, "{then}");
        let completed = u64::from(!then.contains("silence"));
        assert_eq!(state.admin.submitted, 1, "{then}");
        assert_eq!(state.admin.completed, completed, "{then}");
        let line = "ALLOC_PD() = no completion (injected)";
        assert_eq!(driver.world.traced(&[line]), completed == 0, "{then}");
        driver.submit(&AllocUar {});
        assert_eq!(driver.world.take_interrupts(), [0], "{then}");
    }
}

#[test]
fn rules_add_up() {
    let mut driver = with(r#"{"corrupt":[{"offset":8,"value":255},{"offset":63,"value":1}]}"#);
    // Of two rules with the same byte, the later counts.
    for then in [
        r#"{"corrupt":[{"offset":8,"value":7}]}"#,
        r#"{"delay_ms":10}"#,
        r#"{"status":"BAD_OPCODE"}"#,
    ] {
        driver.inject(&alloc_pd(then));
    }
    driver.submit(&AllocPd {});
    assert!(driver.completion().is_none());
    driver.run(Duration::from_millis(10));
    let (_, status, entry) = driver.completion().unwrap();
    assert_eq!(status, u8::from(Status::BadOpcode));
    assert_eq!((entry[8], entry[63]), (7, 1));
    assert_eq!(driver.device.state().faults_hit, 4);
    // A rule that holds takes precedence, before or after.
    for rules in [
        [r#"{"delay_ms":5}"#, r#"{"hold":"x"}"#],
        [r#"{"hold":"x"}"#, r#"{"delay_ms":5}"#],
    ] {
        let mut driver = Driver::new(Profile::Efa2);
        rules.map(|then| driver.inject(&alloc_pd(then)));
        let id = driver.submit(&AllocPd {});
        driver.run(Duration::from_millis(10));
        assert!(driver.completion().is_none());
        assert_eq!(driver.device.release("x", None), 1);
        driver.run(Duration::ZERO);
        assert_eq!(driver.completed(), [id]);
    }
}

#[test]
fn no_more_commands_are_held_than_the_queue_has_entries() {
    let mut driver = with(r#"{"hold":"pd"}"#);
    let depth = usize::from(AQ_DEPTH);
    // One more command does not fit.
    for submitted in 1..=depth + 1 {
        driver.submit(&AllocPd {});
        assert_eq!(driver.device.state().held["pd"], submitted.min(depth));
    }
    assert_eq!(driver.errors(), 1);
    assert_eq!(driver.device.release("pd", None), depth as u64);
    driver.run(Duration::ZERO);
    assert_eq!(driver.completed().len(), depth);
}

#[test]
fn registers() {
    let mut driver = Driver::new(Profile::Efa2);
    let status = driver.read(Register::DevSts);
    for (then, expected) in [
        (r#"{"silence":true}"#, None),
        (r#"{"wrong_req_id":true}"#, None),
        (r#"{"value":4294967295}"#, Some((0x58, u32::MAX))),
        (r#"{"wrong_offset":true}"#, Some((0x5c, status))),
    ] {
        driver.device.clear();
        driver.inject(&format!(
            r#"{{"when":{{"register":"DEV_STS"}},"then":{then}}}"#
        ));
        let response = driver.read_raw(0x58);
        let response = response.map(|response| (response.reg_off, response.reg_val));
        assert_eq!(response, expected, "{then}");
        assert!(driver.read_raw(0).is_some());
    }
    assert_eq!(driver.errors(), 0);
    // From the fourth read on all ones, from any register, and from the sixth on no response.
    driver.device.clear();
    for rule in [
        r#"{"when":{"register":"ANY"},"then":{"value":4294967295},"skip":3}"#,
        r#"{"when":{"register":"ANY"},"then":{"silence":true},"skip":5}"#,
        r#"{"when":{"register":"VERSION"},"then":{"value":7},"times":1}"#,
    ] {
        driver.inject(rule);
    }
    let values = [0, 0x58, 0, 8, 0x1000, 0x58, 0]
        .map(|offset| driver.read_raw(offset).map(|response| response.reg_val));
    let (ones, version) = (Some(u32::MAX), Some(2));
    let later = [ones, ones, None, None];
    assert_eq!(values[..3], [Some(7), Some(status), version]);
    assert_eq!(values[3..], later);
}

#[test]
fn resets_that_never_start_or_end() {
    for (then, in_progress, clears) in [
        ("never_starts", false, false),
        ("never_ends", true, false),
        ("never_ends", true, true),
    ] {
        let mut driver = Driver::new(Profile::Efa2);
        driver.inject(&format!(
            r#"{{"when":{{"reset":true}},"then":{{"{then}":true}},"times":1}}"#
        ));
        driver.start_reset(ResetReason::Normal);
        driver.set_response_address();
        if in_progress {
            driver.write(Register::DevCtl, 0);
        }
        driver.run(Duration::from_secs(100));
        let status = driver.status();
        let expected = (in_progress, true);
        assert_eq!((status.reset_in_progress, status.ready), expected);
        if clears {
            driver.device.clear();
            assert!(!driver.status().reset_in_progress);
        }
        // The driver may try again.
        driver.start_over();
        assert!(driver.execute(&AllocPd {}).is_ok());
        assert_eq!(driver.errors(), 0);
    }
}

#[test]
fn event_at_the_start_of_a_reset() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.inject(r#"{"when":{"reset":true},"then":{"with_event":true},"times":1}"#);
    driver.enable_keep_alive();
    driver.world.take_interrupts();
    driver.start_reset(ResetReason::Normal);
    assert_eq!(driver.world.take_interrupts(), [0]);
    let group = driver.event().map(|event| event.group);
    assert_eq!(group, Some(AenqGroup::KeepAlive.into()));
    // The driver must not acknowledge the event, as the device is in its reset.
    driver.acknowledge_events();
    assert_eq!(driver.errors(), 1);
}

/// Each line of the file has a rule, and a part of its error.
#[test]
fn invalid_rules() {
    for case in include_str!("invalid_rules.txt").lines() {
        let (json, part) = case.split_once(" | ").expect(case);
        let error = serde_json::from_str::<Rule>(json).expect_err(json);
        assert!(error.to_string().contains(part), "{json}: {error}");
    }
}

#[test]
fn the_oldest_of_very_many_rules_is_lost() {
    let mut driver = with(r#"{"status":"RESOURCE_BUSY"}"#);
    let reset = r#"{"when":{"reset":true},"then":{"never_ends":true}}"#;
    (0..1023).for_each(|_| driver.inject(reset));
    assert_eq!(driver.execute(&AllocPd {}), Err(Status::ResourceBusy));
    driver.inject(reset);
    assert!(driver.execute(&AllocPd {}).is_ok());
    assert_eq!(driver.device.state().faults, 1024);
}
