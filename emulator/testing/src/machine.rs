// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Machines without a CPU: vfio-user clients with memory, which act as VMM, driver and program of an emulated EFA.
//!
//! A [`Machine`] is the VMM, which has memory and maps it for the device, and the driver. An [`End`] is a machine with the
//! objects of a program: a queue pair and a region. Each takes microseconds where a guest takes seconds, and does what no
//! guest's driver permits to a program. An [`Emulator`] is the process that they use.
//!
//! Failures panic, as all of this is for tests and measurements.

mod control;
mod emulator;
mod end;
mod ram;
mod socket;

pub use control::Control;
pub use emulator::{Emulator, Thread, free_address, limited, program, runnable};
pub use end::End;
pub use ram::{BASE, Ram};
pub use socket::{MEMORY_AND_BUS_MASTER, Machine, Socket};
