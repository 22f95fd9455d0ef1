// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rules that make a device misbehave, and devices that die.

mod commands;
mod death;
mod work;

use super::*;
