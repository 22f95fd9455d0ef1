// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The RDMA core and `ib_uverbs` of Linux 7.3 over a simulated machine.
//!
//! Drivers and clients call it by the functions of C that their bindings name; programs are
//! [`Process`](uverbs::Process)es. Its types are those that bindgen has made for the drivers: `EFA_BINDINGS`
//! names that file.

#![allow(
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref,
    reason = "functions have the contracts of C; devices are those that the core has"
)]

/// Types and functions of C, as bindgen has them.
#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    unused_imports,
    reason = "the output of bindgen"
)]
pub mod ffi {
    include!(env!(
        "EFA_BINDINGS",
        "it names the output of bindgen: see host/README.md"
    ));
}

pub mod client;
pub mod cq;
mod device;
pub mod dmabuf;
#[allow(improper_ctypes_definitions, reason = "the types are those of bindgen")]
mod exports;
mod mmap;
pub mod registry;
pub mod stats;
mod udata;
pub mod umem;
pub mod uverbs;
pub mod verbs;
