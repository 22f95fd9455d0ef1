// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which task runs next.

use std::cell::{Cell, RefCell};

use crate::task;

/// Chooses the task that runs next, and when the clock moves.
pub enum Policy {
    /// The device first, then the youngest task. There is no preemption.
    Sequential,
    /// A random task.
    Random {
        /// The source of all choices.
        rng: Rng,
        /// In how many of 1024 cases a task is preempted at a [`point`].
        preempt: u32,
        /// In how many of 1024 steps the clock moves although a task could run. Timeouts then race with
        /// completions.
        hurry: u32,
    },
}

thread_local! {
    static POLICY: RefCell<Policy> = const { RefCell::new(Policy::Sequential) };
    static PREEMPTS: Cell<bool> = const { Cell::new(false) };
}

/// Sets the policy of this machine.
pub(crate) fn set(policy: Policy) {
    PREEMPTS.set(matches!(policy, Policy::Random { preempt: 1.., .. }));
    POLICY.with(|slot| *slot.borrow_mut() = policy);
}

/// Chooses one of so many; none stands for the clock.
pub(crate) fn choose(choices: usize) -> Option<usize> {
    POLICY.with(|policy| match &mut *policy.borrow_mut() {
        Policy::Sequential => Some(choices - 1),
        Policy::Random { rng, hurry, .. } => {
            let hurries = *hurry != 0 && rng.below(1024) < u64::from(*hurry);
            (!hurries).then(|| rng.below(choices as u64) as usize)
        }
    })
}

/// A place where the policy may preempt the task: each lock, atomic access, barrier, register write and
/// completion has one.
#[inline]
pub fn point() {
    if PREEMPTS.get() {
        maybe_preempt();
    }
}

#[cold]
fn maybe_preempt() {
    let preempts = POLICY.with(|policy| match &mut *policy.borrow_mut() {
        Policy::Sequential => false,
        Policy::Random { rng, preempt, .. } => rng.below(1024) < u64::from(*preempt),
    });
    if preempts && task::is_running() && !std::thread::panicking() {
        task::switch();
    }
}

/// Random numbers of a seed: xorshift64*.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    /// Returns the generator of a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1);
        rng.number();
        rng.number();
        rng
    }

    /// Returns the next number, of 53 bits.
    pub fn number(&mut self) -> u64 {
        if self.0 == 0 {
            self.0 = 1;
        }
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// Returns a number less than `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.number() % n
    }

    /// Returns true in one of `n` cases.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of some values.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}
