// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Each message arrives exactly once: a search of all orders in which the packets of two programs arrive, with bounded numbers of
//! losses, copies, retransmissions, lost links and restarts. With `EFA_LARGE`, the bounds are larger.
//!
//! The search runs the transport itself. A run is a sequence of choices, and the next run differs from it in the last choice that
//! has an alternative left.

mod run;

use std::collections::HashSet;

use self::run::{Bounds, CALM, Kind, Run};
use super::*;

/// Runs all schedules within the bounds; `check` looks at the end of each. Prints how many there are.
fn explore(property: &str, bounds: &Bounds, check: impl Fn(&Run)) {
    let (mut schedules, mut depth, mut states) = (0, 0, HashSet::new());
    // The choices of the next run: each with the number of its alternatives.
    let mut plan: Vec<(usize, usize)> = Vec::new();
    loop {
        let mut run = Run::new(bounds);
        let mut trace = Vec::new();
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut at = 0;
            loop {
                let actions = run.actions();
                if actions.is_empty() {
                    break;
                }
                if at == plan.len() {
                    plan.push((0, actions.len()));
                }
                let action = actions[plan[at].0];
                trace.push(action);
                run.act(action);
                at += 1;
                // A run that only repeats the choices of the last one has known states.
                if !states.insert(run.state()) && at >= plan.len() {
                    return;
                }
            }
            depth = depth.max(at);
            run.finish();
            check(&run);
            let held = run.programs.nets.iter().map(|net| net.fabric.held(PortId(0)));
            assert_eq!(held.sum::<usize>(), 0, "the transport holds messages that have ended");
        }));
        if let Err(panic) = failed {
            println!("{property}: {trace:?}");
            std::panic::resume_unwind(panic);
        }
        schedules += 1;
        while plan.last().is_some_and(|(choice, count)| choice + 1 == *count) {
            plan.pop();
        }
        match plan.last_mut() {
            Some((choice, _)) => *choice += 1,
            None => break,
        }
    }
    println!("{property}: {schedules} schedules, {} states, depth {depth}", states.len());
    assert!(schedules > 1, "{property}: {schedules} schedules");
}

/// All messages have ended without an error, and arrived.
fn all_arrive(run: &Run) {
    let count = run.left.lengths.len();
    assert!(run.ended.len() == count && run.ended.iter().all(|(_, how)| *how == OK), "{:?}", run.ended);
    let arrives = run.left.kind != Kind::Read;
    assert_eq!(run.arrived.len(), if arrives { count } else { 0 });
}

/// Returns the first value, or with `EFA_LARGE` the second one.
fn sized<T>(small: T, large: T) -> T {
    match std::env::var_os("EFA_LARGE") {
        Some(_) => large,
        None => small,
    }
}

#[test]
fn messages_arrive_once_in_any_order_of_packets() {
    let lengths = sized(&[100; 3][..], &[100; 4]);
    explore("order", &Bounds { lengths, ..CALM }, all_arrive);
}

#[test]
fn messages_arrive_once_if_packets_are_lost() {
    let (losses, waits) = sized((1, 0), (1, 1));
    explore("losses", &Bounds { losses, waits, ..CALM }, all_arrive);
}

#[test]
fn messages_arrive_once_if_packets_are_duplicated() {
    let copies = sized(1, 3);
    explore("copies", &Bounds { copies, ..CALM }, all_arrive);
}

#[test]
fn messages_arrive_once_if_packets_are_sent_again_too_early() {
    let (lengths, waits) = sized((&[100; 1][..], 2), (&[100; 1], 3));
    explore("retransmissions", &Bounds { lengths, waits, ..CALM }, all_arrive);
}

#[test]
fn messages_arrive_once_with_all_faults_of_a_network() {
    let (losses, copies) = sized((1, 1), (2, 1));
    let bounds = Bounds { lengths: &[100], losses, copies, waits: 1, ..CALM };
    explore("faults", &bounds, all_arrive);
}

#[test]
fn messages_arrive_once_if_a_link_is_lost() {
    let waits = sized(0, 1);
    explore("links", &Bounds { relinks: 1, waits, ..CALM }, all_arrive);
}

/// A message ends with an error if its peer may not have got it. None arrives at both peers.
#[test]
fn messages_arrive_at_most_once_if_a_peer_is_restarted() {
    let waits = sized(0, 1);
    explore("restarts", &Bounds { restarts: 1, waits, ..CALM }, |run| {
        assert!(run.is_other);
        assert_eq!(run.ended.len(), run.left.lengths.len());
    });
}

#[test]
fn messages_wait_for_a_receiver_that_is_not_ready() {
    let waits = sized(1, 2);
    explore("receives", &Bounds { lengths: &[100], is_late: true, waits, ..CALM }, all_arrive);
}

/// A write of two packets.
#[test]
fn writes_arrive_once_and_whole() {
    let (losses, copies) = sized((1, 1), (2, 1));
    let bounds = Bounds { kind: Kind::Write, lengths: &[9000], losses, copies, ..CALM };
    explore("writes", &bounds, all_arrive);
}

/// A read whose response has two packets.
#[test]
fn reads_end_once_and_whole() {
    let losses = sized(0, 1);
    let bounds = Bounds { kind: Kind::Read, lengths: &[9000], losses, copies: 1, ..CALM };
    explore("reads", &bounds, all_arrive);
}
