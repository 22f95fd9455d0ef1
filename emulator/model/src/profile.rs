// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What kind of device it is: what it says of itself, and what follows from that.

pub(crate) mod attributes;
pub(crate) mod bars;
pub(crate) mod config;
pub(crate) mod generation;
pub(crate) mod instance;
