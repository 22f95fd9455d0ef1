// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attacks by guests, by other emulators and by clients of the control socket.

pub mod control;
pub mod control_path;
pub mod peers;
mod precious;
pub mod programs;
pub mod transport;
