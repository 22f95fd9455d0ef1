// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The tools that tests and fuzz targets of the emulated device share.
//!
//! [`driver`], [`commands`], [`qp`] and [`region`] are a minimal driver and program, over any [`bus`]. [`mock`] is the host of
//! a device in process. [`net`] is a network of such devices. [`machine`] uses a device behind a vfio-user socket. [`cases`]
//! exchange data between two queue pairs over either. [`prelude`] has the names that most tests use. [`attack`] plays attacks, whose
//! bytes are from a test or a fuzzer. [`peer`] encodes messages of another emulator. [`wait`] is the only clock of a test.
//!
//! Tests in `tests/` of other crates use this crate. Tests within the source of a crate on which this one depends can't: for
//! them, the types here are those of another crate.

#![forbid(unsafe_code)]

pub mod attack;
pub mod bus;
pub mod cases;
pub mod commands;
pub mod driver;
pub mod machine;
pub mod mock;
pub mod net;
pub mod peer;
pub mod prelude;
pub mod qp;
pub mod region;
pub mod wait;
