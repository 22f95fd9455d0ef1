// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The numbers that two tasks share without a lock, in all orders and all views of memory that the language allows.
//!
//! `io/outstanding.rs` is the driver's own; what it has from `sys/atomic.rs` is loom's here.

#![cfg(test)]

#[path = "../../../efa_rs/io"]
#[allow(dead_code)]
mod io {
    pub(crate) mod outstanding;
}

mod sys {
    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{
            AtomicBool, AtomicU32, AtomicU64, AtomicU8,
            Ordering::{Acquire, Relaxed, Release},
        };
    }
}

use io::outstanding::{Outstanding, Request};
use loom::{
    sync::{
        atomic::{AtomicU32, Ordering},
        Arc,
    },
    thread,
};

fn request(number: u64) -> Request {
    Request {
        wr_id: 1000 + number,
        op_type: number as u8,
    }
}

/// Work requests are posted, completed by a device, and polled.
#[test]
fn each_completion_finds_its_request() {
    loom::model(|| {
        let outstanding = Arc::new(Outstanding::new(2).unwrap());
        // What the device has completed: index plus one, 0 for nothing.
        let completed: Arc<[AtomicU32; 3]> =
            Arc::new([AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)]);

        let posts = {
            let (outstanding, completed) = (outstanding.clone(), completed.clone());
            thread::spawn(move || {
                let mut posted = 0;
                for number in 0..3 {
                    if let Some(index) = outstanding.add(request(number)) {
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
                    let request = outstanding
                        .remove(index as u16 - 1)
                        .expect("it is outstanding");
                    assert_eq!(request.wr_id, 1000 + number);
                    assert_eq!(request.op_type, number as u8);
                    polled += 1;
                }
            }
        }
        let posted = posts.join().unwrap();
        assert!(posted >= 2);
        let mut left = 0;
        while outstanding.remove_posted().is_some() {
            left += 1;
        }
        assert_eq!(posted, polled + left);
        assert!(outstanding.is_empty());
    });
}

/// A device completes what it likes: each request is found once, and whole.
#[test]
fn a_device_that_lies_gets_whole_requests() {
    loom::model(|| {
        let outstanding = Arc::new(Outstanding::new(2).unwrap());
        let posts = {
            let outstanding = outstanding.clone();
            thread::spawn(move || {
                (0..3)
                    .filter(|number| outstanding.add(request(*number)).is_some())
                    .count()
            })
        };
        let mut found = 0;
        for index in [0, 1, 0] {
            if let Some(request) = outstanding.remove(index) {
                assert_eq!(request.wr_id, 1000 + u64::from(request.op_type));
                found += 1;
            }
        }
        let posted = posts.join().unwrap();
        while let Some(request) = outstanding.remove_posted() {
            assert_eq!(request.wr_id, 1000 + u64::from(request.op_type));
            found += 1;
        }
        assert_eq!(found, posted);
    });
}

/// A queue is closed while the device completes what it was given: what is added then completes in its order, and last.
#[test]
fn a_closed_queue_completes_in_order() {
    loom::model(|| {
        let outstanding = Arc::new(Outstanding::new(3).unwrap());
        outstanding.add(request(0)).unwrap();
        let posts = {
            let outstanding = outstanding.clone();
            thread::spawn(move || {
                outstanding.close();
                (1..3).for_each(|number| assert!(outstanding.add(request(number)).is_some()));
            })
        };
        let mut found = Vec::new();
        let mut poll = |device: bool| {
            if device {
                // The device completes what it was given, and lies.
                found.extend((0..3).filter_map(|index| outstanding.remove(index)));
            }
            found.extend(outstanding.remove_closed());
        };
        poll(false);
        poll(true);
        posts.join().unwrap();
        poll(false);
        poll(false);
        let found: Vec<_> = found.iter().map(|request| request.wr_id).collect();
        assert_eq!(found, [1000, 1001, 1002]);
        assert!(outstanding.is_empty());
    });
}
