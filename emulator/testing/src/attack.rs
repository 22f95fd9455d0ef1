// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Guests, other emulators and clients of the control socket that do whatever they like.

pub mod control;
pub mod control_path;
pub mod peers;
mod precious;
pub mod programs;
pub mod transport;
