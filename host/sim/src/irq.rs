// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The interrupt core. A handler runs as a task that must not sleep, its thread as one that may.

use std::rc::Rc;

use crate::{
    lock_order::{pass, Class},
    machine::world,
    task::{might_sleep, wait_for},
};

/// The handler of a line. Returns whether the thread must run.
pub(crate) type Handler = Rc<dyn Fn() -> bool>;
/// The thread of a line.
pub(crate) type Thread = Rc<dyn Fn()>;

/// A vector of the device.
#[derive(Default)]
pub(crate) struct Line {
    pub(crate) handler: Option<Handler>,
    pub(crate) thread: Option<Thread>,
    pub(crate) is_pending: bool,
    pub(crate) disabled: u32,
    /// Number of handlers and threads that are running.
    pub(crate) running: u32,
    pub(crate) thread_running: bool,
    pub(crate) thread_pending: bool,
}

/// Sets the number of lines of the device.
pub fn allocate_lines(count: u32) {
    world(|world| world.lines.resize_with(count as usize, Line::default));
}

/// Enables or disables all lines of the device.
pub fn enable_lines(on: bool) {
    world(|world| world.lines_enabled = on);
}

/// Raises an interrupt. It is pending until its line has a handler, and lost if the lines are disabled.
pub fn interrupt(vector: u16) {
    world(|world| {
        if !world.lines_enabled {
            return;
        }
        if let Some(line) = world.lines.get_mut(usize::from(vector)) {
            line.is_pending = true;
        }
    });
}

/// Sets the handler and the thread of a line. Returns false if the line is missing or has a handler.
pub fn request_line(vector: u32, handler: Handler, thread: Option<Thread>) -> bool {
    world(|world| match world.lines.get_mut(vector as usize) {
        Some(line) if line.handler.is_none() => {
            line.handler = Some(handler);
            line.thread = thread;
            true
        }
        _ => false,
    })
}

/// Returns whether a line has a handler.
pub fn has_handler(vector: u32) -> bool {
    world(|world| {
        let line = world.lines.get(vector as usize);
        line.is_some_and(|line| line.handler.is_some())
    })
}

/// Returns the address on which tasks wait for the handler of a line.
pub(crate) fn place(vector: u32) -> usize {
    0x1000_0000_0000_0000 + vector as usize
}

/// Disables a line, and waits until neither its handler nor its thread runs.
pub fn disable_line(vector: u32) {
    world(|world| world.lines[vector as usize].disabled += 1);
    might_sleep("waiting for an interrupt handler");
    pass(Class::Line(vector));
    while world(|world| world.lines[vector as usize].running != 0) {
        wait_for(place(vector));
    }
}

/// Reverts one [`disable_line`].
pub fn enable_line(vector: u32) {
    world(|world| world.lines[vector as usize].disabled -= 1);
}

/// Removes the handler of a line, after it has returned.
pub fn free_line(vector: u32) {
    disable_line(vector);
    world(|world| {
        let line = &mut world.lines[vector as usize];
        *line = Line {
            is_pending: line.is_pending,
            ..Line::default()
        };
    });
}
