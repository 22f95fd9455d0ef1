// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Tasks and their waits.

use std::cell::{Cell, RefCell};

use corosensei::{stack::DefaultStack, Coroutine, Yielder};

use crate::{
    lock_order::Class,
    machine::{now, world},
    report, Nanos, TaskId, Work,
};

/// Size of a task's stack in bytes.
const STACK: usize = 256 << 10;

/// A number that no task has.
const NO_TASK: TaskId = usize::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Runnable,
    Blocked,
    Done,
}

pub(crate) type Body = Coroutine<(), (), (), DefaultStack>;

/// Purpose of a task.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// A thread of the kernel or of a program.
    Thread,
    /// The handler of a line.
    Handler(u32),
    /// The thread of a line.
    IrqThread(u32),
    /// A work item.
    Work(*mut Work),
}

impl Kind {
    /// What others wait for until the task ends.
    fn class(self) -> Option<Class> {
        match self {
            Self::Thread => None,
            Self::Handler(line) | Self::IrqThread(line) => Some(Class::Line(line)),
            // SAFETY: The work item is alive while it runs.
            Self::Work(work) => Some(unsafe { (*work).class() }),
        }
    }
}

pub(crate) struct Task {
    pub(crate) name: &'static str,
    pub(crate) body: Option<Body>,
    pub(crate) state: State,
    pub(crate) deadline: Option<Nanos>,
    pub(crate) timed_out: bool,
    yielder: *const Yielder<(), ()>,
    /// Number of spinlocks that the task holds, plus one in a handler.
    atomic: u32,
    pub(crate) kind: Kind,
    /// What it holds, in the order in which it was taken.
    pub(crate) held: Vec<Class>,
}

/// Limit on the [steps](count_step) of a task that must not sleep. With 100 ns each, interrupts are off for 0.2 ms.
const MOST_IN_ATOMIC: u32 = 2_000;

/// Limit on those of a task between two sleeps: 10 ms of a CPU. The flush of a deep queue takes a third of them.
const MOST: u32 = 100_000;

/// The steps of the current task since its last sleep, and since it is in atomic context.
#[derive(Clone, Copy, Default)]
struct Steps {
    all: u32,
    in_atomic: u32,
}

thread_local! {
    static STEPS: Cell<Steps> = const { Cell::new(Steps { all: 0, in_atomic: 0 }) };
    static LONGEST_CALL: Cell<(&'static str, Nanos)> = const { Cell::new(("", 0)) };
    static CURRENT: Cell<TaskId> = const { Cell::new(NO_TASK) };
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
    static LONGEST: Cell<Nanos> = const { Cell::new(0) };
}

/// Creates a task.
pub(crate) fn spawn_as(name: &'static str, kind: Kind, f: Box<dyn FnOnce()>) -> TaskId {
    let stack = STACKS
        .with(|stacks| stacks.borrow_mut().pop())
        .unwrap_or_else(|| DefaultStack::new(STACK).expect("a stack"));
    let id = world(|world| {
        let task = Task {
            name,
            body: None,
            state: State::Runnable,
            deadline: None,
            timed_out: false,
            yielder: std::ptr::null(),
            atomic: matches!(kind, Kind::Handler(_)).into(),
            kind,
            held: kind.class().into_iter().collect(),
        };
        match world.free.pop() {
            Some(id) => {
                world.tasks[id] = task;
                id
            }
            None => {
                world.tasks.push(task);
                world.tasks.len() - 1
            }
        }
    });
    let body = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
        world(|world| world.tasks[id].yielder = yielder);
        f();
    });
    world(|world| world.tasks[id].body = Some(body));
    id
}

/// Creates a task, which can be [joined](join).
pub fn spawn(name: &'static str, f: impl FnOnce() + 'static) -> TaskId {
    spawn_as(name, Kind::Thread, Box::new(f))
}

/// Returns the address on which tasks wait for the end of a task.
pub(crate) fn place_of_end(task: TaskId) -> usize {
    usize::MAX - task
}

/// Waits for the end of a task. This wait of the test does not count for the longest wait.
pub fn join(task: TaskId) {
    let longest = LONGEST.get();
    while world(|world| world.tasks[task].state != State::Done) {
        wait_for(place_of_end(task));
    }
    LONGEST.set(longest);
}

/// Keeps the stack of an ended task for reuse.
pub(crate) fn recycle(stack: DefaultStack) {
    STACKS.with(|stacks| stacks.borrow_mut().push(stack));
}

/// Sets the current task, if any.
pub(crate) fn set_current(task: Option<TaskId>) {
    STEPS.take();
    CURRENT.set(task.unwrap_or(NO_TASK));
}

/// Returns the current task.
pub fn current() -> TaskId {
    CURRENT.get()
}

/// Returns whether a task runs.
pub(crate) fn is_running() -> bool {
    CURRENT.get() != NO_TASK
}

/// Yields the CPU.
pub(crate) fn switch() {
    if std::thread::panicking() {
        // The message of the panic was printed. A woken task would run in a machine that has stopped.
        report::abort("a task waits while its panic unwinds");
    }
    let yielder = world(|world| world.tasks[CURRENT.get()].yielder);
    let steps = STEPS.get();
    // SAFETY: The yielder is that of the running coroutine.
    unsafe { (*yielder).suspend(()) };
    STEPS.set(steps);
}

/// Counts a step of the current task: a [point](crate::point), or a round of a loop.
///
/// # Panics
///
/// If it has made too many without a sleep.
pub fn count_step() {
    let mut steps = STEPS.get();
    steps.all += 1;
    steps.in_atomic += 1;
    STEPS.set(steps);
    if steps.in_atomic > MOST_IN_ATOMIC {
        if is_atomic() {
            STEPS.take();
            panic!("{MOST_IN_ATOMIC} steps in atomic context");
        }
        steps.in_atomic = 0;
        STEPS.set(steps);
    }
    if steps.all > MOST {
        STEPS.take();
        panic!("{MOST} steps without a sleep");
    }
}

/// Calls `f`, and notes its duration.
pub fn timed<R>(what: &'static str, f: impl FnOnce() -> R) -> R {
    let start = now();
    let result = f();
    let took = now() - start;
    if took > LONGEST_CALL.get().1 {
        LONGEST_CALL.set((what, took));
    }
    result
}

/// Returns name and duration of the longest [timed] call since the last call.
pub fn take_longest_call() -> (&'static str, Nanos) {
    LONGEST_CALL.replace(("", 0))
}

/// Returns whether the task must not sleep.
pub fn is_atomic() -> bool {
    is_running() && world(|world| world.tasks[CURRENT.get()].atomic != 0)
}

/// Adds `by`, which may be negative, to the number of spinlocks that the task holds.
pub fn change_atomic(by: i32) {
    world(|world| {
        if let Some(task) = world.current_task() {
            if task.atomic == 0 {
                let all = STEPS.get().all;
                STEPS.set(Steps { all, in_atomic: 0 });
            }
            task.atomic = task
                .atomic
                .checked_add_signed(by)
                .expect("a spinlock is held");
        }
    });
}

/// Panics in atomic context: `what` may sleep.
pub fn might_sleep(what: &str) {
    assert!(!is_atomic(), "sleep in atomic context: {what}");
}

/// Blocks until [`wake`], or until a deadline. Returns whether the task was woken.
pub fn block(deadline: Option<Nanos>) -> bool {
    let current = CURRENT.get();
    assert!(is_running(), "no task runs that could wait");
    world(|world| {
        let task = &mut world.tasks[current];
        task.state = State::Blocked;
        task.deadline = deadline;
        task.timed_out = false;
    });
    switch();
    STEPS.take();
    world(|world| !world.tasks[current].timed_out)
}

/// Makes a task runnable.
pub fn wake(id: TaskId) {
    world(|world| {
        if let Some(task) = world.tasks.get_mut(id) {
            if task.state == State::Blocked {
                task.state = State::Runnable;
                task.deadline = None;
            }
        }
    });
}

/// Returns the number of running interrupt handlers, their threads and work items.
pub fn under_way() -> usize {
    world(|world| {
        let tasks = world.tasks.iter().filter(|task| task.state != State::Done);
        tasks
            .filter(|task| !matches!(task.kind, Kind::Thread))
            .count()
    })
}

/// Blocks until an address is [signalled](signal).
pub fn wait_for(place: usize) {
    wait_until(place, None);
}

/// As [`wait_for`], with a deadline. Returns whether the address was signalled.
pub fn wait_until(place: usize, deadline: Option<Nanos>) -> bool {
    let current = CURRENT.get();
    let start = world(|world| {
        world.waiters.push((place, current));
        world.now
    });
    let woken = block(deadline);
    LONGEST.set(LONGEST.get().max(now() - start));
    if !woken {
        world(|world| world.waiters.retain(|waiter| *waiter != (place, current)));
    }
    woken
}

/// Returns the longest wait of a task since the last call.
pub fn take_longest_wait() -> Nanos {
    LONGEST.replace(0)
}

/// Wakes all tasks that wait on an address.
pub fn signal(place: usize) {
    let mut index = 0;
    while let Some((at, task)) = world(|world| world.waiters.get(index).copied()) {
        if at == place {
            world(|world| world.waiters.remove(index));
            wake(task);
        } else {
            index += 1;
        }
    }
}

/// Sleeps.
pub fn sleep(span: Nanos) {
    might_sleep("a sleep");
    block(Some(now() + span));
}
