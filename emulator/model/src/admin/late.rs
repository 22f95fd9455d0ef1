// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completions and events of one driver session that are delivered in a later one, although a reset should have discarded them.

use std::collections::VecDeque;

use super::queue::Pending;

/// Limit on the number of answers that are kept.
const MAX: usize = 256;

/// A completion or event that is delivered late.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The completion of a command.
    Completion(Box<Pending>),
    /// An asynchronous event.
    Event { group: u16, syndrome: u16 },
}

#[derive(Debug)]
struct Kept {
    answer: Answer,
    /// Number of commands that the new session completes before the answer is delivered.
    after_commands: u64,
    /// Whether the device was reset since the answer was kept.
    was_reset: bool,
}

/// Answers that are withheld for a later session.
#[derive(Debug, Default)]
pub(crate) struct Late(VecDeque<Kept>);

impl Late {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps an answer until the session after the next reset has completed `after_commands` commands. Drops the oldest answer
    /// if there are too many.
    pub(crate) fn keep(&mut self, answer: Answer, after_commands: u64) {
        if self.0.len() == MAX {
            self.0.pop_front();
        }
        self.0.push_back(Kept { answer, after_commands, was_reset: false });
    }

    /// Records a reset.
    pub(crate) fn reset(&mut self) {
        self.0.iter_mut().for_each(|kept| kept.was_reset = true);
    }

    /// Records the completion of a command.
    pub(crate) fn completed(&mut self) {
        for kept in self.0.iter_mut().filter(|kept| kept.was_reset) {
            kept.after_commands = kept.after_commands.saturating_sub(1);
        }
    }

    /// Removes and returns the next answer that is due, of the kinds for which a queue exists.
    pub(crate) fn take_due(&mut self, completions: bool, events: bool) -> Option<Answer> {
        let possible = |answer: &Answer| match answer {
            Answer::Completion(_) => completions,
            Answer::Event { .. } => events,
        };
        let due = |kept: &Kept| kept.was_reset && kept.after_commands == 0 && possible(&kept.answer);
        let position = self.0.iter().position(due)?;
        Some(self.0.remove(position)?.answer)
    }
}
