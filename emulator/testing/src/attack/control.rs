// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A client of the control socket that sends faulty requests and arbitrary bytes.

use super::Input;

/// Requests that the program carries out if device 0 has a completion queue and an event queue with the number 1: all commands,
/// with all fields.
pub const REQUESTS: &str = r#"
{"command":"hello"}
{"command":"hello","protocol":1}
{"command":"devices"}
{"command":"devices","device":1}
{"command":"state"}
{"command":"state","device":1}
{"command":"trace","device":1}
{"command":"set","device":1,"set":{"ready":false,"max_eq":0,"address":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]}}
{"command":"event","device":1,"group":"WARNING","syndrome":7,"count":9}
{"command":"event","device":1,"group":999,"after_reset":true,"after_commands":2}
{"command":"trace","device":1}
{"command":"peek","queue":{"cq":1},"offset":16,"length":16}
{"command":"poke","queue":{"cq":1},"offset":16,"data":[0,255]}
{"command":"notify","eq":1,"cq":1}
{"command":"notify","eq":1,"cq":1,"count":1}
{"command":"counters"}
{"command":"counters","device":1}
{"command":"fabric"}
{"command":"fabric","set":{"loss":0.5,"paths":3,"path":[{"down":true},{"delay_us":7}]}}
{"command":"snapshot"}
{"command":"snapshot","device":1}
{"command":"fail_qp","qp":1}
{"command":"die","device":1,"silent":true,"resets":3,"how":"never_starts","dma":true}
{"command":"unplug","device":1}
{"command":"state","device":1}
{"command":"plug","device":1}
{"command":"release","device":1,"name":"some","count":2}
{"command":"release","device":1,"name":"","count":null}
{"command":"clear","device":1}
{"command":"inject","device":1,"rule":{"when":{"opcode":"GET_STATS","stats":"NETWORK"},"then":{"status":"RESOURCE_BUSY","delay_ms":1,"corrupt":[{"offset":8,"value":255}],"after_reset":true,"after_commands":2},"skip":1,"times":1}}
{"command":"inject","device":1,"rule":{"when":{"opcode":"GET_FEATURE","feature":"HW_HINTS","register":null},"then":{"status":255,"silence":true},"times":null}}
{"command":"inject","device":1,"rule":{"when":{"opcode":"ANY"},"then":{"die":{"silent":true,"resets":2,"how":"never_ends","dma":false}},"times":0}}
{"command":"inject","device":1,"rule":{"when":{"register":"ANY"},"then":{"value":4294967295},"times":0}}
{"command":"inject","device":1,"rule":{"when":{"reset":true},"then":{"with_event":true}}}
{"command":"inject","device":1,"rule":{"when":{"work":"ANY"},"then":{"hold":"some"}}}
"#;

/// Replacements for numbers in requests.
const VALUES: &str = "0 1 2 255 65535 65536 4294967295 4294967296 18446744073709551615 \
    18446744073709551616 -1 0.5 1e308 null true [[[[{}]]]]";

/// Limit on requests of an attack.
const MAX_REQUESTS: usize = 64;

/// Returns a request, of which some parts may be replaced, or arbitrary bytes.
fn request(input: &mut Input<'_>) -> Vec<u8> {
    let choice = usize::from(input.byte());
    if choice >= 224 {
        return (0..input.byte()).map(|_| input.byte()).collect();
    }
    let requests: Vec<_> = REQUESTS.trim().lines().collect();
    let values: Vec<_> = VALUES.split(' ').collect();
    let mut bytes = requests[choice % requests.len()].as_bytes().to_vec();
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
                let value = values[usize::from(kind) % values.len()].bytes();
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
