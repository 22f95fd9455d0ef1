// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue, features, storms of events, and the bytes by which drivers are compared. `scenarios` has the rest.

mod events;
mod features;
mod queue;
mod wire;

use super::*;
