// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Probes of unusual, faulty or silent devices: the result, the driver's messages, and leaks.

use driver::{
    fault::rule,
    rig::{name_of, Rig, SECOND},
};
use efa_model::Profile;
use kernel::sim;

use crate::{messages, run, run_bound, run_bound_as, run_with};

/// Timeouts in units of 100 ms. That of commands is the maximum that a device can announce.
const LIMITS: &str = r#"{"reset_timeout": 20, "admin_timeout": 15}"#;

/// Statuses with which a device refuses a command, and the errors that they map to.
const STATUSES: [(&str, &str); 8] = [
    (r#""RESOURCE_ALLOCATION_FAILURE""#, "ENOMEM"),
    (r#""BAD_OPCODE""#, "EINVAL"),
    (r#""UNSUPPORTED_OPCODE""#, "EOPNOTSUPP"),
    (r#""MALFORMED_REQUEST""#, "EINVAL"),
    (r#""ILLEGAL_PARAMETER""#, "EINVAL"),
    (r#""UNKNOWN_ERROR""#, "EINVAL"),
    (r#""RESOURCE_BUSY""#, "EINVAL"),
    ("200", "EINVAL"),
];

const ALL_FEATURES: u32 = 0x2fe;

/// Probes a device with attributes and rules. Returns the result and the number of protocol errors
/// of the driver. Afterwards the device works.
fn probe(rig: &mut Rig, attributes: &str, rules: &[String]) -> String {
    let errors = |rig: &Rig| rig.device().protocol_errors;
    rig.set(attributes);
    rules.iter().for_each(|text| rig.inject(rule(text)));
    sim::keep_log(true);
    let result = rig.probe();
    assert!(
        result.is_ok() || !messages("err").is_empty(),
        "{attributes} {rules:?}: {result:?}, and the log does not say why"
    );
    if result.is_ok() {
        rig.remove();
    }
    let left = rig.device().resources;
    let left = (left.eq, left.uar, left.pd);
    assert_eq!(left, (0, 0, 0), "{attributes} {rules:?}");
    rig.heal();
    let text = match errors(rig) {
        0 => name_of(result),
        errors => format!("{}, {errors} protocol errors", name_of(result)),
    };
    rig.probe().unwrap();
    rig.remove();
    text
}

/// Formats a rule without a limit on its uses.
fn always(when: &str, then: &str) -> String {
    format!(r#"{{"when": {when}, "then": {then}}}"#)
}

fn inject(rig: &Rig, when: &str, then: &str) {
    rig.inject(rule(&always(when, then)));
}

fn check(profile: Profile, wanted: &str, attributes: &str, rules: &[String]) {
    let result = run_with(profile, |rig| {
        rig.set(LIMITS);
        probe(rig, attributes, rules)
    });
    assert_eq!(result, wanted, "{profile:?} {attributes} {rules:?}");
}

#[test]
fn of_unusual_attributes() {
    for (wanted, attributes) in [
        ("EINVAL", r#"{"ready": false}"#),
        ("EINVAL", r#"{"reset_timeout": 0}"#),
        ("ok", r#"{"reset_ms": 150}"#),
        ("EOPNOTSUPP", r#"{"version": 0}"#),
        ("ok", r#"{"version": 1}"#),
        ("ok", r#"{"version": 2}"#),
        ("ok", r#"{"version": 3}"#),
        ("ok", r#"{"version": 255}"#),
        ("ok", r#"{"version": 256}"#),
        ("EOPNOTSUPP", r#"{"controller_version": 0}"#),
        ("EOPNOTSUPP", r#"{"controller_version": 83886080}"#),
        ("EINVAL", r#"{"dma_addr_width": 0}"#),
        ("EINVAL", r#"{"dma_addr_width": 31}"#),
        ("ok", r#"{"dma_addr_width": 32}"#),
        ("ok", r#"{"dma_addr_width": 64}"#),
        ("EINVAL", r#"{"dma_addr_width": 65}"#),
        ("EINVAL", r#"{"dma_addr_width": 255}"#),
        ("EINVAL", r#"{"api_version": 0}"#),
        ("ENODEV", r#"{"db_bar": 1}"#),
        ("EINVAL", r#"{"max_eq_depth": 0}"#),
        ("ok", r#"{"max_eq_depth": 1}"#),
        ("ok", r#"{"max_eq_depth": 16}"#),
        ("ok", r#"{"max_eq_depth": 1024}"#),
        ("ok", r#"{"max_eq_depth": 32768}"#),
        ("ok", r#"{"max_eq_depth": 65536}"#),
        ("ok", r#"{"max_eq_depth": 4294967295}"#),
    ] {
        check(Profile::Efa3, wanted, attributes, &[]);
    }
}

#[test]
fn of_registers_that_err() {
    // The last of the three reads of the reset shows a fatal error, or the one that follows a device that is not ready.
    for (number, value) in [(2, 0x31), (3, 0)] {
        let rule = format!(
            r#"{{"when": {{"register": "DEV_STS"}}, "then": {{"value": {value}}}, "skip": {number}, "times": 1}}"#
        );
        check(Profile::Efa2, "ENODEV", "{}", &[rule]);
    }
    let status = r#"{"register": "DEV_STS"}"#;
    let version = r#"{"register": "VERSION"}"#;
    let reset = r#"{"reset": true}"#;
    let ones = r#"{"value": 4294967295}"#;
    // The versions differ: the device refuses the queue, and then a doorbell without a queue.
    let differ = "ETIME, 2 protocol errors";
    for (wanted, attributes, when, then) in [
        ("ETIMEDOUT", "{}", status, r#"{"silence": true}"#),
        ("ETIMEDOUT", "{}", status, r#"{"wrong_req_id": true}"#),
        ("ETIMEDOUT", "{}", status, ones),
        ("EINVAL", "{}", r#"{"register": "CAPS"}"#, ones),
        ("ok", "{}", r#"{"register": "CONTROLLER_VERSION"}"#, ones),
        (differ, r#"{"version": 2}"#, version, r#"{"value": 3}"#),
        (differ, r#"{"version": 3}"#, version, r#"{"value": 2}"#),
        (differ, r#"{"version": 2}"#, version, ones),
        ("ETIMEDOUT", "{}", reset, r#"{"never_starts": true}"#),
        ("ETIMEDOUT", "{}", reset, r#"{"never_ends": true}"#),
    ] {
        check(Profile::Efa2, wanted, attributes, &[always(when, then)]);
    }
}

#[test]
fn of_features_that_are_refused_or_missing() {
    let all = format!(r#"{{"supported_features": {ALL_FEATURES}}}"#);
    for (feature, number, is_optional) in [
        ("DEVICE_ATTR", 1, true),
        ("AENQ_CONFIG", 2, false),
        ("NETWORK_ATTR", 3, false),
        ("QUEUE_ATTR_1", 4, false),
        ("HW_HINTS", 5, false),
        ("HOST_INFO", 6, true),
        ("EVENT_QUEUE_ATTR", 7, true),
        ("QUEUE_ATTR_2", 9, true),
    ] {
        let wanted = if is_optional { "ok" } else { "EOPNOTSUPP" };
        let others = ALL_FEATURES & !(1 << number);
        let attributes = format!(r#"{{"supported_features": {others}}}"#);
        check(Profile::Efa2, wanted, &attributes, &[]);
        let when = format!(r#"{{"opcode": "GET_FEATURE", "feature": "{feature}"}}"#);
        for (status, wanted) in STATUSES {
            if feature != "HOST_INFO" {
                let rule = always(&when, &format!(r#"{{"status": {status}}}"#));
                check(Profile::Efa2, wanted, &all, &[rule]);
            }
        }
    }
}

#[test]
fn of_commands_that_are_refused() {
    for when in [
        r#"{"opcode": "SET_FEATURE", "feature": "AENQ_CONFIG"}"#,
        r#"{"opcode": "CREATE_EQ"}"#,
    ] {
        for (status, wanted) in STATUSES {
            let rule = always(when, &format!(r#"{{"status": {status}}}"#));
            check(Profile::Efa2, wanted, "{}", &[rule]);
        }
    }
    let second = r#"{"when": {"opcode": "CREATE_EQ"}, "then": {"status": "RESOURCE_ALLOCATION_FAILURE"}, "skip": 1}"#;
    check(Profile::Efa2, "ENOMEM", "{}", &[second.to_owned()]);
    let destroy = always(
        r#"{"opcode": "DESTROY_EQ"}"#,
        r#"{"status": "RESOURCE_BUSY"}"#,
    );
    check(Profile::Efa2, "ok", "{}", &[destroy]);
    let any = always(r#"{"opcode": "ANY"}"#, r#"{"status": "MALFORMED_REQUEST"}"#);
    check(Profile::Efa4, "EINVAL", "{}", &[any]);
}

#[test]
fn of_events_that_the_device_does_not_have() {
    for group in 1..=4 {
        let attributes = format!(r#"{{"aenq_groups": {}}}"#, 0b1_1110 & !(1 << group));
        check(Profile::Efa2, "EOPNOTSUPP", &attributes, &[]);
    }
}

#[test]
fn of_completions_that_err() {
    let any = r#"{"opcode": "ANY"}"#;
    for (wanted, attributes, then) in [
        ("ETIME", "{}", r#"{"silence": true}"#),
        ("ETIME", "{}", r#"{"wrong_checksum": true}"#),
        ("ETIME", "{}", r#"{"wrong_id": true}"#),
        ("ETIME", "{}", r#"{"wrong_phase": true}"#),
        ("ok", "{}", r#"{"duplicate": true}"#),
        // Version 1 has no checksums.
        ("ok", r#"{"version": 1}"#, r#"{"wrong_checksum": true}"#),
    ] {
        check(Profile::Efa2, wanted, attributes, &[always(any, then)]);
    }
    for (skip, then) in [
        (1, r#"{"silence": true}"#),
        (2, r#"{"wrong_checksum": true}"#),
    ] {
        let rule = format!(r#"{{"when": {any}, "then": {then}, "skip": {skip}, "times": 1}}"#);
        check(Profile::Efa2, "ETIME", "{}", &[rule]);
    }
    for then in [r#"{"silence": true}"#, r#"{"wrong_checksum": true}"#] {
        check(Profile::Efa4, "ETIME", "{}", &[always(any, then)]);
    }
    let old = always(r#"{"register": "VERSION"}"#, r#"{"value": 2}"#);
    check(Profile::Efa4, "ETIME, 2 protocol errors", "{}", &[old]);
    let queue = always(r#"{"opcode": "CREATE_EQ"}"#, r#"{"silence": true}"#);
    check(Profile::Efa2, "ETIME", "{}", &[queue]);
}

/// Returns the state of the device after a probe with attributes and rules.
fn state_with(attributes: &str, rules: &[String]) -> efa_model::State {
    run(|rig| {
        rig.set(attributes);
        rules.iter().for_each(|text| rig.inject(rule(text)));
        rig.probe().unwrap();
        rig.device()
    })
}

#[test]
fn take_the_event_queues_that_there_are() {
    assert_eq!(state_with(r#"{"max_eq": 0}"#, &[]).resources.eq, 0);
    assert_eq!(state_with(r#"{"max_eq": 1}"#, &[]).resources.eq, 1);
}

#[test]
fn do_without_host_information() {
    let refused = always(
        r#"{"opcode": "SET_FEATURE", "feature": "HOST_INFO"}"#,
        r#"{"status": "RESOURCE_BUSY"}"#,
    );
    assert!(state_with("{}", &[]).host_info.is_some());
    assert!(state_with("{}", &[refused]).host_info.is_none());
}

/// A reset after the first use has a reason.
#[test]
fn reset_the_device() {
    let refused = always(
        r#"{"opcode": "CREATE_EQ"}"#,
        r#"{"status": "UNKNOWN_ERROR"}"#,
    );
    for (wanted, attributes, rules) in [
        (&["NORMAL"][..], r#"{"version": 0}"#, vec![]),
        (&["NORMAL", "INIT_ERR"], "{}", vec![refused]),
        (&["NORMAL", "NORMAL"], "{}", vec![]),
    ] {
        let resets = run(|rig| {
            rig.set(attributes);
            rules.iter().for_each(|text| rig.inject(rule(text)));
            if rig.probe().is_ok() {
                rig.remove();
            }
            rig.device().resets
        });
        assert_eq!(resets, wanted, "{attributes} {rules:?}");
    }
}

/// Interrupts arrive during the reset, in which the device accepts no doorbell.
#[test]
fn end_with_an_event_in_the_reset() {
    run_bound(|rig| {
        inject(rig, r#"{"reset": true}"#, r#"{"with_event": true}"#);
        rig.set(r#"{"reset_ms": 2000, "reset_timeout": 255}"#);
        let stormed = rig.shared.with(|device, _, now| {
            let queue = device.snapshot(now).event_queues[0].number;
            device.storm_of_completion_events(Some(queue), 0xfff0, 10_000)
        });
        stormed.unwrap();
        sim::sleep(SECOND / 1000);
        rig.remove();
        let state = rig.device();
        assert_eq!(state.protocol_errors, 0);
    });
}

/// Each completion arrives twice. The driver logs that at a limited rate.
#[test]
fn do_not_fill_the_log() {
    run(|rig| {
        inject(rig, r#"{"opcode": "ANY"}"#, r#"{"duplicate": true}"#);
        sim::keep_log(true);
        rig.probe().unwrap();
        let lines = messages("").len();
        assert!((1..=15).contains(&lines), "{lines} lines");
    });
}

/// Monitors of machines find failures by these words, which are the C driver's.
#[test]
fn are_reported_in_words_that_monitors_know() {
    let (reset, status) = (r#"{"reset": true}"#, r#"{"register": "DEV_STS"}"#);
    let (version, command) = (r#"{"register": "VERSION"}"#, r#"{"opcode": "GET_FEATURE"}"#);
    let silence = r#"{"silence": true}"#;
    let late = always(status, r#"{"value": 0}"#).replace("}}", r#"}, "skip": 3}"#);
    for (rule_text, words) in [
        (
            always(status, r#"{"value": 0}"#),
            "Device isn't ready, can't reset device",
        ),
        (late, "Device isn't ready, abort com init"),
        (
            always(reset, r#"{"never_starts": true}"#),
            "Reset indication didn't turn on",
        ),
        (
            always(reset, r#"{"never_ends": true}"#),
            "Reset indication didn't turn off",
        ),
        (always(version, silence), "Reading register timed out"),
        (
            always(command, silence),
            "The device didn't send any completion for admin cmd",
        ),
        (always(command, silence), "Admin queue is closed"),
        (
            always(command, r#"{"no_interrupt": true}"#),
            "driver received no MSI-X interrupt for admin cmd",
        ),
        (
            always(command, r#"{"status": "BAD_OPCODE"}"#),
            "Failed to process command GET_FEATURE",
        ),
    ] {
        run(|rig| {
            rig.set(LIMITS);
            rig.inject(rule(&rule_text));
            sim::keep_log(true);
            if rig.probe().is_ok() {
                rig.remove();
            }
            let log = messages("err").concat();
            assert!(log.contains(words), "{words}: {log}");
        });
    }
}

/// Command timeouts in ms: that which the device advises, and that which the driver uses.
#[test]
fn take_advice_on_time_limits() {
    let set_feature = r#"{"opcode": "SET_FEATURE"}"#;
    for (advised, taken) in [(1, 100), (0xffff, 30_000)] {
        run(|rig| {
            rig.set(&format!(r#"{{"admin_completion_timeout_ms": {advised}}}"#));
            inject(rig, set_feature, r#"{"silence": true}"#);
            sim::keep_log(true);
            assert_eq!(name_of(rig.probe()), "ETIME");
            let log = messages("").concat();
            let wanted = format!("for admin cmd SET_FEATURE within {taken} ms");
            assert!(log.contains(&wanted), "{wanted}: {log}");
        });
    }
    // With the advised timeout, a completion this late is in time.
    run(|rig| {
        rig.set(r#"{"admin_timeout": 15, "admin_completion_timeout_ms": 30000}"#);
        inject(rig, set_feature, r#"{"delay_ms": 2500}"#);
        rig.probe().unwrap();
    });
    // The maximum timeout of a register read.
    run_bound_as(r#"{"mmio_read_timeout_ms": 65535}"#, |rig| {
        inject(rig, r#"{"register": "DEV_STS"}"#, r#"{"silence": true}"#);
        let start = sim::now();
        rig.remove();
        // Two reads before the reset, and those that poll for its end.
        assert!(sim::now() - start < 10 * SECOND);
    });
}
