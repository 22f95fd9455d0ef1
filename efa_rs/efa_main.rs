// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Driver for AWS Elastic Fabric Adapter (EFA).

#![deny(unsafe_code)]
#![deny(clippy::multiple_unsafe_ops_per_block)]

mod com;
mod driver;
#[allow(unsafe_code, reason = "bindings of C")]
mod ffi;
mod hw;
#[cfg(kverbs)]
mod io;
#[allow(unsafe_code, reason = "makes the RDMA core safe to use")]
mod rdma;
#[allow(unsafe_code, reason = "makes what the kernel crate lacks safe to use")]
mod sys;
mod verbs;
mod version;

kernel::prelude::module! {
    type: driver::EfaModule,
    name: "efa",
    authors: ["The efa-rs authors"],
    description: "Elastic Fabric Adapter (EFA)",
    license: "Dual BSD/GPL",
    params: {
        recovery: u8 {
            default: 1,
            description: "Recover failed devices automatically (0: no, 1: yes)",
        },
    },
}
