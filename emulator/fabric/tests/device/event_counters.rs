// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Event counters: their commands and values, and which events they count on networks of all kinds. The reference model of objects
//! has their numbers, users and attachments.

mod events;
mod values;

use super::*;

/// Events of a queue pair, by bit.
const SEND_COMP: usize = 0;
const SEND_ERR: usize = 1;
const RECV_COMP: usize = 2;
const RECV_ERR: usize = 3;
const READ_COMP: usize = 4;
const READ_ERR: usize = 5;
const WRITE_COMP: usize = 6;
const WRITE_ERR: usize = 7;
const REMOTE_READ: usize = 8;
const REMOTE_WRITE: usize = 9;

/// Returns a work request of each kind that fails, as its address handle does not exist.
fn failing() -> [Send; 3] {
    [OpType::Send, OpType::RdmaRead, OpType::RdmaWrite].map(|operation| Send {
        operation: operation.into(),
        ah: Some(77),
        // Counters also count work requests that are not signaled.
        silent: true,
        ..Send::default()
    })
}
