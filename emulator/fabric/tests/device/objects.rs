// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects of a device: their numbers, limits and users, their attributes, and queues in host memory.

mod attributes;
mod places;
mod queues;
mod reference;

use super::*;

const FULL: Status = Status::ResourceAllocationFailure;
const BUSY: Status = Status::ResourceBusy;
