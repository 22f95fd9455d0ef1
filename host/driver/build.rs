// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Stages the driver's module.

fn main() {
    // That of its Kbuild, and one for tests only.
    stage::module(
        "../../efa_rs",
        "efa_main.rs",
        &["kverbs", "relaxed_ordering"],
    );
}
