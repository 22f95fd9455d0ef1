// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices on a network, as a driver, its programs, an operator and other emulators use them. A device by itself is such a network.

mod admin;
mod data_path;
mod event_counters;
mod faults;
mod hostile;
mod memory;
mod network;
mod objects;
mod programs;
mod statuses;

use efa_testing::prelude::*;
