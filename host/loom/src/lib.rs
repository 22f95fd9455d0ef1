// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lock-free structures of two tasks, in all orders and memory views that the language allows.
//!
//! `io/outstanding.rs`, `sys/spsc.rs` and `com/epoch.rs` are the driver's files, but with loom's atomic types. What an epoch names of
//! other files is a stand-in.

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

        /// As the kernel's type.
        pub(crate) struct Full;

        /// As the kernel's function.
        pub(crate) fn smp_mb(_: Full) {
            loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
        }
    }
    pub(crate) mod spsc;
}

#[path = "../../../efa_rs/com"]
#[allow(dead_code)]
mod com {
    pub(crate) mod epoch;

    mod bound {
        use core::marker::PhantomData;

        #[derive(Default)]
        pub(crate) struct BoundDevice<'bound> {
            pub(super) wakers: Wakers,
            bound: PhantomData<&'bound ()>,
        }

        #[derive(Default)]
        pub(super) struct Wakers {
            pub(super) monitor: Waker,
            pub(super) work: Waker,
        }

        #[derive(Default)]
        pub(super) struct Waker;

        impl Waker {
            pub(super) fn wake(&self) {}
        }
    }

    pub(crate) mod error {
        pub(crate) enum CommandError {
            Status(u8),
            NoSlot,
            Timeout,
        }
    }

    pub(crate) mod health {
        #[derive(Clone, Copy)]
        pub(crate) enum Cause {
            CommandTimeout,
            MemoryHeld,
        }
    }

    struct Controller;

    impl<'bound> epoch::Halt<'bound> for Controller {
        fn halt(&self, epoch: &epoch::Epoch<'bound>, _: health::Cause) {
            epoch.end(false);
        }
    }

    /// Returns the epoch of a running device, which its halt ends at once.
    pub(crate) fn running() -> kernel::sync::Arc<epoch::Epoch<'static>> {
        use kernel::{prelude::GFP_KERNEL, sync::Arc};
        let device = Arc::new(bound::BoundDevice::default(), GFP_KERNEL).unwrap();
        let controller = Arc::new(Controller, GFP_KERNEL).unwrap();
        epoch::Epoch::new(device, controller).unwrap()
    }
}

mod hw {
    pub(crate) mod admin {
        pub(crate) struct NoData {}
    }
}

use com::health::Cause;
use io::outstanding::{self, PollSide, PostSide, PostState, WrIndex};
use loom::{
    sync::{
        atomic::{fence, AtomicBool, AtomicU32, Ordering},
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

/// A request is posted while the device is halted. Its client polls after the halt, or is woken by the post.
#[test]
fn a_request_that_is_posted_in_a_halt_is_flushed() {
    loom::model(|| {
        let epoch = com::running();
        let (mut posts, mut polls) = queue(2);
        let seen = epoch.clone();
        let posting = thread::spawn(move || {
            post(&mut posts, 7).unwrap();
            // The barrier that follows the doorbell.
            fence(Ordering::SeqCst);
            seen.is_halted()
        });
        epoch.halt(Cause::MemoryHeld);
        let is_polled = polls.remove_posted().is_some();
        let wakes = posting.join().unwrap();
        assert!(is_polled || wakes);
        assert_eq!(polls.remove_posted().is_some(), !is_polled);
    });
}

/// What the epoch's end has to be seen with: whoever sees it may free memory.
#[test]
fn who_sees_the_end_of_an_epoch_sees_what_was_before() {
    loom::model(|| {
        let (epoch, written) = (com::running(), Arc::new(AtomicU32::new(0)));
        let (ending, last) = (epoch.clone(), written.clone());
        let halter = thread::spawn(move || {
            last.store(1, Ordering::Relaxed);
            ending.halt(Cause::CommandTimeout);
        });
        if epoch.is_halted() {
            assert_eq!(written.load(Ordering::Relaxed), 1);
        }
        halter.join().unwrap();
        assert!(epoch.is_halted());
    });
}

/// A device completes in another order, and indices are used again. Each request is found by its index, once.
#[test]
fn no_index_is_given_to_two_requests() {
    loom::model(|| {
        let (mut posts, mut polls) = queue(2);
        let first: Vec<_> = (0..2)
            .map(|number| post(&mut posts, number).unwrap().as_raw())
            .collect();
        let posting = thread::spawn(move || {
            (2..4)
                .filter_map(|number| Some((post(&mut posts, number)?.as_raw(), number)))
                .collect::<Vec<_>>()
        });
        for number in [1, 0] {
            assert_eq!(*polls.remove(first[number]).unwrap(), number as u64);
        }
        let later = posting.join().unwrap();
        for (index, number) in later {
            assert_eq!(*polls.remove(index).expect("a request is lost"), number);
        }
        assert!(polls.is_empty());
    });
}

/// A poll after a post is visible finds it, posted or closed.
#[test]
fn a_queue_that_seems_empty_has_nothing_older() {
    for closes in [false, true] {
        loom::model(move || {
            let (mut posts, polls) = queue(2);
            let has_posted = Arc::new(AtomicBool::new(false));
            let done = has_posted.clone();
            let posting = thread::spawn(move || {
                if closes {
                    posts.close();
                }
                post(&mut posts, 0).unwrap();
                done.store(true, Ordering::Release);
            });
            if has_posted.load(Ordering::Acquire) {
                assert!(!polls.is_empty());
                assert_eq!((polls.has_posted(), polls.has_closed()), (!closes, closes));
            }
            posting.join().unwrap();
        });
    }
}
