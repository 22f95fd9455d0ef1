// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lock-free structures of two tasks, in all orders and memory views that the language allows.
//!
//! `io/outstanding.rs` and `sys/spsc.rs` are the driver's files, but with loom's atomic types.

#![cfg(test)]

#[path = "../../../efa_rs/io"]
#[allow(dead_code)]
mod io {
    pub(crate) mod outstanding;
}

#[path = "../../../efa_rs/sys"]
mod sys {
    pub(crate) mod atomic {
        pub(crate) use loom::{
            cell::UnsafeCell,
            sync::atomic::{
                AtomicBool, AtomicU32, AtomicU8,
                Ordering::{Acquire, Relaxed, Release},
            },
        };
    }
    pub(crate) mod spsc;
}

use io::outstanding::{self, PollSide, PostSide, PostState, WrIndex};
use loom::{
    sync::{
        atomic::{AtomicU32, Ordering},
        Arc,
    },
    thread,
};
use sys::spsc::{self, Label};

fn queue(count: u32) -> (PostSide<Box<u64>>, PollSide<Box<u64>>) {
    outstanding::new(count).unwrap()
}

/// Posts a work request, if there is room.
fn post(queue: &mut PostSide<Box<u64>>, number: u64) -> Option<WrIndex> {
    let is_closed = queue.state() == PostState::Closed;
    let room = queue.room()?;
    let index = room.index();
    // On the heap, so that a lost or duplicated request is detected.
    let request = Box::new(number);
    if is_closed {
        room.put_closed(request);
    } else {
        room.put(request);
    }
    Some(index)
}

/// Work requests are posted, completed by a device, and polled.
#[test]
fn each_completion_finds_its_request() {
    loom::model(|| {
        let (mut posts, mut polls) = queue(2);
        // Completions of the device: index plus one, or 0 for none.
        let completed: Arc<[AtomicU32; 3]> =
            Arc::new([AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)]);

        let posting = {
            let completed = completed.clone();
            thread::spawn(move || {
                let mut posted = 0;
                for number in 0..3 {
                    if let Some(index) = post(&mut posts, number) {
                        completed[number as usize]
                            .store(u32::from(index.as_raw()) + 1, Ordering::Release);
                        posted += 1;
                    }
                }
                posted
            })
        };
        let mut polled = 0;
        for number in 0..3 {
            match completed[number as usize].load(Ordering::Acquire) {
                0 => {}
                index => {
                    let request = polls.remove(index as u16 - 1);
                    assert_eq!(*request.expect("it is outstanding"), number);
                    polled += 1;
                }
            }
        }
        let posted = posting.join().unwrap();
        assert!(posted >= 2);
        let mut left = 0;
        while polls.remove_posted().is_some() {
            left += 1;
        }
        assert_eq!(posted, polled + left);
        assert!(polls.is_empty());
    });
}

/// A device completes arbitrary indices: each request is still found once, and intact.
#[test]
fn a_device_that_lies_gets_whole_requests() {
    loom::model(|| {
        let (mut posts, mut polls) = queue(2);
        let posting = thread::spawn(move || {
            (0..3)
                .filter(|number| post(&mut posts, *number).is_some())
                .collect::<Vec<_>>()
        });
        let mut found: Vec<_> = [0, 1, 0]
            .into_iter()
            .filter_map(|index| polls.remove(index))
            .collect();
        let posted = posting.join().unwrap();
        found.extend(std::iter::from_fn(|| polls.remove_posted()));
        let mut found: Vec<_> = found.into_iter().map(|request| *request).collect();
        found.sort_unstable();
        assert_eq!(found, posted);
    });
}

/// A queue is closed while the device completes. Later requests complete in order, and last.
#[test]
fn a_closed_queue_completes_in_order() {
    loom::model(|| {
        let (mut posts, mut polls) = queue(3);
        post(&mut posts, 0).unwrap();
        let posting = thread::spawn(move || {
            posts.close();
            (1..3).for_each(|number| assert!(post(&mut posts, number).is_some()));
        });
        let mut found = Vec::new();
        let mut poll = |device: bool| {
            if device {
                // The device completes its request, and invalid ones.
                found.extend((0..3).filter_map(|index| polls.remove(index)));
            }
            found.extend(polls.remove_closed());
        };
        poll(false);
        poll(true);
        posting.join().unwrap();
        poll(false);
        poll(false);
        let found: Vec<_> = found.into_iter().map(|request| *request).collect();
        assert_eq!(found, [0, 1, 2]);
        assert!(polls.is_empty());
    });
}

/// Requests that were not polled are dropped with their queue.
#[test]
fn what_is_not_polled_is_dropped() {
    loom::model(|| {
        let (mut posts, mut polls) = outstanding::new(2).unwrap();
        let request = std::sync::Arc::new(());
        for _ in 0..2 {
            posts.room().unwrap().put(request.clone());
        }
        drop(polls.remove(0));
        assert_eq!(std::sync::Arc::strong_count(&request), 2);
        polls.reset(&mut posts);
        assert_eq!(std::sync::Arc::strong_count(&request), 1);
        posts.room().unwrap().put(request.clone());
        drop((posts, polls));
        assert_eq!(std::sync::Arc::strong_count(&request), 1);
    });
}

/// A slot is refilled as soon as it is empty, by a producer that synchronizes by the slot only.
#[test]
fn a_slot_is_used_again() {
    loom::model(|| {
        let (mut producer, mut consumer) = spsc::slots(1, ()).unwrap();
        producer.put(0, Label::Posted, Box::new(1)).unwrap();
        let producing = thread::spawn(move || producer.put(0, Label::Closed, Box::new(2)).is_ok());
        let first = consumer.take(0, Label::Posted);
        assert_eq!(first.as_deref(), Some(&1));
        let is_put = producing.join().unwrap();
        let second = consumer.take(0, Label::Closed);
        assert_eq!(second.as_deref().copied(), is_put.then_some(2));
    });
}
