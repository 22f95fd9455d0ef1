// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Encodings, byte by byte, as a device expects them.

mod attributes;
mod commands;
mod queues;
mod responses;

use efa_hw::admin::{AqEntry, Command, Protocol, Response, event_counter};

/// Returns `N` bytes that are zero except for the given parts at the given offsets.
fn sparse<const N: usize>(parts: &[(usize, &[u8])]) -> [u8; N] {
    let mut bytes = [0; N];
    for (offset, part) in parts {
        bytes[*offset..*offset + part.len()].copy_from_slice(part);
    }
    bytes
}

/// Returns the entry of a command in the format of interface 0.1, without id and phase. Checks that the
/// format of 0.3 agrees.
fn entry(command: &impl Command) -> [u8; 64] {
    let request = command.to_request();
    let entry = AqEntry::new(Protocol::V1, &request, 0, false);
    let newer = AqEntry::new(Protocol::V2, &request, 0, false);
    assert_eq!(newer.bytes()[..4], entry.bytes()[..4]);
    assert_eq!(newer.bytes()[6..12], [0; 6]);
    assert_eq!(newer.bytes()[12..72], entry.bytes()[4..]);
    assert_eq!(newer.bytes()[72..], [0; 56]);
    assert_eq!((entry.request(), newer.request()), (request, request));
    entry.bytes().try_into().unwrap()
}

/// Checks the entry of a command: bytes that are zero except for the given parts.
#[track_caller]
fn check_command(command: &impl Command, parts: &[(usize, &[u8])]) {
    assert_eq!(entry(command), sparse(parts));
}

/// As [`check_command`], for the entry of a response.
#[track_caller]
fn check_response(response: &impl Response, parts: &[(usize, &[u8])]) {
    assert_eq!(response.to_entry(), sparse(parts));
}

/// A subset of the countable events.
const QP_EVENTS: event_counter::QpEvents = event_counter::QpEvents {
    send_comp: true,
    send_comp_err: false,
    recv_comp: true,
    recv_comp_err: false,
    read_comp: true,
    read_comp_err: false,
    write_comp: true,
    write_comp_err: false,
    remote_read_comp: false,
    remote_write_comp: true,
};
