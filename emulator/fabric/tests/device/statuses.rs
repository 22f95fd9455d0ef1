// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How work requests fail, for each status that exists. None of them moves a byte.

mod flushes;
mod peers;
mod requests;

use super::*;

/// Returns the settings of a network by default.
fn ideal() -> Peers {
    Peers::new(Settings::default())
}

/// Posts a work request with one fault, by default a write. It must end with a status, change no memory, and leave the queue pair
/// usable.
#[track_caller]
fn refused(expected: CompStatus, what: &str, change: impl FnOnce(&mut Peers, &mut Send)) {
    let mut peers = ideal();
    let mut send = peers.write(100);
    change(&mut peers, &mut send);
    peers.post(&send);
    assert_eq!(peers.status(0), expected, "{what}");
    assert_eq!(peers.poll(1), None, "{what}");
    assert!(peers.are_untouched(), "{what}");
    peers.introduce();
    let write = peers.write(100);
    assert_eq!(peers.outcome(&write), OK, "after {what}");
    assert_eq!(peers.protocol_errors(), 0, "{what}");
}

/// A fault of a work request, and its description.
type Fault = (&'static str, Change<Send>);

/// Tries each of these faults.
#[track_caller]
fn all_refused(expected: CompStatus, faults: &[Fault]) {
    for (what, change) in faults {
        refused(expected, what, |_, send| change(send));
    }
}

/// The guide lists all statuses, with the test of each.
#[test]
fn every_status_has_a_source_and_a_test() {
    let tests = concat!(
        include_str!("statuses/flushes.rs"),
        include_str!("statuses/peers.rs"),
        include_str!("statuses/requests.rs"),
    );
    let guide = include_str!("../../../../Documentation/emulator.md");
    let statuses = (1..=u8::MAX).filter_map(|code| Some((code, CompStatus::try_from(code).ok()?)));
    for (code, status) in statuses {
        let start = format!("| {code} | `{status}` |");
        let rows: Vec<_> = guide.lines().filter(|line| line.starts_with(&start)).collect();
        assert_eq!(rows.len(), 1, "{start}");
        let test = rows[0].trim_end_matches(" |").rsplit("| ").next().unwrap();
        let test = format!("fn {}()", test.trim_matches('`'));
        assert!(tests.contains(&test), "{}", rows[0]);
    }
}
