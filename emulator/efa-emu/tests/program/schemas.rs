// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The schemas of the control protocol, and the program's requests and replies.

use efa_testing::attack::control::REQUESTS;
use jsonschema::Validator;

use super::*;

/// Returns the output of `efa-emu schema`.
fn schemas() -> Value {
    let output = run(program().arg("schema"));
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
    replies.iter().map(|(command, schema)| (command.clone(), validator(schema))).collect()
}

/// Requests that the schema refuses, too, and a part of the program's answer.
const BAD: &str = r#"
{} | missing field `command`
[] | invalid type
{"command":"stat"} | variant `stat`, expected one of `hello`, `devices`, `state`
{"command":"state","device":-1} | invalid value
{"command":"hello","protocol":"1"} | invalid type
{"command":"set","set":{"max_eqq":1}} | unknown field `max_eqq`
{"command":"set"} | missing field `set`
{"command":"event","group":"FATAL"} | event group "FATAL", only FATAL_ERROR
{"command":"event","group":65536} | no event group 65536
{"command":"event","group":1,"count":0} | nonzero
{"command":"die","resets":0} | nonzero
{"command":"die","how":"loudly"} | expected `never_starts` or `never_ends`
{"command":"peek","queue":{"sq":1},"length":1} | unknown variant `sq`
{"command":"poke","queue":{"cq":1},"data":[256]} | 256
{"command":"fabric","set":{"lost":1}} | unknown field `lost`
{"command":"inject","rule":{"when":{"opcode":"CREATE"},"then":{}}} | CREATE
{"command":"inject","rule":{"when":{"reset":true},"then":{"sulk":true}}} | sulk
{"command":"inject","rule":{"when":{"opcode":"ANY"},"then":{"status":"BUSY"}}} | BUSY
{"command":"inject","rule":{"when":{"opcode":"ANY"},"then":{"hold":1}}} | invalid type
{"command":"inject","rule":{"then":{"silence":true}}} | missing field `when`
{"command":"release"} | missing field `name`
{"command":"release","name":"some","count":-1} | invalid value
"#;

/// Requests that only the program refuses.
const REFUSED: &str = r#"
{"command":"hello","protocol":2} | version 2 is not supported: this program supports version 1
{"command":"hello","device":0} | unknown field `device`
{"command":"state","device":2} | there is no device 2; the last one is 1
{"command":"snapshot","device":2} | there is no device 2; the last one is 1
{"command":"inject","rule":{"when":{},"then":{}}} | `when` needs
{"command":"event","group":1,"count":1,"after_reset":true} | but not both
{"command":"event","group":1,"after_commands":1} | `after_commands` needs `after_reset`
{"command":"fabric","set":{"loss":1.5}} | loss must be between 0 and 1
{"command":"peek","queue":{"cq":7},"length":8} | there is no completion queue 7
{"command":"peek","queue":{"rq":2},"length":4097} | at most 4096 bytes
{"command":"poke","queue":{"rq":2},"offset":8,"data":[1,255]} | there is no receive queue of a queue pair 2
{"command":"notify","cq":7} | there is no completion queue 7
{"command":"notify","cq":7,"count":2} | there is no completion queue 7
{"command":"notify","eq":4,"cq":3} | there is no event queue 4
{"command":"fail_qp","qp":9} | there is no queue pair 9
"#;

/// Lines that are no requests.
const NO_REQUESTS: [(&[u8], &str); 4] =
    [(b"{", "EOF"), (b"", "EOF"), (b"\xff\xfe", ""), (&[b'{'; 1 << 17], "a request is at most 65536 bytes")];

fn good() -> impl Iterator<Item = Value> {
    REQUESTS.trim().lines().map(|line| line.parse().unwrap())
}

#[test]
fn requests_and_replies_match_the_schemas() {
    let schemas = schemas();
    let requests = validator(&schemas["request"]);
    let replies = replies(&schemas);
    let emulator = Emulator::start(2, &[]);
    let mut guest = End::new(&emulator.device(0), QpType::Srd);
    let create = CreateEq { msix_vector: 0, ..create_eq(guest.region.iova) };
    assert_eq!(guest.machine.execute(&create).unwrap().eqn, 1);

    let mut answered = BTreeSet::new();
    for request in good() {
        assert_eq!(misfit(&requests, &request), None, "{request}");
        let reply = emulator.ask(&request);
        assert!(reply.get("ok").is_some(), "{request}: {reply}");
        let command = request["command"].as_str().unwrap();
        assert_eq!(misfit(&replies[command], &reply), None, "{request}: {reply}");
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
        assert!(refused.to_string().contains("surprise"), "{more}: {refused}");
        assert_eq!(misfit(&replies[command], &refused), None, "{refused}");
    }
    let mut control = emulator.connect();
    for (lines, matches) in [(BAD, false), (REFUSED, true)] {
        for line in lines.trim().lines() {
            let (request, part) = line.split_once(" | ").unwrap();
            let misfit = misfit(&requests, &request.parse().unwrap());
            assert_eq!(misfit.is_none(), matches, "{request}");
            control.refuses(request, part);
        }
    }
    for (line, part) in NO_REQUESTS {
        control.refuses(line, part);
    }

    // Each command has a successful request above, so a new command needs one, too.
    let known: BTreeSet<_> = replies.keys().cloned().collect();
    assert_eq!(answered, known);
    let welcome = emulator.ask(&json!({"command": "hello"}));
    let listed = welcome["ok"]["commands"].as_array().unwrap().iter();
    let listed: BTreeSet<_> = listed.map(|name| name.as_str().unwrap().to_owned()).collect();
    assert_eq!(listed, known);
    assert_eq!(welcome["ok"]["protocol"], schemas["protocol"]);
    assert_eq!(welcome["ok"]["program"], "efa-emu");
    assert_eq!(welcome["ok"]["version"], env!("CARGO_PKG_VERSION"));
}

/// Each scope refuses some commands, whether or not they would succeed.
#[test]
fn scopes_refuse_commands() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let names = ["read-only", "no-debugging", "device=1"];
    let options = names.map(|name| ["--control".into(), format!("{},{name}", path(name))]);
    let options: Vec<_> = options.iter().flatten().map(String::as_str).collect();
    let _emulator = Emulator::start(2, &options);
    let changes = "inject release set event fail_qp die unplug plug clear peek poke notify trace fabric";
    for (name, expected) in names.into_iter().zip([changes, "peek poke notify", "fabric"]) {
        let mut control = Control::connect(path(name).as_ref());
        let mut refused = BTreeSet::new();
        for mut request in good() {
            if name == "device=1" {
                request.as_object_mut().unwrap().remove("device");
            }
            let reply = control.ask(&request);
            let error = reply["error"].as_str().unwrap_or_default();
            if error.starts_with("this control socket is ") {
                refused.insert(request["command"].as_str().unwrap().to_owned());
            } else if request["command"] == "fabric" {
                assert!(name != "read-only" || request.get("set").is_none(), "{reply}");
            }
        }
        assert_eq!(refused, expected.split(' ').map(Into::into).collect(), "{name}");
    }
}
