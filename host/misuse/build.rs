// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Stages the module.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(refused)");
    println!("cargo::rerun-if-env-changed=MISUSE_REFUSED");
    if let Ok(file) = std::env::var("MISUSE_REFUSED") {
        println!("cargo::rustc-cfg=refused");
        println!("cargo::rustc-env=MISUSE_REFUSED={file}");
    }
    stage::module("module", "misuse_main.rs", &["kverbs", "rdma_client"]);
}
