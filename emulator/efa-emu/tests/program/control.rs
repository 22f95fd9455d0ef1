// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The control protocol.

use std::{fs, io::Write, path::Path, thread};

use serde_json::json;

use super::{Control, Emulator, failure, fields, program, run};

/// A socket with a scope answers only requests within it.
#[test]
fn control_sockets_have_scopes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    let option = format!("{},device=1,read-only", path.display());
    let emulator = Emulator::start_in(folder, &["--control", &option]);
    let mut control = Control::connect(&path);
    assert!(control.ok(&json!({"command": "hello"}))["commands"].is_array());
    let snapshot = control.ok(&json!({"command": "snapshot"}));
    assert_eq!(snapshot["devices"].as_array().unwrap().len(), 1);
    assert!(snapshot.get("network").is_none());
    control.state(1);
    for request in [
        r#"{"command":"state","device":0}"#,
        r#"{"command":"state","device":1,"device":0}"#,
        r#"{"command":"die"}"#,
        r#"{"command":"peek","queue":{"rq":1},"length":1}"#,
        r#"{"command":"devices"}"#,
    ] {
        control.refuses(request, "this control socket is");
    }
    // The other socket has no scope.
    emulator.control().ok(&json!({"command": "devices"}));
}

#[test]
fn the_control_socket_answers() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let devices = control.ok(&json!({"command": "devices"}));
    assert_eq!(
        devices,
        json!([
            {"device": 0, "profile": "efa2", "socket": emulator.socket("0")},
            {"device": 1, "profile": "efa0", "socket": emulator.socket("1")},
        ])
    );
    let rule = json!({"when": {"opcode": "ANY"}, "then": {"silence": true}, "times": 1});
    let reply = control.ok(&json!({"command": "inject", "device": 1, "rule": rule}));
    assert!(reply["rule"].is_u64(), "{reply}");
    let set = json!({"command": "set", "device": 1, "set": {"ready": false}});
    assert_eq!(control.ok(&set), json!({}));
    let state = control.state(1);
    assert_eq!(fields(&state, &["faults", "ready"]), json!([1, false]));
    let other = control.ok(&json!({"command": "state"}));
    assert_eq!(fields(&other, &["faults", "ready"]), json!([0, true]));
    control.ok(&json!({"command": "clear", "device": 1}));
    let state = control.state(1);
    assert_eq!(fields(&state, &["faults", "ready"]), json!([0, true]));
    for group in [json!("FATAL_ERROR"), json!(1), json!(999)] {
        control.ok(&json!({"command": "event", "group": group, "syndrome": 1}));
    }
}

#[test]
fn a_client_can_ask_for_versions() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let welcome = control.ok(&json!({"command": "hello"}));
    assert_eq!(welcome["protocol"], json!(1));
    assert_eq!(welcome["program"], json!("efa-emu"));
    assert_eq!(welcome["version"], json!(env!("CARGO_PKG_VERSION")));
    // All listed commands are known.
    for command in welcome["commands"].as_array().unwrap() {
        let reply = control.ask(&json!({ "command": command })).to_string();
        assert!(!reply.contains("unknown variant"), "{reply}");
    }
    assert_eq!(
        control.ok(&json!({"command": "hello", "protocol": 1})),
        welcome
    );
    control.refuses(
        r#"{"command":"hello","protocol":2}"#,
        "version 2 is not supported: this program supports version 1",
    );
}

#[test]
fn a_device_dies() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    control.ok(&json!({"command": "die"}));
    let options = json!({"command": "die", "device": 1, "silent": true, "resets": 3, "how": "never_ends", "dma": true});
    control.ok(&options);
    for (device, fatal) in [(0, true), (1, false)] {
        let found = fields(&control.state(device), &["dead", "fatal_error"]);
        assert_eq!(found, json!([true, fatal]));
    }
}

#[test]
fn an_event_is_kept_for_the_next_session() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    control.ok(
        &json!({"command": "event", "group": "WARNING", "after_reset": true, "after_commands": 2}),
    );
    let state = control.ok(&json!({"command": "state"}));
    let late = fields(&state, &["late", "events"]);
    assert_eq!(late, json!([1, 0]), "{state}");
}

#[test]
fn events_storm() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let storm = json!({"command": "event", "group": "WARNING", "count": 5_000_000});
    control.ok(&storm);
    // The events wait for a queue, but no client waits for them.
    let state = control.ok(&json!({"command": "state"}));
    assert_eq!(state["storm"], json!(5_000_000));
    control.ok(&json!({"command": "clear"}));
    let state = control.ok(&json!({"command": "state"}));
    assert_eq!(state["storm"], json!(0));
}

#[test]
fn a_device_is_unplugged_and_plugged_in() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let plugged =
        |control: &mut Control| control.ok(&json!({"command": "state"}))["plugged"].take();
    control.ok(&json!({"command": "unplug"}));
    assert_eq!(plugged(&mut control), json!(false));
    control.refuses(r#"{"command":"die"}"#, "plug it in first");
    control.ok(&json!({"command": "plug"}));
    assert_eq!(plugged(&mut control), json!(true));
}

#[test]
fn bad_requests_are_answered_by_an_error() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    for (request, part) in [
        (&b"{"[..], "EOF"),
        (b"", "EOF"),
        (b"\xff\xfe", ""),
        (b"[]", ""),
        (
            br#"{"command":"stat"}"#,
            "unknown variant `stat`, expected one of `hello`, `devices`, `state`",
        ),
        (br#"{"command":"devices","device":0}"#, "unknown field"),
        (
            br#"{"command":"state","device":2}"#,
            "there is no device 2; the last one is 1",
        ),
        (br#"{"command":"state","device":-1}"#, "invalid value"),
        (
            br#"{"command":"set","set":{"max_eqq":1}}"#,
            "unknown field `max_eqq`",
        ),
        (
            br#"{"command":"inject","rule":{"when":{},"then":{}}}"#,
            "`when` needs",
        ),
        (
            br#"{"command":"event","group":"FATAL"}"#,
            "no event group \"FATAL\", only FATAL_ERROR",
        ),
        (
            br#"{"command":"event","group":1,"count":1,"after_reset":true}"#,
            "but not both",
        ),
        (br#"{"command":"event","group":1,"count":0}"#, "nonzero"),
        (
            br#"{"command":"notify","cq":1,"count":2}"#,
            "there is no completion queue 1",
        ),
        (
            br#"{"command":"event","group":1,"after_commands":1}"#,
            "`after_commands` needs `after_reset`",
        ),
        (br#"{"command":"die","resets":0}"#, "nonzero"),
        (
            br#"{"command":"die","how":"loudly"}"#,
            "`loudly`, expected `never_starts` or `never_ends`",
        ),
        (
            br#"{"command":"event","group":65536}"#,
            "no event group 65536",
        ),
    ] {
        control.refuses(request, part);
    }
    let endless = vec![b'{'; 1 << 20];
    assert_eq!(control.error(&endless), "a request is at most 65536 bytes");
    control.ok(&json!({"command": "devices"}));
}

#[test]
fn requests_sent_at_once_are_answered_in_order() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let mut requests = Vec::new();
    for device in 0..100 {
        let request = json!({"command": "state", "device": device});
        writeln!(requests, "{request}").unwrap();
    }
    control.send(&requests);
    for device in 0..100 {
        let reply = control.reply();
        match device {
            0 | 1 => assert!(reply.get("ok").is_some()),
            _ => {
                let error = reply["error"].as_str().unwrap();
                assert!(error.contains(&format!("no device {device};")));
            }
        }
    }
}

#[test]
fn many_connections_are_served_at_once() {
    // The limit is 64. The connection that has tested whether the emulator serves may still be open.
    let emulator = Emulator::start(&[]);
    let mut idle: Vec<_> = (0..32).map(|_| emulator.control()).collect();
    thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                let mut control = emulator.control();
                for _ in 0..50 {
                    control.state(1);
                }
            });
        }
    });
    for control in &mut idle {
        control.ok(&json!({"command": "devices"}));
    }
}

#[test]
fn silent_clients_do_not_block_others() {
    let emulator = Emulator::start(&[]);
    let devices = json!({"command": "devices"});
    // The maximum number of connections.
    let mut old: Vec<_> = (0..64).map(|_| emulator.control()).collect();
    for control in [63, 0, 1] {
        old[control].ok(&devices);
    }
    let mut new = Vec::new();
    for _ in 0..60 {
        let mut control = emulator.control();
        control.ok(&devices);
        new.push(control);
    }
    // Clients that have sent a request stay connected.
    for control in new.iter_mut().chain(&mut old[..2]) {
        control.ok(&devices);
    }
    let ended = old.iter_mut().map(Control::has_ended);
    let ended = ended.filter(|ended| *ended).count();
    assert!((60..62).contains(&ended), "{ended}");
}

#[test]
fn ctl_prints_replies() {
    let emulator = Emulator::start(&[]);
    let ctl = |requests: &[&str]| {
        run(program()
            .arg("ctl")
            .arg(emulator.socket("control"))
            .args(requests))
    };
    let output = ctl(&["{\"command\":\"devices\"}", "{\"command\":\n\"clear\"}"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2);
    let output = ctl(&["{}"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.starts_with(b"{\"error\":"));
    let error = failure(1, program().args(["ctl", "/nowhere", "{}"]));
    assert!(
        error.contains("cannot use the control socket /nowhere (No such file")
            && error.contains("--control"),
        "{error}"
    );
}

#[test]
fn clients_can_read_and_change_the_network() {
    let emulator = Emulator::start(&["--fabric", "loss=0.25,paths=2"]);
    let mut control = emulator.control();
    let reply = control.ok(&json!({ "command": "fabric" }));
    assert_eq!(reply["settings"]["loss"], json!(0.25));
    assert_eq!(reply["paths"].as_array().unwrap().len(), 2);
    let reply = control.ok(&json!({ "command": "fabric", "set": { "jitter_us": 5, "paths": 3 } }));
    assert_eq!(reply["settings"]["loss"], json!(0.25));
    assert_eq!(reply["settings"]["jitter_us"], json!(5.0));
    assert_eq!(reply["paths"].as_array().unwrap().len(), 3);
    for (set, part) in [
        (json!({ "loss": 1.5 }), "loss must be between 0 and 1"),
        (json!({ "lost": 1 }), "unknown field `lost`"),
    ] {
        let request = json!({ "command": "fabric", "set": set });
        control.refuses(request.to_string(), part);
    }
    let options = ["--device", "socket=a", "--fabric", "paths=0"];
    let error = failure(2, program().args(options));
    assert!(error.contains("paths is 0"), "{error}");
}

#[test]
fn the_guide_matches_the_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Documentation");
    let guide = ["emulator.md", "emulator-control.md"]
        .map(|name| fs::read_to_string(folder.join(name)).unwrap())
        .concat();
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let requests = guide
        .lines()
        .filter(|line| line.starts_with("{\"command\":"));
    let answered = requests
        .map(|request| control.ok(&serde_json::from_str(request).unwrap()))
        .count();
    assert!(answered >= 8, "only {answered} requests in the guide");

    // The message lists all attributes, none of which may be missing in the guide.
    let error = control.error(b"{\"command\":\"set\",\"set\":{\"\":0}}");
    let attributes: Vec<_> = error.split('`').skip(3).step_by(2).collect();
    assert!(attributes.len() > 40, "{error}");
    for attribute in attributes {
        assert!(
            guide.contains(&format!("`{attribute}`")),
            "{attribute} is not in the guide"
        );
    }
}
