// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Stages the sample's module.

fn main() {
    // The same `cfg`s as in its Kbuild.
    stage::module("../../samples/null_rdma", "null_rdma_main.rs", &[]);
}
