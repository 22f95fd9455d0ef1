// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The loop that runs tasks, interrupts, work and the device, and advances the clock.

use std::{
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe},
    rc::Rc,
    time::{Duration, Instant},
};

use corosensei::CoroutineResult;

use crate::{
    hardware::{detach, run_device},
    irq::{self, Line},
    lock_order, memory, policy, report,
    task::{self, signal, spawn_as, Kind, State, Task},
    Nanos, Policy, TaskId, Work,
};

/// Limit on the virtual time of a machine: ten days. The longest test takes 20 hours.
const MOST_TIME: Nanos = 10 * 86_400 * 1_000_000_000;

/// Limit on its time. The slowest one takes seconds.
const MOST_REAL_TIME: Duration = Duration::from_secs(300);

#[derive(Default)]
pub(crate) struct World {
    pub(crate) now: Nanos,
    pub(crate) tasks: Vec<Task>,
    /// Numbers of tasks that can be reused.
    pub(crate) free: Vec<TaskId>,
    pub(crate) lines: Vec<Line>,
    /// Whether the device may raise interrupts.
    pub(crate) lines_enabled: bool,
    /// Work items that are queued.
    pub(crate) works: Vec<*mut Work>,
    pub(crate) device_due: Option<Nanos>,
    /// Tasks that wait, and the address on which each waits.
    pub(crate) waiters: Vec<(usize, TaskId)>,
    runnable: Vec<TaskId>,
    /// The task that ran last.
    last: TaskId,
    switches: u64,
}

impl World {
    /// Returns the current task.
    pub(crate) fn current_task(&mut self) -> Option<&mut Task> {
        self.tasks.get_mut(task::current())
    }
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

pub(crate) fn world<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with(|world| f(&mut world.borrow_mut()))
}

/// Returns the time since the machine was started.
pub fn now() -> Nanos {
    world(|world| world.now)
}

/// Returns the number of task switches.
pub fn switches() -> u64 {
    world(|world| world.switches)
}

/// Starts a machine whose first task is `f`, and runs it until `f` has returned and no task can run.
///
/// # Panics
///
/// If a task panics, if no task can run before `f` has returned, or if that takes too long.
pub fn run<R: 'static>(policy: Policy, f: impl FnOnce() -> R) -> R {
    let _clean = Clean;
    report::install();
    lock_order::start();
    policy::set(policy);
    let start = Instant::now();
    let result = Rc::new(Cell::new(None));
    let place = result.clone();
    let f: Box<dyn FnOnce() + '_> = Box::new(move || place.set(Some(f())));
    // SAFETY: The task ends before this function does, or is never resumed again.
    let f: Box<dyn FnOnce() + 'static> = unsafe { std::mem::transmute(f) };
    let main = spawn_as("main", Kind::Thread, f);
    while world(|world| world.tasks[main].state != State::Done) {
        step();
        let is_late = switches() % 4096 == 0 && start.elapsed() > MOST_REAL_TIME;
        assert!(!is_late && now() < MOST_TIME, "no end: {}", describe());
    }
    while !runnable().is_empty() {
        step();
    }
    result.take().expect("a task that has ended")
}

/// Discards the state of a machine, also after a panic.
struct Clean;

impl Drop for Clean {
    fn drop(&mut self) {
        task::set_current(None);
        let world = world(std::mem::take);
        for task in world.tasks {
            if let Some(mut body) = task.body {
                // Its values are not dropped, as they may refer to freed memory.
                // SAFETY: The machine has stopped: nothing refers to the stack.
                unsafe { body.force_reset() };
                task::recycle(body.into_stack());
            }
        }
        detach();
        memory::clear();
    }
}

fn runnable() -> Vec<TaskId> {
    world(|world| {
        let mut runnable = std::mem::take(&mut world.runnable);
        runnable.clear();
        let all = world.tasks.iter().enumerate();
        runnable.extend(
            all.filter(|(_, task)| task.state == State::Runnable)
                .map(|(id, _)| id),
        );
        runnable
    })
}

/// Creates tasks for the interrupts and the work items that are due.
fn dispatch() {
    dispatch_handlers();
    dispatch_threads();
    dispatch_work();
}

fn dispatch_handlers() {
    let mut index = 0;
    while let Some((vector, handler)) = world(|world| {
        while index < world.lines.len() {
            let line = &mut world.lines[index];
            index += 1;
            let Some(handler) = line.handler.clone() else {
                continue;
            };
            if line.is_pending
                && line.disabled == 0
                && line.running == u32::from(line.thread_running)
            {
                line.is_pending = false;
                line.running += 1;
                return Some((index as u32 - 1, handler));
            }
        }
        None
    }) {
        let run = move || {
            if handler() {
                world(|world| world.lines[vector as usize].thread_pending = true);
            }
        };
        spawn_as("interrupt", Kind::Handler(vector), Box::new(run));
    }
}

fn dispatch_threads() {
    let threads: Vec<_> = world(|world| {
        let lines = world.lines.iter_mut().enumerate();
        lines
            .filter(|(_, line)| line.thread_pending && !line.thread_running)
            .filter_map(|(vector, line)| {
                line.thread_pending = false;
                let thread = line.thread.clone()?;
                line.thread_running = true;
                line.running += 1;
                Some((vector as u32, thread))
            })
            .collect()
    });
    for (vector, thread) in threads {
        let run = move || {
            thread();
            world(|world| world.lines[vector as usize].thread_running = false);
        };
        spawn_as("interrupt thread", Kind::IrqThread(vector), Box::new(run));
    }
}

fn dispatch_work() {
    while let Some(work) = world(|world| {
        let now = world.now;
        let index = world.works.iter().position(|work| {
            // SAFETY: Work that is queued is alive: its owner disables it first.
            let work = unsafe { &**work };
            !work.is_running && work.due.is_some_and(|due| due <= now)
        })?;
        let work = world.works.swap_remove(index);
        // SAFETY: As above.
        unsafe {
            (*work).due = None;
            (*work).is_running = true;
        }
        Some(work)
    }) {
        // SAFETY: As above; it is alive while it runs.
        let (function, argument) = unsafe { ((*work).function, (*work).argument) };
        spawn_as(
            "work",
            Kind::Work(work),
            Box::new(move || function(argument)),
        );
    }
}

/// Returns the next time at which a deadline, a work item or the device is due.
fn next_time() -> Option<Nanos> {
    world(|world| {
        let blocked = world
            .tasks
            .iter()
            .filter(|task| task.state == State::Blocked);
        let deadlines = blocked.filter_map(|task| task.deadline);
        // SAFETY: Work that is queued is alive.
        let works = world.works.iter().map(|work| unsafe { &**work });
        let works = works
            .filter(|work| !work.is_running)
            .filter_map(|work| work.due);
        deadlines.chain(works).chain(world.device_due).min()
    })
}

/// Advances the clock, and wakes the tasks whose deadline has passed.
fn advance(to: Nanos) {
    world(|world| {
        world.now = world.now.max(to);
        let now = world.now;
        for task in &mut world.tasks {
            if task.state == State::Blocked && task.deadline.is_some_and(|end| end <= now) {
                task.state = State::Runnable;
                task.deadline = None;
                task.timed_out = true;
            }
        }
    });
}

fn device_is_due() -> bool {
    world(|world| world.device_due.is_some_and(|due| due <= world.now))
}

/// Returns the number of tasks that can run, including the current one, and the device if due.
pub(crate) fn choices() -> usize {
    dispatch();
    let runnable = runnable();
    let choices = runnable.len() + usize::from(device_is_due());
    world(|world| world.runnable = runnable);
    choices
}

/// Runs one task until it yields the CPU, or runs the device, or advances the clock.
fn step() {
    dispatch();
    let (runnable, last) = (runnable(), world(|world| world.last));
    let choices = runnable.len() + usize::from(device_is_due());
    let choice = if choices == 0 {
        None
    } else {
        policy::choose(choices, runnable.iter().position(|task| *task == last))
    };
    let task = choice.map(|choice| runnable.get(choice).copied());
    world(|world| world.runnable = runnable);
    match task {
        Some(Some(task)) => resume(task),
        Some(None) => run_device(),
        None => match next_time() {
            Some(time) => advance(time),
            None => assert!(choices != 0, "deadlock: {}", describe()),
        },
    }
}

fn resume(id: TaskId) {
    let mut body = world(|world| {
        world.switches += 1;
        world.last = id;
        world.tasks[id]
            .body
            .take()
            .expect("a task that has not ended")
    });
    task::set_current(Some(id));
    let result = panic::catch_unwind(AssertUnwindSafe(|| body.resume(())));
    task::set_current(None);
    match result {
        Ok(CoroutineResult::Yield(())) => world(|world| world.tasks[id].body = Some(body)),
        Ok(CoroutineResult::Return(())) => {
            task::recycle(body.into_stack());
            ended(id);
        }
        Err(payload) => {
            world(|world| world.tasks[id].state = State::Done);
            report::clear();
            panic::resume_unwind(payload);
        }
    }
}

/// Wakes the tasks that wait for the end of a task.
fn ended(id: TaskId) {
    let place = world(|world| {
        let task = &mut world.tasks[id];
        task.state = State::Done;
        let kind = task.kind;
        if !matches!(kind, Kind::Thread) {
            world.free.push(id);
        }
        match kind {
            Kind::Thread => task::place_of_end(id),
            Kind::Handler(line) | Kind::IrqThread(line) => {
                world.lines[line as usize].running -= 1;
                irq::place(line)
            }
            Kind::Work(work) => {
                // SAFETY: The work item is alive while it runs.
                unsafe { (*work).is_running = false };
                work as usize
            }
        }
    });
    signal(place);
}

/// Returns the names of the tasks that have not ended.
fn describe() -> String {
    world(|world| {
        let left = world.tasks.iter().filter(|task| task.state != State::Done);
        let names: Vec<_> = left.map(|task| task.name).collect();
        names.join(", ")
    })
}
