// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The search for races.

use std::{cell::Cell, rc::Rc};

/// Returns the number of runs, and of those in which one of two increments is lost.
fn increments(bound: usize) -> (u64, u32) {
    let mut lost = 0;
    let runs = sim::search(bound, false, |policy| {
        let sum = sim::run(policy, || {
            let sum = Rc::new(Cell::new(0));
            let tasks = [(); 2].map(|()| {
                let sum = sum.clone();
                sim::spawn("increment", move || {
                    let old = sum.get();
                    sim::point();
                    sum.set(old + 1);
                })
            });
            sim::searched(|| tasks.into_iter().for_each(sim::join));
            sum.get()
        });
        lost += u32::from(sum != 2);
    });
    (runs, lost)
}

#[test]
fn one_preemption_loses_an_increment() {
    assert_eq!(increments(0), (1, 0));
    let (runs, lost) = increments(1);
    assert!(lost > 0 && u64::from(lost) < runs, "{lost} of {runs}");
    assert!(increments(2).0 > runs);
}

#[test]
fn the_same_schedules_are_tried_each_time() {
    assert_eq!(increments(2), increments(2));
}
