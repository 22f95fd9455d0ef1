// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The paths of a connection, and which of them it avoids.

use std::time::Duration;

/// Number of consecutive losses after which a connection avoids a path.
const LOSSES: u8 = 3;

/// Time for which a connection avoids a path.
const REST: Duration = Duration::from_millis(200);

/// The paths of a connection.
#[derive(Debug)]
pub(super) struct Paths {
    /// State of paths by number, up to the highest one that has ever lost a packet.
    states: Vec<Path>,
    next: u16,
}

/// State of a path for a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    losses: u8,
    rests_until: Duration,
}

impl Paths {
    pub(super) fn new(first: u16) -> Self {
        Self {
            states: Vec::new(),
            next: first,
        }
    }

    /// Chooses one of `count` paths for a packet: those that are not avoided, in turn. Without `multipath`, always the first one.
    pub(super) fn choose(&mut self, now: Duration, count: u16, multipath: bool) -> u16 {
        if !multipath {
            return self.next % count.max(1);
        }
        for _ in 0..count {
            self.next = (self.next + 1) % count;
            let path = self.states.get(usize::from(self.next));
            if path.is_none_or(|path| path.rests_until <= now) {
                break;
            }
        }
        self.next
    }

    /// Resets the losses of a path, one of whose packets was answered.
    pub(super) fn answered(&mut self, path: u16) {
        if let Some(path) = self.states.get_mut(usize::from(path)) {
            *path = Path::default();
        }
    }

    /// Counts a lost packet. Returns whether the connection avoids the path from now on.
    pub(super) fn lost(&mut self, now: Duration, path: u16) -> bool {
        let path = usize::from(path);
        if path >= self.states.len() {
            self.states.resize(path + 1, Path::default());
        }
        let path = &mut self.states[path];
        path.losses = path.losses.saturating_add(1);
        if path.losses >= LOSSES {
            path.rests_until = now + REST;
        }
        path.losses == LOSSES
    }
}
