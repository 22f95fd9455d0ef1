// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Fault injection: misbehaviour of a device that its operator requests.

pub(crate) mod death;
pub(crate) mod names;
pub(crate) mod rules;
pub(crate) mod storm;
pub(crate) mod then;
pub(crate) mod when;
