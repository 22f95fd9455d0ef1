// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Stages the module.

fn main() {
    stage::module("module", "misuse_main.rs", &[]);
}
