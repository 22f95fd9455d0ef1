// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Stages the driver's module.

fn main() {
    // The same `cfg`s as in its Kbuild.
    stage::module("../../efa_rs", "efa_main.rs", &["kverbs"]);
}
