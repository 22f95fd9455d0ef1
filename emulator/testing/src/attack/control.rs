// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A client of the control socket that sends faulty requests and arbitrary bytes.

use crate::input::Input;

/// Valid requests of each kind.
const REQUESTS: [&str; 28] = [
    r#"{"command":"hello","protocol":1}"#,
    r#"{"command":"devices"}"#,
    r#"{"command":"state","device":0}"#,
    r#"{"command":"trace"}"#,
    r#"{"command":"counters"}"#,
    r#"{"command":"inject","device":1,"rule":{"when":{"opcode":"ANY"},"then":{"delay_ms":50}}}"#,
    r#"{"command":"inject","rule":{"when":{"opcode":"CREATE_CQ"},"then":{"status":"RESOURCE_BUSY"},"skip":2,"times":1}}"#,
    r#"{"command":"inject","rule":{"when":{"reset":"NORMAL"},"then":{"die":{"silent":true}},"times":3}}"#,
    r#"{"command":"inject","rule":{"when":{"register":"DEV_STS"},"then":{"value":7}}}"#,
    r#"{"command":"inject","rule":{"when":{"work":"ANY"},"then":{"hold":"x"},"times":9}}"#,
    r#"{"command":"release","name":"x","count":1}"#,
    r#"{"command":"set","set":{"keep_alive_ms":0,"max_eq":0}}"#,
    r#"{"command":"set","set":{"max_qp":4294967295,"link_gbps":1000,"rdma_read":false}}"#,
    r#"{"command":"event","group":"FATAL_ERROR","syndrome":1}"#,
    r#"{"command":"event","group":65535,"count":1000000}"#,
    r#"{"command":"event","group":"KEEP_ALIVE","after_reset":true,"after_commands":3}"#,
    r#"{"command":"die","resets":3,"how":"never_ends","dma":true}"#,
    r#"{"command":"unplug","device":0}"#,
    r#"{"command":"plug","device":0}"#,
    r#"{"command":"clear"}"#,
    r#"{"command":"peek","queue":{"rq":1},"offset":16,"length":16}"#,
    r#"{"command":"peek","queue":"aq","offset":0,"length":4096}"#,
    r#"{"command":"poke","queue":{"cq":1},"offset":0,"data":[1,2]}"#,
    r#"{"command":"notify","cq":1,"count":1000000}"#,
    r#"{"command":"notify","eq":1,"cq":999}"#,
    r#"{"command":"fabric","set":{"loss":0.01,"jitter_us":200}}"#,
    r#"{"command":"fabric","set":{"paths":256,"path":[{"down":true},{"loss":0.5}],"rack":4}}"#,
    r#"{"command":"fabric"}"#,
];

/// Replacements for numbers in requests.
const VALUES: [&str; 16] = [
    "0",
    "1",
    "2",
    "255",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "0.5",
    "1e308",
    "null",
    "true",
    "[[[[{}]]]]",
];

/// Limit on requests of an attack.
const MAX_REQUESTS: usize = 64;

/// Returns a request, of which some parts may be replaced, or arbitrary bytes.
fn request(input: &mut Input<'_>) -> Vec<u8> {
    let choice = usize::from(input.byte());
    if choice >= 224 {
        return (0..input.byte()).map(|_| input.byte()).collect();
    }
    let mut bytes = REQUESTS[choice % REQUESTS.len()].as_bytes().to_vec();
    for _ in 0..input.byte() % 4 {
        if bytes.is_empty() {
            break;
        }
        let at = usize::from(input.byte()) % bytes.len();
        match input.byte() {
            // Replaces the next number, if there is one.
            kind @ 0..=159 => {
                let is_digit = |at: &usize| bytes[*at].is_ascii_digit();
                let Some(start) = (at..bytes.len()).find(is_digit) else {
                    continue;
                };
                let end = (start..bytes.len()).find(|at| !is_digit(at));
                let value = VALUES[usize::from(kind) % VALUES.len()].bytes();
                bytes.splice(start..end.unwrap_or(bytes.len()), value);
            }
            160..=191 => bytes[at] = input.byte(),
            192..=223 => {
                bytes.insert(at, input.byte());
            }
            224..=247 => {
                bytes.remove(at);
            }
            _ => bytes.truncate(at + 1),
        }
    }
    bytes
}

/// Plays an attack on `reply`, which handles requests.
pub fn play(data: &[u8], reply: impl Fn(&[u8]) -> Vec<u8>) {
    let mut input = Input(data);
    for _ in 0..MAX_REQUESTS {
        if input.is_empty() {
            break;
        }
        let reply = reply(&request(&mut input));
        // A single line, with a result or an error.
        assert!(reply.starts_with(b"{\"ok\":") || reply.starts_with(b"{\"error\":\""));
        let end = reply.iter().position(|byte| *byte == b'\n');
        assert_eq!(end, Some(reply.len() - 1));
    }
}
