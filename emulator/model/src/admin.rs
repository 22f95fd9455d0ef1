// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The control path: registers and resets, the admin queue and its commands, asynchronous events and their interrupts.

pub(crate) mod aenq;
pub(crate) mod commands;
pub(crate) mod features;
pub(crate) mod interrupts;
pub(crate) mod late;
pub(crate) mod queue;
pub(crate) mod registers;
pub(crate) mod reset;
pub(crate) mod ring;
