// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Machines without a CPU: vfio-user clients with memory, that do with an emulated EFA what a VMM, a driver and programs do.
//!
//! A [`Machine`] is the VMM: it has memory and maps it for the device. Its [`Machine::start`] is the driver: it resets the device and
//! executes commands. [`QueuePair`]s and [`Region`]s are what programs have. Each takes microseconds where a guest takes seconds,
//! and does what no guest's driver lets a program do. An [`Emulator`] is the process that they use.
//!
//! What fails panics, as it is all for tests and measurements.

#![forbid(unsafe_code)]

mod bound;
mod emulator;
mod end;
mod machine;
mod program;
mod ram;

pub use bound::{BOUNDS, Bound};
pub use emulator::{Emulator, free_address};
pub use end::{End, pattern};
pub use machine::Machine;
pub use program::{QKEY, QueuePair, Region, Send};
