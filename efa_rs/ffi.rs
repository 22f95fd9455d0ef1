// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! C functions, types and constants that the kernel crate does not bind.
//!
//! bindgen generates them from `ffi/bindings_helper.h` when the module is built. `ffi/helpers.c`
//! wraps macros and static inline functions of the headers.

use kernel::transmute::{
    AsBytes,
    FromBytes, //
};

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

/// Implements a constructor for structures of which zeroes are a valid value: they have numbers, arrays of
/// these, booleans, and pointers that may be null.
macro_rules! zeroed {
    ($($name:ident),* $(,)?) => {$(
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: Zeroes are valid for each field of a structure in the list.
                unsafe { core::mem::zeroed() }
            }
        }
    )*};
}

zeroed!(
    ib_client,
    ib_device_attr,
    ib_event__bindgen_ty_1,
    ib_gid,
    ib_qp_attr,
    ib_qp_init_attr,
    ib_recv_wr,
    ib_reg_wr,
    ib_send_wr,
    ib_wc,
    rdma_ah_attr,
    rdma_user_mmap_entry,
);

/// Implements conversions for structures of the userspace ABI, which have integers and arrays of these.
macro_rules! uapi {
    ($($name:ident),* $(,)?) => {
        zeroed!($($name),*);
        $(
            // SAFETY: Any bytes are valid integers.
            unsafe impl FromBytes for $name {}

            // SAFETY: The ABI names the padding, so that all bytes are initialized.
            unsafe impl AsBytes for $name {}
        )*
    };
}

uapi!(
    efa_ibv_alloc_pd_resp,
    efa_ibv_alloc_ucontext_cmd,
    efa_ibv_alloc_ucontext_resp,
    efa_ibv_create_ah_resp,
    efa_ibv_create_cq,
    efa_ibv_create_cq_resp,
    efa_ibv_create_qp,
    efa_ibv_create_qp_resp,
    efa_ibv_ex_query_device_resp,
);

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
