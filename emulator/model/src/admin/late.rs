// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Answers to the last session of a driver that come in a later one: what a reset should have made the device forget.

use std::collections::VecDeque;

use super::queue::Pending;

/// Most answers that are kept.
const MAX: usize = 256;

/// What comes late.
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
    /// How many commands the new session is to have completed before.
    after_commands: u64,
    /// Whether there was a reset since.
    was_reset: bool,
}

/// Answers that were not given and will be.
#[derive(Debug, Default)]
pub(crate) struct Late(VecDeque<Kept>);

impl Late {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps an answer until the session after the next reset has completed so many commands. If there are too many, the
    /// oldest is lost.
    pub(crate) fn keep(&mut self, answer: Answer, after_commands: u64) {
        if self.0.len() == MAX {
            self.0.pop_front();
        }
        self.0.push_back(Kept {
            answer,
            after_commands,
            was_reset: false,
        });
    }

    /// Takes note of a reset.
    pub(crate) fn reset(&mut self) {
        self.0.iter_mut().for_each(|kept| kept.was_reset = true);
    }

    /// Takes note that a command was completed.
    pub(crate) fn completed(&mut self) {
        for kept in self.0.iter_mut().filter(|kept| kept.was_reset) {
            kept.after_commands = kept.after_commands.saturating_sub(1);
        }
    }

    /// Takes the next answer whose time has come, of those that there is a queue for.
    pub(crate) fn take_due(&mut self, completions: bool, events: bool) -> Option<Answer> {
        let possible = |answer: &Answer| match answer {
            Answer::Completion(_) => completions,
            Answer::Event { .. } => events,
        };
        let due =
            |kept: &Kept| kept.was_reset && kept.after_commands == 0 && possible(&kept.answer);
        let position = self.0.iter().position(due)?;
        Some(self.0.remove(position)?.answer)
    }
}
