// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lives of seeds, and of bytes that a fuzzer has chosen. `make schedules` and `make fuzz-driver` look for others.

use std::{cell::RefCell, io::Write, panic, sync::Once};

use driver::life;

/// How many seeds there are.
const SEEDS: u64 = 2000;

/// What the fuzzer has found to reach different code: a line of hexadecimal digits each. `make fuzz-driver KEEP=1` writes it.
const CORPUS: &str = include_str!("corpus.txt");

thread_local! {
    static LIFE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Has a panic name the life, even if the process is aborted by what follows.
fn name_lives() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let life = LIFE.with(|life| life.borrow().clone());
            if !life.is_empty() {
                // Not kept back by the test harness, as that is lost when the process aborts.
                let _ = writeln!(std::io::stderr(), "{life}: {info}");
            }
            hook(info);
        }));
    });
}

fn live(name: String, life: impl FnOnce()) {
    name_lives();
    LIFE.with(|slot| *slot.borrow_mut() = name);
    life();
    LIFE.with(|slot| slot.borrow_mut().clear());
}

#[test]
fn hold() {
    for seed in 0..SEEDS {
        live(format!("seed {seed}"), || life::schedule(seed));
    }
}

fn byte(digits: &[u8]) -> u8 {
    let digits = std::str::from_utf8(digits).expect("digits");
    u8::from_str_radix(digits, 16).expect("two hexadecimal digits")
}

#[test]
fn of_the_corpus_hold() {
    assert!(CORPUS.lines().count() > 100);
    for (index, line) in CORPUS.lines().enumerate() {
        let data: Vec<_> = line.as_bytes().chunks(2).map(byte).collect();
        live(format!("line {} of corpus.txt", index + 1), || {
            life::fuzz(&data)
        });
    }
}

/// The same seed is the same life.
#[test]
fn are_the_same_each_time() {
    let live = |seed| {
        life::schedule(seed);
        life::take_switches()
    };
    for seed in 0..20 {
        assert_eq!(live(seed), live(seed), "seed {seed}");
    }
}
