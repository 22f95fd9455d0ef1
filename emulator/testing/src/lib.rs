// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What tests and fuzz targets of the emulated device share.
//!
//! [`driver`], [`commands`], [`qp`] and [`region`] are the least of a driver and of a program, over any [`bus`]. [`mock`] is the host of a device in
//! process. [`net`] is such devices on a network. [`machine`] is what uses a device behind a vfio-user socket. [`cases`]
//! is what two queue pairs do over either. [`attack`] does to a device what bytes say that a test or a fuzzer makes up;
//! [`input`] is these bytes. [`peer`] is what another emulator says to this one. [`wait`] is the only clock of a test.
//!
//! The tests in `tests/` of other crates use this one. Tests that are in the source of a crate on which this one depends can't:
//! to them the types here are those of another crate.

#![forbid(unsafe_code)]

pub mod attack;
pub mod bus;
pub mod cases;
pub mod commands;
pub mod driver;
pub mod input;
pub mod machine;
pub mod mock;
pub mod net;
pub mod peer;
pub mod qp;
pub mod region;
pub mod wait;
