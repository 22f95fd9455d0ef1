// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The schemas of the control protocol, and the program's requests and replies.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use efa_hw::admin::{eq::CreateEq, qp::QpType};
use efa_testing::{
    commands::create_eq,
    machine::{Emulator, End},
};
use jsonschema::Validator;
use serde_json::{Value, json};

/// Returns the output of `efa-emu schema`.
fn schemas() -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_efa-emu"))
        .arg("schema")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn validator(schema: &Value) -> Validator {
    jsonschema::draft202012::meta::validate(schema).unwrap();
    jsonschema::draft202012::new(schema).unwrap()
}

/// Returns why a value does not match a schema, or `None` if it does.
fn misfit(validator: &Validator, value: &Value) -> Option<String> {
    let error = validator.validate(value).err()?;
    Some(format!("{error} at {}", error.instance_path()))
}

/// The schemas of the replies, by command.
fn replies(schemas: &Value) -> BTreeMap<String, Validator> {
    let replies = schemas["replies"].as_object().unwrap();
    replies
        .iter()
        .map(|(command, schema)| (command.clone(), validator(schema)))
        .collect()
}

/// Requests that the program carries out if device 0 has a completion queue and an event queue with the number 1: all commands,
/// with all fields.
fn good_requests() -> Vec<Value> {
    let die = json!({"silent": true, "resets": 2, "how": "never_ends", "dma": false});
    let then = json!({"status": "RESOURCE_BUSY", "delay_ms": 1, "corrupt": [{"offset": 8, "value": 255}], "after_reset": true, "after_commands": 2});
    let get_stats = json!({"opcode": "GET_STATS", "stats": "NETWORK"});
    let get_feature = json!({"opcode": "GET_FEATURE", "feature": "HW_HINTS", "register": null});
    let rules = [
        json!({"when": get_stats, "then": then, "skip": 1, "times": 1}),
        json!({"when": get_feature, "then": {"status": 255, "silence": true}, "times": null}),
        json!({"when": {"opcode": "ANY"}, "then": {"die": die}, "times": 0}),
        json!({"when": {"register": "ANY"}, "then": {"value": 4_294_967_295_u32}, "times": 0}),
        json!({"when": {"reset": true}, "then": {"with_event": true}}),
        json!({"when": {"work": "ANY"}, "then": {"hold": "some"}}),
    ];
    let injected = rules.map(|rule| json!({"command": "inject", "device": 1, "rule": rule}));
    let mut requests = vec![
        json!({"command": "hello"}),
        json!({"command": "hello", "protocol": 1}),
        json!({"command": "devices"}),
        json!({"command": "state"}),
        json!({"command": "state", "device": 1}),
        json!({"command": "trace", "device": 1}),
        json!({"command": "set", "device": 1, "set": {"ready": false, "max_eq": 0, "address": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]}}),
        json!({"command": "event", "device": 1, "group": "WARNING", "syndrome": 7, "count": 9}),
        json!({"command": "event", "device": 1, "group": 999, "after_reset": true, "after_commands": 2}),
        json!({"command": "trace", "device": 1}),
        json!({"command": "peek", "queue": {"cq": 1}, "offset": 16, "length": 16}),
        json!({"command": "poke", "queue": {"cq": 1}, "offset": 16, "data": [0, 255]}),
        json!({"command": "notify", "eq": 1, "cq": 1}),
        json!({"command": "notify", "eq": 1, "cq": 1, "count": 1}),
        json!({"command": "counters"}),
        json!({"command": "fabric"}),
        json!({"command": "fabric", "set": {"loss": 0.5, "paths": 3, "path": [{"down": true}, {"delay_us": 7}]}}),
        json!({"command": "snapshot"}),
        json!({"command": "snapshot", "device": 1}),
        json!({"command": "fail_qp", "qp": 1}),
        json!({"command": "die", "device": 1, "silent": true, "resets": 3, "how": "never_starts", "dma": true}),
        json!({"command": "unplug", "device": 1}),
        json!({"command": "state", "device": 1}),
        json!({"command": "plug", "device": 1}),
        json!({"command": "release", "device": 1, "name": "some", "count": 2}),
        json!({"command": "release", "device": 1, "name": "", "count": null}),
        json!({"command": "clear", "device": 1}),
    ];
    requests.extend(injected);
    requests
}

/// Invalid requests.
fn bad_requests() -> Vec<Value> {
    vec![
        json!({}),
        json!([]),
        json!({"command": "stat"}),
        json!({"command": "state", "device": -1}),
        json!({"command": "hello", "protocol": "1"}),
        json!({"command": "set", "set": {"max_eqq": 1}}),
        json!({"command": "set"}),
        json!({"command": "event", "group": "FATAL"}),
        json!({"command": "event", "group": 65_536}),
        json!({"command": "event", "group": 1, "count": 0}),
        json!({"command": "die", "resets": 0}),
        json!({"command": "die", "how": "loudly"}),
        json!({"command": "peek", "queue": {"sq": 1}, "length": 1}),
        json!({"command": "poke", "queue": {"cq": 1}, "data": [256]}),
        json!({"command": "fabric", "set": {"lost": 1}}),
        json!({"command": "inject", "rule": {"when": {"opcode": "CREATE"}, "then": {}}}),
        json!({"command": "inject", "rule": {"when": {"reset": true}, "then": {"sulk": true}}}),
        json!({"command": "inject", "rule": {"when": {"opcode": "ANY"}, "then": {"status": "BUSY"}}}),
        json!({"command": "inject", "rule": {"then": {"silence": true}}}),
        json!({"command": "inject", "rule": {"when": {"opcode": "ANY"}, "then": {"hold": 1}}}),
        json!({"command": "release"}),
        json!({"command": "release", "name": "some", "count": -1}),
    ]
}

#[test]
fn requests_and_replies_match_the_schemas() {
    let schemas = schemas();
    let requests = validator(&schemas["request"]);
    let replies = replies(&schemas);
    let emulator = Emulator::start(2, &[]);
    let mut guest = End::new(&emulator.device(0), QpType::Srd);
    let create = CreateEq {
        msix_vector: 0,
        ..create_eq(guest.region.iova)
    };
    assert_eq!(guest.machine.execute(&create).unwrap().eqn, 1);

    let mut answered = BTreeSet::new();
    for request in good_requests() {
        assert_eq!(misfit(&requests, &request), None, "{request}");
        let reply = emulator.ask(&request);
        assert!(reply.get("ok").is_some(), "{request}: {reply}");
        let command = request["command"].as_str().unwrap();
        assert_eq!(
            misfit(&replies[command], &reply),
            None,
            "{request}: {reply}"
        );
        // The schema does not accept arbitrary values of `ok`.
        for other in [json!({"ok": 7}), json!({}), json!([])] {
            assert!(!replies[command].is_valid(&other), "{command}: {other}");
        }
        answered.insert(command.to_owned());

        // Unknown fields are refused, by the schema and by the program.
        let mut more = request.clone();
        more["surprise"] = json!(true);
        assert!(misfit(&requests, &more).is_some(), "{more}");
        let refused = emulator.ask(&more);
        assert!(
            refused.to_string().contains("surprise"),
            "{more}: {refused}"
        );
        assert_eq!(misfit(&replies[command], &refused), None, "{refused}");
    }
    for request in bad_requests() {
        assert!(misfit(&requests, &request).is_some(), "{request}");
        let reply = emulator.ask(&request);
        assert!(reply.get("error").is_some(), "{request}: {reply}");
    }

    // Each command has a successful request above, so a new command needs one, too.
    let known: BTreeSet<_> = replies.keys().cloned().collect();
    assert_eq!(answered, known);
    let welcome = emulator.ask(&json!({"command": "hello"}));
    let listed = welcome["ok"]["commands"].as_array().unwrap().iter();
    let listed: BTreeSet<_> = listed
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    assert_eq!(listed, known);
    assert_eq!(welcome["ok"]["protocol"], schemas["protocol"]);
}
