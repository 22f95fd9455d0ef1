// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Scheduling policies.

use std::cell::{Cell, RefCell};

use crate::{machine, task, Nanos, TaskId};

/// Chooses the task that runs next, and when the clock advances.
pub enum Policy {
    /// The device first, then the youngest task. There is no preemption.
    Sequential,
    /// A random task.
    Random {
        /// The source of all choices.
        rng: Rng,
        /// Probability in 1/1024 that a task is preempted at a [`point`].
        preempt: u32,
        /// Probability in 1/1024 that the clock advances in a step although a task can run.
        /// Timeouts then race with completions.
        hurry: u32,
    },
    /// As [`Sequential`](Policy::Sequential), but for some deviations. See [`search`].
    Planned(Plan),
}

/// The steps at which a run deviates from [`Policy::Sequential`].
pub struct Plan {
    /// The number of each such step, in order, and its alternative.
    deviations: Vec<(usize, usize)>,
    /// The number of alternatives of each step so far.
    alternatives: Vec<usize>,
    /// The alternative that runs once the preempted task has stopped.
    taken: Option<usize>,
    /// Whether the run is in [`searched`].
    counts: bool,
    /// Number of choices so far.
    choices: usize,
    /// Whether tasks may stand still.
    stalls: bool,
}

/// Time for which a task stands still, as on a virtual CPU that the hypervisor has preempted: longer than a reset, and less than
/// the time limit of a command.
const PAUSE: Nanos = 5_000_000_000;

/// Number of choices after which another task, or the clock, has a turn: tasks that wake each other for ever would keep it from
/// that.
const FAIR: usize = 5_000;

impl Plan {
    /// Counts a step. Returns the planned alternative, if the run deviates at this step.
    fn step(&mut self, alternatives: usize) -> Option<usize> {
        if !self.counts {
            return None;
        }
        let step = self.alternatives.len();
        self.alternatives.push(alternatives);
        let found = self.deviations.iter().find(|(at, _)| *at == step);
        found.map(|(_, which)| *which)
    }
}

/// Runs `life` with each schedule that deviates at most `bound` times from [`Policy::Sequential`]
/// in [`searched`]. Returns the number of runs.
///
/// A deviation runs another task, preempts a task at a [`point`], or advances the clock although a
/// task can run. With `stalls`, a task may also stand still at a point, for five seconds.
///
/// This is delay-bounded scheduling (Emmi, Qadeer and Rakamaric, POPL 2011). Most races need few
/// deviations. The number of runs is that of the steps to the power of `bound`.
pub fn search(bound: usize, stalls: bool, mut life: impl FnMut(Policy)) -> u64 {
    let (mut plans, mut runs) = (vec![Vec::new()], 0);
    while let Some(deviations) = plans.pop() {
        let first = deviations.last().map_or(0, |(at, _)| at + 1);
        life(Policy::Planned(Plan {
            deviations: deviations.clone(),
            alternatives: Vec::new(),
            taken: None,
            counts: false,
            choices: 0,
            stalls,
        }));
        runs += 1;
        let Policy::Planned(plan) = POLICY.replace(Policy::Sequential) else {
            panic!("the life has another policy");
        };
        if deviations.len() == bound {
            continue;
        }
        for (at, alternatives) in plan.alternatives.iter().enumerate().skip(first) {
            plans.extend((0..*alternatives).map(|which| {
                let mut next = deviations.clone();
                next.push((at, which));
                next
            }));
        }
    }
    runs
}

/// Calls `f`. A [`search`] deviates only during this call.
pub fn searched<R>(f: impl FnOnce() -> R) -> R {
    let set = |counts| {
        POLICY.with(|policy| {
            if let Policy::Planned(plan) = &mut *policy.borrow_mut() {
                plan.counts = counts;
            }
        });
    };
    set(true);
    let result = f();
    set(false);
    result
}

thread_local! {
    static POLICY: RefCell<Policy> = const { RefCell::new(Policy::Sequential) };
    static PREEMPTS: Cell<bool> = const { Cell::new(false) };
    static STALL: Cell<Option<Stall>> = const { Cell::new(None) };
}

/// The planned stall of a task.
#[derive(Clone, Copy)]
struct Stall {
    task: TaskId,
    /// Number of the task's points before it.
    points: u64,
    span: Nanos,
}

/// Stalls the current task for `span` at a [point], after `points` others. It may hold spinlocks,
/// like a task on a virtual CPU that the hypervisor has preempted.
pub fn stall(points: u64, span: Nanos) {
    let task = task::current();
    STALL.set(Some(Stall { task, points, span }));
    PREEMPTS.set(true);
}

/// Cancels the last [stall]. If it is pending, returns the number of points left before it.
pub fn take_stall() -> Option<u64> {
    STALL.take().map(|stall| stall.points)
}

/// Counts a point of the current task, which may start its stall.
fn count_point() {
    let Some(stall) = STALL.get() else {
        return;
    };
    if stall.task != task::current() {
        return;
    }
    let points = stall.points.checked_sub(1);
    STALL.set(points.map(|points| Stall { points, ..stall }));
    if points.is_none() {
        task::block(Some(machine::now() + stall.span));
    }
}

/// Sets the policy of this machine.
pub(crate) fn set(policy: Policy) {
    STALL.set(None);
    PREEMPTS.set(matches!(
        policy,
        Policy::Random { preempt: 1.., .. } | Policy::Planned(_)
    ));
    POLICY.with(|slot| *slot.borrow_mut() = policy);
}

/// Returns whether the clock may advance by any time although a task can run. Then the duration of a call says nothing.
pub fn hurries() -> bool {
    POLICY.with(|policy| matches!(*policy.borrow(), Policy::Random { hurry: 1.., .. }))
}

/// Chooses one of `choices`, or the clock (`None`). `last`: index of the last task, if it can run.
pub(crate) fn choose(choices: usize, last: Option<usize>) -> Option<usize> {
    POLICY.with(|policy| match &mut *policy.borrow_mut() {
        Policy::Sequential => Some(choices - 1),
        Policy::Random { rng, hurry, .. } => {
            let hurries = *hurry != 0 && rng.below(1024) < u64::from(*hurry);
            (!hurries).then(|| rng.below(choices as u64) as usize)
        }
        Policy::Planned(plan) => {
            plan.choices += 1;
            if plan.choices % FAIR == 0 && plan.taken.is_none() {
                let turn = plan.choices / FAIR % (choices + 1);
                return (turn != choices).then_some(turn);
            }
            // The alternatives are the others in order, and then the clock.
            let (default, which) = match plan.taken.take() {
                Some(which) => (last.expect("a preempted task can run"), Some(which)),
                None => (choices - 1, plan.step(choices)),
            };
            let choice = which.map_or(default, |which| which + usize::from(which >= default));
            (choice != choices).then_some(choice)
        }
    })
}

/// A place where the policy may preempt the task. Each lock, atomic access, barrier, register write
/// and completion has one.
#[inline]
pub fn point() {
    task::count_step();
    if PREEMPTS.get() && task::is_running() && !std::thread::panicking() {
        maybe_preempt();
    }
}

#[cold]
fn maybe_preempt() {
    count_point();
    let mut stalls = false;
    let preempts = POLICY.with(|policy| match &mut *policy.borrow_mut() {
        Policy::Sequential => false,
        Policy::Random { rng, preempt, .. } => rng.below(1024) < u64::from(*preempt),
        Policy::Planned(plan) => {
            // The alternatives are the others, the clock, and a stall.
            let choices = machine::choices();
            let taken = plan.step(choices + usize::from(plan.stalls));
            stalls = taken == Some(choices);
            plan.taken = taken.filter(|_| !stalls);
            plan.taken.is_some()
        }
    });
    if stalls {
        task::block(Some(machine::now() + PAUSE));
    } else if preempts {
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

    /// Returns a random element of `values`.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}
