// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rules that make a device misbehave.

use std::{iter, time::Duration};

use efa_hw::{
    admin::{AcqHeader, Command, Status, pd::AllocPd, uar::AllocUar},
    aenq::AenqGroup,
    checksum,
    features::{DeviceAttr, HwHints},
    regs::{Register, ResetReason},
    stats::{BasicStats, NetworkStats},
};
use efa_model::{Death, Profile, Rule};
use efa_testing::mock::Driver;

fn rule(json: &str) -> Rule {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
}

fn with(json: &str) -> Driver {
    let mut driver = Driver::new(Profile::Efa2);
    driver.device.inject(rule(json));
    driver
}

#[test]
fn status() {
    let mut driver = with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"status":"RESOURCE_BUSY"}}"#);
    assert_eq!(driver.execute(&AllocPd {}), Err(Status::ResourceBusy));
    // A failed command has no effect.
    assert_eq!(driver.device.state().resources.pd, 0);
    assert!(driver.execute(&AllocUar {}).is_ok());

    // Statuses that are not defined are possible, too.
    driver.device.clear();
    driver.device.inject(rule(
        r#"{"when":{"opcode":"ALLOC_PD"},"then":{"status":200}}"#,
    ));
    assert_eq!(driver.execute_request(&AllocPd {}.to_request()).0, 200);
    assert!(driver.world.traced(&["ALLOC_PD() = status 200 (injected)"]));
}

#[test]
fn skip_and_times() {
    let mut driver =
        with(r#"{"when":{"opcode":"ANY"},"then":{"status":"UNKNOWN_ERROR"},"skip":2,"times":3}"#);
    let results: Vec<bool> = (0..8)
        .map(|_| driver.execute(&AllocPd {}).is_ok())
        .collect();
    assert_eq!(results, [true, true, false, false, false, true, true, true]);
    let state = driver.device.state();
    assert_eq!((state.faults, state.faults_hit), (1, 3));
    driver.device.clear();
    let state = driver.device.state();
    assert_eq!((state.faults, state.faults_hit), (0, 3));
}

#[test]
fn selected_features_and_statistics() {
    let mut driver = with(
        r#"{"when":{"opcode":"GET_FEATURE","feature":"HW_HINTS"},"then":{"status":"BAD_OPCODE"}}"#,
    );
    driver.device.inject(rule(
        r#"{"when":{"opcode":"GET_STATS","stats":"NETWORK"},"then":{"status":"BAD_OPCODE"}}"#,
    ));
    assert!(driver.feature::<DeviceAttr>().is_ok());
    assert_eq!(driver.feature::<HwHints>().err(), Some(Status::BadOpcode));
    assert!(driver.statistics::<BasicStats>().is_ok());
    let network = driver.statistics::<NetworkStats>();
    assert_eq!(network.err(), Some(Status::BadOpcode));
}

#[test]
fn silence() {
    let mut driver = with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"silence":true},"times":1}"#);
    driver.submit(&AllocPd {});
    assert!(driver.completion().is_none() && driver.world.take_interrupts().is_empty());
    assert!(
        driver
            .world
            .traced(&["ALLOC_PD() = no completion (injected)"])
    );
    // The command was executed, and is not in flight any more.
    let state = driver.device.state();
    assert_eq!((state.resources.pd, state.admin.in_flight), (1, 0));
    assert_eq!((state.admin.submitted, state.admin.completed), (1, 0));
    assert!(driver.execute(&AllocPd {}).is_ok());
}

#[test]
fn delay() {
    let mut driver = with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"delay_ms":50}}"#);
    driver.submit(&AllocPd {});
    assert!(driver.completion().is_none());
    driver.run(Duration::from_millis(50));
    assert!(driver.completion().is_some());
    assert_eq!(driver.world.take_interrupts(), [0]);
}

/// Returns the number of held completions by name.
fn held(driver: &Driver) -> Vec<(String, usize)> {
    driver.device.state().held.into_iter().collect()
}

/// Releases held completions; returns their number, and the ids of the commands that have completed since.
fn release(driver: &mut Driver, name: &str, count: Option<u64>) -> (u64, Vec<u16>) {
    let released = driver.device.release(name, count);
    driver.run(Duration::ZERO);
    let completed = iter::from_fn(|| driver.completion().map(|(id, ..)| id));
    (released, completed.collect())
}

#[test]
fn held_commands_are_executed_and_complete_when_they_are_released() {
    let mut driver = with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"hold":"pd"},"times":3}"#);
    driver.device.inject(rule(
        r#"{"when":{"opcode":"ALLOC_UAR"},"then":{"hold":"uar"},"times":1}"#,
    ));
    assert_eq!(held(&driver), []);
    let before = driver.device.state().admin.completed;
    let pds = [0; 2].map(|_| driver.submit(&AllocPd {}));
    let uar = driver.submit(&AllocUar {});
    let last = driver.submit(&AllocPd {});
    driver.run(Duration::from_secs(1000));
    assert!(driver.completion().is_none() && driver.world.take_interrupts().is_empty());
    assert_eq!(held(&driver), [("pd".into(), 3), ("uar".into(), 1)]);
    let state = driver.device.state();
    assert_eq!((state.resources.pd, state.resources.uar), (3, 1));
    assert_eq!((state.admin.in_flight, state.admin.completed), (4, before));
    // Other commands overtake held ones, which leave nothing due.
    let other = driver.submit(&AllocPd {});
    assert_eq!(driver.completion().map(|(id, ..)| id), Some(other));
    assert_eq!(driver.run(Duration::ZERO), None);
    driver.world.take_interrupts();

    assert_eq!(release(&mut driver, "pds", None), (0, vec![]));
    assert_eq!(release(&mut driver, "pd", Some(0)), (0, vec![]));
    assert_eq!(held(&driver), [("pd".into(), 3), ("uar".into(), 1)]);
    assert_eq!(release(&mut driver, "pd", Some(1)), (1, vec![pds[0]]));
    assert_eq!(driver.world.take_interrupts(), [0]);
    assert_eq!(release(&mut driver, "uar", Some(9)), (1, vec![uar]));
    assert_eq!(held(&driver), [("pd".into(), 2)]);
    assert_eq!(release(&mut driver, "pd", None), (2, vec![pds[1], last]));
    assert_eq!(release(&mut driver, "pd", None), (0, vec![]));
    let state = driver.device.state();
    assert_eq!((held(&driver), state.admin.in_flight), (vec![], 0));
    assert_eq!(state.protocol_errors, 0);
}

#[test]
fn clearing_releases_held_commands() {
    let mut driver = with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"hold":"a"},"times":1}"#);
    driver.device.inject(rule(
        r#"{"when":{"opcode":"ALLOC_PD"},"then":{"hold":"b"},"skip":1}"#,
    ));
    let ids = [0; 3].map(|_| driver.submit(&AllocPd {}));
    assert_eq!(held(&driver), [("a".into(), 1), ("b".into(), 2)]);
    driver.device.clear();
    driver.run(Duration::ZERO);
    assert_eq!(
        ids.map(|_| driver.completion().unwrap().0),
        ids,
        "in their order"
    );
    assert_eq!(held(&driver), []);
    assert!(driver.execute(&AllocPd {}).is_ok());
}

#[test]
fn a_reset_death_and_the_end_of_the_guest_discard_held_commands() {
    for ends in ["reset", "death", "guest"] {
        let mut driver = with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"hold":"pd"},"times":1}"#);
        driver.submit(&AllocPd {});
        if ends == "guest" {
            driver.device.power_on(&mut driver.world);
            assert_eq!(held(&driver), []);
        } else if ends == "death" {
            // A dead device completes nothing, even on release or clear.
            let (world, now) = (&mut driver.world, driver.now);
            driver.device.die(world, now, Death::default());
            assert_eq!(release(&mut driver, "pd", None), (0, vec![]));
            driver.device.clear();
            driver.run(Duration::ZERO);
            assert!(driver.completion().is_none());
        }
        driver.reset(ResetReason::Generic);
        driver.set_up();
        assert_eq!(held(&driver), []);
        assert_eq!(release(&mut driver, "pd", None), (0, vec![]));
        assert!(driver.execute(&AllocPd {}).is_ok());
    }
}

#[test]
fn no_more_commands_are_held_than_the_queue_has_entries() {
    let mut driver = with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"hold":"pd"}}"#);
    let depth = usize::from(efa_testing::mock::DEPTH);
    for _ in 0..depth {
        driver.submit(&AllocPd {});
    }
    assert_eq!(held(&driver), [("pd".into(), depth)]);
    // One more command does not fit.
    driver.submit(&AllocPd {});
    assert_eq!(held(&driver), [("pd".into(), depth)]);
    assert_eq!(driver.device.state().protocol_errors, 1);
    let (released, completed) = release(&mut driver, "pd", None);
    assert_eq!((released, completed.len()), (depth as u64, depth));
}

#[test]
fn a_rule_that_holds_takes_precedence() {
    for rules in [
        ["\"delay_ms\":5", "\"hold\":\"x\""],
        ["\"hold\":\"x\"", "\"delay_ms\":5"],
    ] {
        let mut driver = Driver::new(Profile::Efa2);
        for then in rules {
            let json = format!(r#"{{"when":{{"opcode":"ALLOC_PD"}},"then":{{{then}}}}}"#);
            driver.device.inject(rule(&json));
        }
        let id = driver.submit(&AllocPd {});
        driver.run(Duration::from_millis(10));
        assert!(driver.completion().is_none());
        assert_eq!(release(&mut driver, "x", None), (1, vec![id]));
    }
}

#[test]
fn duplicate() {
    let mut driver = with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"duplicate":true}}"#);
    let id = driver.submit(&AllocPd {});
    let first = driver.completion().unwrap();
    assert_eq!(first.0, id);
    assert_eq!(driver.completion(), Some(first));
    assert!(driver.completion().is_none());
}

#[test]
fn wrong_id() {
    let mut driver = with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"wrong_id":true}}"#);
    let id = driver.submit(&AllocPd {});
    let (completed, _, entry) = driver.completion().unwrap();
    assert_ne!(completed, id);
    // Everything except the id is correct.
    assert_eq!(AcqHeader::of(&entry).checksum, checksum::of_entry(&entry));
}

#[test]
fn wrong_checksum() {
    let mut driver = with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"wrong_checksum":true}}"#);
    driver.submit(&AllocPd {});
    let (_, _, entry) = driver.completion().unwrap();
    assert_ne!(AcqHeader::of(&entry).checksum, checksum::of_entry(&entry));
}

#[test]
fn wrong_phase() {
    let mut driver =
        with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"wrong_phase":true},"times":1}"#);
    driver.submit(&AllocPd {});
    assert!(driver.completion().is_none());
    assert_eq!(driver.world.take_interrupts(), [0]);
}

#[test]
fn no_interrupt() {
    let mut driver = with(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"no_interrupt":true}}"#);
    driver.submit(&AllocPd {});
    assert!(driver.world.take_interrupts().is_empty());
    assert!(driver.completion().is_some());
    driver.submit(&AllocUar {});
    assert_eq!(driver.world.take_interrupts(), [0]);
}

#[test]
fn corruption() {
    let mut driver = with(
        r#"{"when":{"opcode":"ALLOC_PD"},
            "then":{"corrupt":[{"offset":8,"value":255},{"offset":63,"value":1}]}}"#,
    );
    driver.submit(&AllocPd {});
    let (_, _, entry) = driver.completion().unwrap();
    assert_eq!((entry[8], entry[63]), (255, 1));
    assert_eq!(AcqHeader::of(&entry).checksum, checksum::of_entry(&entry));

    // Of two rules with the same byte, the later counts.
    driver.device.inject(rule(
        r#"{"when":{"opcode":"ANY"},"then":{"corrupt":[{"offset":8,"value":7}]}}"#,
    ));
    driver.submit(&AllocPd {});
    let (_, _, entry) = driver.completion().unwrap();
    assert_eq!((entry[8], entry[63]), (7, 1));
}

#[test]
fn rules_add_up() {
    let mut driver = with(r#"{"when":{"opcode":"ANY"},"then":{"delay_ms":10}}"#);
    driver.device.inject(rule(
        r#"{"when":{"opcode":"ALLOC_PD"},"then":{"status":"BAD_OPCODE"}}"#,
    ));
    driver.submit(&AllocPd {});
    assert!(driver.completion().is_none());
    driver.run(Duration::from_millis(10));
    assert_eq!(driver.completion().unwrap().1, u8::from(Status::BadOpcode));
    assert_eq!(driver.device.state().faults_hit, 2);
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
        driver.device.inject(rule(&format!(
            r#"{{"when":{{"register":"DEV_STS"}},"then":{then}}}"#
        )));
        let response = driver.read_raw(0x58);
        assert_eq!(
            response.map(|response| (response.reg_off, response.reg_val)),
            expected
        );
        assert!(driver.read_raw(0).is_some());
    }
    assert_eq!(driver.device.state().protocol_errors, 0);
}

#[test]
fn any_register() {
    let mut driver = Driver::new(Profile::Efa2);
    // From the fourth read on all ones, from any register, and from the sixth on no response.
    for json in [
        r#"{"when":{"register":"ANY"},"then":{"value":4294967295},"skip":3}"#,
        r#"{"when":{"register":"ANY"},"then":{"silence":true},"skip":5}"#,
        r#"{"when":{"register":"VERSION"},"then":{"value":7},"times":1}"#,
    ] {
        driver.device.inject(rule(json));
    }
    let values: Vec<_> = [0, 0x58, 0, 8, 0x1000, 0x58, 0]
        .into_iter()
        .map(|offset| driver.read_raw(offset).map(|response| response.reg_val))
        .collect();
    let ones = Some(u32::MAX);
    assert_eq!(values[0], Some(7));
    assert!(values[1] != ones && values[2] == Some(2));
    assert_eq!(values[3..], [ones, ones, None, None]);
}

#[test]
fn reset_that_never_starts() {
    let mut driver = with(r#"{"when":{"reset":true},"then":{"never_starts":true},"times":1}"#);
    driver.start_reset(ResetReason::Normal);
    driver.set_response_address();
    driver.run(Duration::from_secs(100));
    assert!(!driver.status().reset_in_progress && driver.status().ready);
    // The driver may try again.
    driver.reset(ResetReason::InitError);
    driver.set_up();
    assert!(driver.execute(&AllocPd {}).is_ok());
    assert_eq!(driver.device.state().protocol_errors, 0);
}

#[test]
fn reset_that_never_ends() {
    for clear in [false, true] {
        let mut driver = with(r#"{"when":{"reset":true},"then":{"never_ends":true},"times":1}"#);
        driver.start_reset(ResetReason::Normal);
        driver.set_response_address();
        driver.write(Register::DevCtl, 0);
        driver.run(Duration::from_secs(100));
        assert!(driver.status().reset_in_progress);
        if clear {
            driver.device.clear();
            assert!(!driver.status().reset_in_progress);
        }
        driver.reset(ResetReason::InitError);
        driver.set_up();
        assert!(driver.execute(&AllocPd {}).is_ok());
        assert_eq!(driver.device.state().protocol_errors, 0);
    }
}

#[test]
fn event_at_the_start_of_a_reset() {
    let mut driver = with(r#"{"when":{"reset":true},"then":{"with_event":true},"times":1}"#);
    driver.enable_events(AenqGroup::KeepAlive.mask()).unwrap();
    driver.world.take_interrupts();
    driver.start_reset(ResetReason::Normal);
    assert_eq!(driver.world.take_interrupts(), [0]);
    assert_eq!(
        driver.event().map(|event| event.group),
        Some(AenqGroup::KeepAlive.into())
    );
    // The driver must not acknowledge the event, as the device is in its reset.
    driver.acknowledge_events();
    assert_eq!(driver.device.state().protocol_errors, 1);
}

/// Invalid rules, each with a part of its error.
const INVALID_RULES: &str = r#"
    {"when":{},"then":{}} | exactly one of
    {"when":{"opcode":"ANY","reset":true},"then":{}} | exactly one of
    {"when":{"opcode":"ALLOC"},"then":{}} | no opcode "ALLOC", only CREATE_QP, MODIFY_QP,
    {"when":{"register":"STS"},"then":{}} | no register "STS", only VERSION, CONTROLLER_VERSION,
    {"when":{"opcode":"ANY","feature":"HW_HINTS"},"then":{}} | GET_FEATURE or SET_FEATURE
    {"when":{"opcode":"GET_FEATURE","feature":"X"},"then":{}} | no feature "X"
    {"when":{"opcode":"ANY","stats":"BASIC"},"then":{}} | GET_STATS
    {"when":{"opcode":"GET_STATS","stats":"X"},"then":{}} | no statistics "X"
    {"when":{"opcode":"ANY"},"then":{"value":1}} | `value`
    {"when":{"work":"ANY","opcode":"ANY"},"then":{}} | exactly one of
    {"when":{"work":"READ"},"then":{}} | no work "READ", only SEND, RDMA_READ, RDMA_WRITE,
    {"when":{"reset":true,"qp":1},"then":{}} | `work`
    {"when":{"opcode":"ANY","peer":"::1"},"then":{}} | `work`
    {"when":{"work":"ANY","peer":"x"},"then":{}} | IPv6
    {"when":{"work":"ANY"},"then":{"status":"RESOURCE_BUSY"}} | `status`
    {"when":{"opcode":"ANY"},"then":{"status":"FLUSHED"}} | `status`
    {"when":{"work":"ANY"},"then":{"executed":true}} | `executed`
    {"when":{"work":"ANY"},"then":{"wrong_checksum":true}} | `wrong_checksum`
    {"when":{"opcode":"ANY"},"then":{"qp_error":true}} | `qp_error`
    {"when":{"work":"ANY"},"then":{"corrupt":[{"offset":32,"value":0}]}} | 32
    {"when":{"register":"CAPS"},"then":{"after_reset":true}} | `after_reset`
    {"when":{"opcode":"ANY"},"then":{"after_commands":1}} | `after_commands`
    {"when":{"opcode":"ANY"},"then":{"never_ends":true}} | `never_ends`
    {"when":{"register":"CAPS"},"then":{"delay_ms":1}} | `delay_ms`
    {"when":{"register":"CAPS"},"then":{"hold":"x"}} | `hold`
    {"when":{"opcode":"ANY"},"then":{"hold":"x","delay_ms":0}} | `hold` and `delay_ms` in `then` exclude each other
    {"when":{"opcode":"ANY"},"then":{"hold":""}} | has 0 bytes, but it must have 1 to 64
    {"when":{"opcode":"ANY"},"then":{"hold":"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0"}} | has 65 bytes
    {"when":{"reset":true},"then":{"silence":true}} | `silence`
    {"when":{"opcode":"ANY"},"then":{"status":"X"}} | no status "X"
    {"when":{"opcode":"ANY"},"then":{"status":256}} | status
    {"when":{"opcode":"ANY"},"then":{"corrupt":[{"offset":64,"value":0}]}} | 64
    {"when":{"opcode":"ANY"},"then":{"corrupt":[{"offset":6,"value":0},{"offset":6,"value":1}]}} | offset 6 twice
    {"when":{"opcode":"ANY"},"then":{"nonsense":true}} | nonsense
    {"when":{"opcode":"ANY"}} | then
"#;

#[test]
fn invalid_rules() {
    for case in INVALID_RULES.trim().lines() {
        let (json, part) = case.trim().split_once(" | ").expect(case);
        let error = serde_json::from_str::<Rule>(json)
            .expect_err(json)
            .to_string();
        assert!(error.contains(part), "{json}: {error}");
    }
}

#[test]
fn the_oldest_of_very_many_rules_is_lost() {
    let mut driver = Driver::new(Profile::Efa2);
    let alloc = r#"{"when":{"opcode":"ALLOC_PD"},"then":{"status":"RESOURCE_BUSY"}}"#;
    driver.device.inject(rule(alloc));
    let reset = r#"{"when":{"reset":true},"then":{"never_ends":true}}"#;
    for _ in 0..1023 {
        driver.device.inject(rule(reset));
    }
    assert_eq!(driver.execute(&AllocPd {}), Err(Status::ResourceBusy));
    driver.device.inject(rule(reset));
    assert!(driver.execute(&AllocPd {}).is_ok());
    assert_eq!(driver.device.state().faults, 1024);
}
