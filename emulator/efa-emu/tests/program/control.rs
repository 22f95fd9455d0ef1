// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The control socket.

use super::*;

/// Requests, and fields of the state of device 1 afterwards, or the error.
const CHANGES: &str = r#"
{"command":"inject","device":1,"rule":{"when":{"opcode":"ANY"},"then":{"silence":true},"times":1}} | {"faults":1,"ready":true}
{"command":"set","device":1,"set":{"ready":false}} | {"faults":1,"ready":false}
{"command":"clear"} | {"faults":1,"ready":false}
{"command":"clear","device":1} | {"faults":0,"ready":true}
{"command":"event","device":1,"group":999,"after_reset":true,"after_commands":2} | {"late":1,"events":0}
{"command":"event","device":1,"group":"WARNING","count":5000000} | {"late":1,"storm":5000000}
{"command":"clear","device":1} | {"late":0,"storm":0}
{"command":"unplug","device":1} | {"plugged":false}
{"command":"die","device":1} | an unplugged device can't die: plug it in first
{"command":"plug","device":1} | {"plugged":true}
{"command":"die","device":0} | {"dead":false}
{"command":"die","device":1,"silent":true,"resets":3,"how":"never_ends","dma":true} | {"dead":true,"fatal_error":false}
{"command":"die","device":1} | {"dead":true,"fatal_error":true}
"#;

#[test]
fn requests_change_the_state_of_their_device() {
    let emulator = Emulator::start(2, &[]);
    let mut control = emulator.connect();
    for line in CHANGES.trim().lines() {
        let (request, expected) = line.split_once(" | ").unwrap();
        let Ok(expected) = expected.parse::<Value>() else {
            control.refuses(request, expected);
            continue;
        };
        control.ok(&request.parse().unwrap());
        let state = control.state(1);
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(state[field], *value, "{line}");
        }
    }
}

/// Clients see the work of each queue pair, and the round trip and window of each connection.
#[test]
fn the_state_has_queue_pairs_and_connections() {
    let emulator = Emulator::start(2, &["--fabric", "realistic"]);
    let [mut a, mut b] = End::pair([0, 1].map(|at| emulator.device(at)), QpType::Srd);
    b.receive(0, 8928);
    assert_eq!(a.run(&Send::message(&b.qp, &a.region, 1000)), CompStatus::Ok);
    assert_eq!(b.wait(), CompStatus::Ok);
    let mut write = Send::write(&b.qp, &a.region, &b.region, 200);
    assert_eq!(a.run(&write), CompStatus::Ok);
    // No memory has this key.
    write.remote = Some((0, 200, 0x12345));
    assert_eq!(a.run(&write), CompStatus::RemoteBadAddress);
    let mut control = emulator.connect();
    for (device, counted) in [[2, 1200, 1, 0, 0], [0, 0, 0, 1, 1000]].into_iter().enumerate() {
        let [sq_wrs, sq_bytes, sq_errors, recv_wrs, recv_bytes] = counted;
        let counted = json!([{
            "qp": 1, "sq_wrs": sq_wrs, "sq_bytes": sq_bytes, "sq_errors": sq_errors,
            "recv_wrs": recv_wrs, "recv_bytes": recv_bytes,
        }]);
        assert_eq!(control.state(device)["queue_pairs"], counted);
    }
    let connections = control.state(0)["connections"].take();
    let [connection] = &connections.as_array().unwrap()[..] else {
        panic!("{connections}");
    };
    assert_eq!(connection["qp"], 1);
    assert_eq!(connection["peer"], "fe80::2ef:a0ff:fe00:1");
    for field in ["round_trip_us", "window"] {
        assert!(connection[field].as_f64().unwrap() > 1.0, "{connections}");
    }
    assert_eq!(control.state(1)["connections"], json!([]));
}

/// A client of a socket for one device learns nothing of others.
#[test]
fn a_socket_of_one_device_shows_that_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    let option = format!("{},device=1", path.display());
    let emulator = Emulator::start(2, &["--control", &option]);
    let [mut own, mut all] = [&path, &emulator.control()].map(|path| Control::connect(path));
    all.ok(&json!({"command": "inject", "rule": {"when": {"opcode": "ANY"}, "then": {"delay_ms": 1}}}));
    let snapshot = own.ok(&json!({"command": "snapshot"}));
    assert_eq!(snapshot["devices"][0]["device"], 1);
    let counters = own.ok(&json!({"command": "counters"}));
    let devices = own.ok(&json!({"command": "devices"}));
    assert_eq!(devices[0]["device"], 1);
    for list in [&snapshot["devices"], &counters["devices"], &devices] {
        assert_eq!(list.as_array().unwrap().len(), 1, "{list}");
    }
    assert!(snapshot.get("network").is_none() && counters.get("paths").is_none());
    assert_eq!(own.ok(&json!({"command": "state"}))["faults"], 0);
    for request in [
        r#"{"command":"state","device":0}"#,
        r#"{"command":"devices","device":0}"#,
        r#"{"command":"fabric"}"#,
        r#"{"command":"fabric","device":1}"#,
    ] {
        own.refuses(request, "this control socket is for device 1 only");
    }
    own.refuses(r#"{"command":"state","device":1,"device":0}"#, "duplicate field");
    // The other socket has no scope.
    assert_eq!(all.ok(&json!({"command": "devices"})).as_array().unwrap().len(), 2);
}

#[test]
fn requests_sent_at_once_are_answered_in_order() {
    let emulator = Emulator::start(2, &[]);
    let mut control = emulator.connect();
    let request = |device: usize| json!({"command": "state", "device": device}).to_string();
    control.send((0..100).map(request).collect::<Vec<_>>().join("\n"));
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
fn silent_clients_do_not_block_others() {
    let emulator = Emulator::start(2, &[]);
    let devices = json!({"command": "devices"});
    // The maximum number of connections.
    let mut old: Vec<_> = (0..64).map(|_| emulator.connect()).collect();
    for control in [63, 0, 1] {
        old[control].ok(&devices);
    }
    let mut new: Vec<_> = (0..60).map(|_| emulator.connect()).collect();
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
    let emulator = Emulator::start(1, &[]);
    for (requests, code, printed) in [
        (&["{\"command\":\"clear\"}", "{\"command\":\n\"plug\"}"][..], 0, "{\"ok\":{}}\n{\"ok\":{}}\n"),
        (&["{}"], 1, "{\"error\":\"missing field `command` at line 1 column 2\"}\n"),
    ] {
        let output = run(program().arg("ctl").arg(emulator.control()).args(requests));
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), printed);
    }
}

#[test]
fn clients_can_change_settings_of_the_network() {
    let emulator = Emulator::start(1, &["--fabric", "loss=0.25,paths=2"]);
    let mut control = emulator.connect();
    for set in [json!({"jitter_us": 5}), json!({"paths": 3})] {
        control.ok(&json!({"command": "fabric", "set": set}));
    }
    let network = control.ok(&json!({"command": "fabric"}));
    let settings = ["loss", "jitter_us"].map(|name| network["settings"][name].as_f64());
    assert_eq!(settings, [Some(0.25), Some(5.0)]);
    assert_eq!(network["paths"].as_array().unwrap().len(), 3);
}

/// The guides' suite runs the requests of the guides.
#[test]
fn the_guide_has_all_attributes() {
    let guide = include_str!("../../../../Documentation/emulator-control.md");
    let emulator = Emulator::start(1, &[]);
    let error = emulator.ask(&json!({"command": "set", "set": {"": 0}}))["error"].take();
    let attributes = error.as_str().unwrap().split('`').skip(3).step_by(2);
    let attributes: Vec<_> = attributes.collect();
    assert!(attributes.len() > 40, "{error}");
    for attribute in attributes {
        let is_there = guide.contains(&format!("`{attribute}`"));
        assert!(is_there, "{attribute} is not in the guide");
    }
}
