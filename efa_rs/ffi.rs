// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! C functions, types and constants that the kernel crate does not bind.
//!
//! bindgen generates them from `ffi/bindings_helper.h` when the module is built. `ffi/helpers.c`
//! wraps macros and static inline functions of the headers.

#[allow(
    clippy::all,
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::cast_lossless,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    unused_imports,
    reason = "bindgen's output"
)]
mod bindings {
    include!("ffi/bindings_generated.rs");
}

pub(crate) use bindings::*;

mod uapi;

pub(crate) use uapi::UapiDefinitions;

/// EFA's own uverbs methods and attributes, defined in `ffi/uapi.c`. They read four numbers behind a memory region: see
/// `struct efa_mr_object`.
pub(crate) const EFA_UAPI_DEFINITIONS: UapiDefinitions<[u16; 4]> = {
    const BEHIND: usize = size_of::<ib_mr>();
    assert!(core::mem::offset_of!(efa_mr_object, validity) == BEHIND);
    assert!(core::mem::offset_of!(efa_mr_object, rdma_recv_ic_id) == BEHIND + 6);
    let list = (&raw const efa_uapi_definitions).cast();
    // SAFETY: The C array is constant, and ends with a `UAPI_DEF_END` entry. Its methods read the fields that
    // the assertions above are about.
    unsafe { UapiDefinitions::new(list) }
};
