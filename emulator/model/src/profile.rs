// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Kinds of devices: their attributes, and the layout of BARs that follows from these.

pub(crate) mod attributes;
pub(crate) mod bars;
pub(crate) mod config;
pub(crate) mod generation;
