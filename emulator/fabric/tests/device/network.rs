// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What queue pairs exchange, on networks of all kinds.

mod ended;
mod messages;
mod occupied;
mod reliability;

use super::*;
