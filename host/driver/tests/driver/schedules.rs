// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Lives at random. `SEED=7` lives that of one seed, `SCHEDULES=100000` lives more, and
//! `SIM_LOG=1` prints all messages.

use std::{cell::Cell, env, io::Write, panic, sync::Once};

use driver::life;
use kernel::sim::Rng;

/// How many lives there are of each kind.
const LIVES: u64 = 2000;

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Has a panic name the seed, even if the process is aborted by what follows.
fn name_seeds() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if let Some(seed) = SEED.get() {
                // Not kept back by the test harness, as that is lost when the process aborts.
                let _ = writeln!(std::io::stderr(), "{info}\nSEED={seed}");
            }
            hook(info);
        }));
    });
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

fn for_seeds(live: impl Fn(u64)) {
    name_seeds();
    let first = number("SEED");
    let default = if first.is_some() { 1 } else { LIVES };
    let (first, count) = (first.unwrap_or(0), number("SCHEDULES").unwrap_or(default));
    for seed in first..first + count {
        SEED.set(Some(seed));
        live(seed);
    }
    SEED.set(None);
}

#[test]
fn hold() {
    for_seeds(life::schedule);
}

#[test]
fn random_bytes_hold() {
    for_seeds(|seed| {
        let mut rng = Rng::new(seed);
        let bytes: Vec<_> = (0..rng.below(200)).map(|_| rng.number() as u8).collect();
        life::fuzz(&bytes);
    });
}

/// The same seed is the same life.
#[test]
fn are_the_same_each_time() {
    let live = |seed| {
        life::schedule(seed);
        driver::life::take_switches()
    };
    for seed in 0..20 {
        assert_eq!(live(seed), live(seed), "seed {seed}");
    }
}
