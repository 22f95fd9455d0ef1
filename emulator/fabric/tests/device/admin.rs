// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Registers, reset, the admin queue and its commands, events, and the trace.

mod events;
mod features;
mod queue;
mod sessions;
mod trace;
mod wire;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A rule that delays all commands.
const SLOW: &str = r#"{"when":{"opcode":"ANY"},"then":{"delay_ms":50}}"#;
