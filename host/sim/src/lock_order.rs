// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The order in which tasks take locks, as the kernel's lockdep checks it: by classes, in all machines of a thread.
//! Two orders that contradict each other are found although no two tasks ever meet.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::Location,
};

use crate::machine::world;

/// What a task waits for while it may hold something of another class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The locks that are created at a place.
    Place(&'static Location<'static>),
    /// The locks of a name.
    Name(&'static str),
    /// A work item of this machine: its end.
    Work(u64),
    /// A vector of this machine: the end of its handler or thread.
    Line(u32),
}

impl Class {
    /// The lock of an exporter of dma-bufs, under which its importers are called.
    pub const DMA_RESV: Self = Self::Name("dma_resv");
    /// The lock of a process' memory, which each access to memory of a program may take.
    pub const MMAP_LOCK: Self = Self::Name("mmap_lock");
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place(place) => write!(f, "{}:{}", place.file(), place.line()),
            Self::Name(name) => f.write_str(name),
            Self::Work(_) => f.write_str("a work item"),
            Self::Line(vector) => write!(f, "the handler of vector {vector}"),
        }
    }
}

type Graph = BTreeMap<Class, BTreeSet<Class>>;

thread_local! {
    /// The classes that were waited for while one of another class was held.
    static ORDER: RefCell<Graph> = const { RefCell::new(Graph::new()) };
}

/// Forgets work items and vectors of the last machine.
pub(crate) fn start() {
    let lasts = |class: &Class| matches!(class, Class::Place(_) | Class::Name(_));
    ORDER.with(|order| {
        let mut order = order.borrow_mut();
        order.retain(|class, _| lasts(class));
        order.values_mut().for_each(|after| after.retain(lasts));
        order
            .entry(Class::MMAP_LOCK)
            .or_default()
            .insert(Class::DMA_RESV);
    });
}

/// Returns a path, the last class first.
fn path(graph: &Graph, from: Class, to: Class) -> Option<Vec<Class>> {
    let (mut before, mut ends) = (BTreeMap::from([(from, from)]), vec![from]);
    while let Some(end) = ends.pop() {
        if end == to {
            let step = |class: &Class| Some(before[class]).filter(|_| *class != from);
            return Some(std::iter::successors(Some(to), step).collect());
        }
        for next in graph.get(&end).into_iter().flatten() {
            before.entry(*next).or_insert_with(|| {
                ends.push(*next);
                end
            });
        }
    }
    None
}

/// Notes that the current task is about to wait for `class`. Panics if that contradicts the order of others.
pub(crate) fn acquire(class: Class) {
    let held = world(|world| world.current_task().map(|task| task.held.clone()));
    ORDER.with(|order| {
        let mut order = order.borrow_mut();
        for one in held.into_iter().flatten().filter(|one| *one != class) {
            if !order.get(&one).is_some_and(|after| after.contains(&class)) {
                if let Some(path) = path(&order, class, one) {
                    panic!(
                        "{class:?} is waited for with {one:?} held; the other way round: {path:?}"
                    );
                }
                order.entry(one).or_default().insert(class);
            }
        }
    });
    hold(class);
}

/// Notes that the current task has taken a lock for which it could not wait.
pub(crate) fn hold(class: Class) {
    world(|world| {
        if let Some(task) = world.current_task() {
            task.held.push(class);
        }
    });
}

/// Notes that the current task has released a lock.
pub(crate) fn release(class: Class) {
    world(|world| {
        if let Some(task) = world.current_task() {
            if let Some(place) = task.held.iter().rposition(|held| *held == class) {
                task.held.remove(place);
            }
        }
    });
}

/// Notes that the current task may wait for `class` here, and does not hold it afterwards.
pub fn pass(class: Class) {
    acquire(class);
    release(class);
}
