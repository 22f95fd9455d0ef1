// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What an operator makes a device do that no good one does.

pub(crate) mod death;
pub(crate) mod names;
pub(crate) mod rules;
pub(crate) mod storm;
pub(crate) mod then;
pub(crate) mod when;
