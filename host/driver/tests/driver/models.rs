// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Properties of what tasks, interrupts, work and the bus do at the same time, each in all schedules up to a bound: see
//! [`sim::search`]. The bounds are larger with `EFA_LARGE`, which the tier `all` sets.

mod admin;
mod flushes;
mod halts;
mod handles;
mod monitor;
mod quarantine;
mod races;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use driver::{
    fault::{always, command as of_command, once, silence, status},
    program::{self, Program},
    rig::{self, Rig, SECOND},
};
use efa_hw::{admin::Opcode, aenq::AenqGroup};
use efa_model::{Death, Profile, Then};
use kernel::{
    error::Result,
    sim::{self, TaskId},
};

/// The numbers of deviations from the plain schedule, usually and with `EFA_LARGE`, and whether tasks may usually stand still.
type Bounds = (usize, usize, bool);

/// One deviation: each task, and the clock, goes on at each point.
const ONE: Bounds = (1, 1, false);

/// As [`ONE`], and a task may stand still at each point.
const STALL: Bounds = (1, 1, true);

/// A second deviation takes a minute, or a race of few points.
const TWO: Bounds = (1, 2, false);

/// Runs `race` with a device that is not bound, in all schedules within the bounds, and then the checks of [`Rig::end`].
/// Prints how many there are. With `EFA_LARGE`, what has one bound is run with stalls, and with the newest device as well.
fn search(
    property: &str,
    profile: Profile,
    bounds: Bounds,
    race: impl Fn(&mut Rig) + Copy + 'static,
) {
    let is_large = std::env::var_os("EFA_LARGE").is_some();
    let bound = if is_large { bounds.1 } else { bounds.0 };
    let is_one = bounds.0 == bounds.1;
    let stalls = bounds.2 || is_large && is_one;
    let is_newest = is_large && is_one && profile != Profile::Efa4;
    let profiles = [profile]
        .into_iter()
        .chain(is_newest.then_some(Profile::Efa4));
    for profile in profiles {
        let runs = sim::search(bound, stalls, |policy| rig::run(profile, policy, race));
        println!("{property}: {runs} schedules, up to {bound} deviations");
        assert!(runs > 50, "{property}: {runs} schedules");
    }
}

/// As [`search`], with a device that is bound.
fn explore(
    property: &str,
    profile: Profile,
    bounds: Bounds,
    race: impl Fn(&mut Rig) + Copy + 'static,
) {
    search(property, profile, bounds, move |rig| {
        rig.probe().unwrap();
        race(rig);
    });
}

/// The results of tasks, in the order in which they come.
struct Results<T>(Rc<RefCell<Vec<T>>>);

impl<T: 'static> Results<T> {
    fn new() -> Self {
        Self(Rc::default())
    }

    /// Starts a task with a result.
    fn spawn(&self, name: &'static str, f: impl FnOnce() -> T + 'static) -> TaskId {
        let results = self.0.clone();
        sim::spawn(name, move || {
            let result = f();
            results.borrow_mut().push(result);
        })
    }

    fn take(&self) -> Vec<T> {
        self.0.take()
    }
}

/// Runs `what` while tasks run. The schedule of all of them is searched, until all have ended.
fn together(tasks: impl IntoIterator<Item = TaskId>, what: impl FnOnce()) {
    sim::searched(|| {
        what();
        tasks.into_iter().for_each(sim::join);
    });
}

/// Opens a program with a protection domain.
fn program() -> (Rc<Program>, u32) {
    let program = Rc::new(Program::new().unwrap());
    let pd = program.alloc_pd().unwrap();
    (program, pd)
}

fn state_is(rig: &Rig, names: &[&str]) {
    let state = rig.state("state");
    assert!(
        state.as_deref().is_some_and(|state| names.contains(&state)),
        "{state:?}"
    );
}

/// Waits until tasks that stand still go on.
fn go_on() {
    sim::sleep(10 * SECOND);
}

/// Heals the device, and checks that it works or comes back.
fn comes_back(rig: &Rig) {
    rig.heal();
    go_on();
    rig.check_quiet();
    if rig.state("state").as_deref() != Some("up") {
        rig.reset();
        rig.check_quiet();
    }
    state_is(rig, &["up"]);
    assert!(crate::command().0.is_ok());
}
