// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Asynchronous events: keep-alives, warnings and unknown groups.

use driver::{
    program::{Objects, Program},
    rig::{Rig, SECOND},
};
use efa_hw::aenq::AenqGroup;
use efa_model::Profile;
use ib_core::udata;
use kernel::sim;

use crate::{command, counter, messages, run_bound_as, run_with};

/// Depth of the driver's asynchronous event queue.
const DEPTH: u64 = 16;

/// Attributes: no keep-alives of the device, and the longest watchdog of the driver.
const QUIET: &str = r#"{"keep_alive_ms": 0, "driver_watchdog_timeout_ms": 65535}"#;

fn posted(rig: &Rig) -> u64 {
    rig.device().events
}

#[test]
fn keep_alives_are_counted() {
    run_bound_as(QUIET, |rig| {
        for number in 0..3 * DEPTH {
            assert_eq!(counter("keep_alive_rcvd"), number);
            rig.event(AenqGroup::KeepAlive.into(), 0);
            sim::sleep(SECOND / 100);
        }
        assert_eq!(posted(rig), 3 * DEPTH);
    });
}

#[test]
fn keep_alives_come_by_themselves() {
    run_bound_as(r#"{"keep_alive_ms": 20}"#, |_| {
        sim::sleep(SECOND);
        assert!((45..=51).contains(&counter("keep_alive_rcvd")));
    });
}

/// Handling an event queue that is never empty must not monopolize the CPU.
#[test]
fn a_storm_of_completion_events_leaves_time() {
    const RINGS: u64 = 20;
    run_bound_as(r#"{"max_eq_depth": 1024}"#, |rig| {
        let objects = Objects::new().unwrap();
        let start = sim::now();
        rig.shared.with(|device, _, now| {
            let snapshot = device.snapshot(now);
            let mut queues = snapshot.completion_queues.iter();
            let queue = queues.find(|queue| queue.eq.is_some()).expect("a queue");
            device
                .storm_of_completion_events(queue.eq, queue.number, RINGS * 1024)
                .unwrap()
        });
        while rig.device().storm != 0 {
            assert!(sim::now() - start < RINGS * SECOND, "the storm stays");
            sim::sleep(SECOND / 1000);
        }
        let took = sim::now() - start;
        drop(objects);
        assert!(took >= RINGS * SECOND / 100, "{took} ns");
        assert!(command().0.is_ok());
    });
}

/// The interrupts of a vector are lost. The driver looks for events itself.
#[test]
fn whose_interrupt_is_lost_are_handled() {
    run_bound_as(QUIET, |rig| {
        sim::disable_line(0);
        rig.event(AenqGroup::Warning.into(), 0);
        sim::keep_log(true);
        sim::sleep(3 * SECOND);
        assert!(messages("").concat().contains("WARNING"));
        assert_eq!(rig.state("lost_interrupts").as_deref(), Some("1"));
    });
}

/// All events arrive at once, and most do not fit into the ring.
#[test]
fn a_burst_overflows_the_ring() {
    run_bound_as(QUIET, |rig| {
        for _ in 0..20 * DEPTH {
            rig.shared.with(|device, machine, now| {
                device.post_event(machine, now, AenqGroup::KeepAlive.into(), 0)
            });
        }
        sim::sleep(SECOND);
        assert_eq!(counter("keep_alive_rcvd"), posted(rig));
        rig.event(AenqGroup::KeepAlive.into(), 0);
        sim::sleep(SECOND);
        assert_eq!(counter("keep_alive_rcvd"), posted(rig));
        rig.check_device();
    });
}

#[test]
fn of_each_group_are_logged() {
    for (group, name) in [(2, "WARNING"), (3, "NOTIFICATION"), (77, "0x4d")] {
        run_bound_as(QUIET, |rig| {
            sim::keep_log(true);
            rig.event(group, 0x12);
            sim::sleep(SECOND);
            let log = messages("");
            assert_eq!(log.len(), 1, "{log:?}");
            assert!(log[0].contains(name) && log[0].contains("0x12"), "{log:?}");
            rig.event(AenqGroup::KeepAlive.into(), 0);
            sim::sleep(SECOND);
            assert_eq!(counter("keep_alive_rcvd"), 1);
            assert_eq!(counter("resets"), 0);
        });
    }
}

/// An event of the last session arrives in the next one.
#[test]
fn of_the_last_session_are_ignored_or_obeyed() {
    for (group, resets) in [(4, 1), (2, 1), (77, 1), (1, 2)] {
        for after in [1, 3, 20, 60] {
            run_with(Profile::Efa3, |rig| {
                rig.set(QUIET);
                rig.probe().unwrap();
                rig.shared
                    .with(|device, _, _| device.post_event_late(group, 1, after));
                rig.event(AenqGroup::FatalError.into(), 1);
                rig.check_quiet();
                for _ in 0..40 {
                    let _ = command();
                    rig.check_quiet();
                }
                assert!(command().0.is_ok());
                let counted = counter("resets");
                assert!(
                    (1..=resets).contains(&counted),
                    "{group} {after}: {counted}"
                );
            });
        }
    }
}

/// The driver yields the CPU, and limits the rate of its messages.
#[test]
fn a_storm_does_not_block_others() {
    const STORM: u64 = 10_000;
    for group in [2, 77, 4] {
        run_bound_as(QUIET, |rig| {
            sim::keep_log(true);
            rig.shared
                .with(|device, _, _| device.storm(group, 1, STORM))
                .unwrap();
            assert!(command().0.is_ok());
            while rig.device().storm > 0 {
                sim::sleep(SECOND / 1000);
            }
            let lines = messages("").len();
            assert!(lines <= 40, "{lines} lines");
            assert_eq!(counter("resets"), 0);
        });
    }
}

#[test]
fn a_storm_of_fatal_errors_is_one_reset() {
    run_bound_as(QUIET, |rig| {
        rig.shared
            .with(|device, _, _| device.storm(AenqGroup::FatalError.into(), 1, 10_000))
            .unwrap();
        rig.check_quiet();
        assert_eq!(counter("resets"), 1);
        assert!(command().0.is_ok());
    });
}

/// All event queues have one limit on their messages.
#[test]
fn of_queues_that_are_gone_do_not_fill_the_log() {
    run_bound_as(QUIET, |rig| {
        sim::keep_log(true);
        rig.shared.with(|device, _, now| {
            let queues = device.snapshot(now).event_queues;
            assert!(queues.len() > 1);
            for queue in queues {
                let stormed = device.storm_of_completion_events(Some(queue.number), 0xfff0, 100);
                assert!(stormed.is_ok());
            }
        });
        sim::sleep(SECOND);
        assert_eq!(messages("err: Event queue").len(), 10);
    });
}

/// Events for a completion queue that does not exist arrive while the device dies.
#[test]
fn of_queues_that_are_gone_are_ignored() {
    run_with(Profile::Efa3, |rig| {
        rig.set(QUIET);
        rig.probe().unwrap();
        for number in 0..3 {
            rig.shared
                .with(|device, _, now| {
                    let queue = device.snapshot(now).event_queues[0].number;
                    device.storm_of_completion_events(Some(queue), 0xfff0, 1000)
                })
                .unwrap();
            rig.event(AenqGroup::FatalError.into(), 1);
            rig.check_quiet();
            assert_eq!(counter("resets"), number + 1);
            assert!(command().0.is_ok());
        }
    });
}

/// The core frees the queue, but not the entries of its events in the channel.
#[test]
fn of_a_queue_whose_creation_fails() {
    run_bound_as(QUIET, |rig| {
        let program = Program::new().unwrap();
        // A device can post this event at any time, such as one of an earlier queue.
        let shared = rig.shared.clone();
        let device = sim::spawn("device", move || {
            sim::sleep(SECOND / 100);
            shared.with(|device, _, now| {
                let queue = device.snapshot(now).completion_queues[0].number;
                device.storm_of_completion_events(None, queue, 1).unwrap();
            });
        });
        udata::set_unwritable(true);
        assert!(program.create_cq(16, true, None).is_err());
        sim::join(device);
        udata::set_unwritable(false);
        program.create_cq(16, true, None).unwrap();
    });
}
