// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! C functions, types and constants that the kernel crate does not bind.
//!
//! bindgen makes them from `ffi/bindings_helper.h` when the module is built; `ffi/helpers.c` has
//! functions for what the headers have as macros and static inlines.

#[allow(
    clippy::all,
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

#[cfg(any(kverbs, rdma_client))]
use core::mem::offset_of;

pub(crate) use bindings::*;

/// Methods of the RDMA core's objects that a driver declares in C.
#[derive(Clone, Copy)]
pub(crate) struct UapiDefinitions(*const uapi_definition);

// SAFETY: The definitions are constant.
unsafe impl Sync for UapiDefinitions {}

impl UapiDefinitions {
    /// Those of EFA, `ffi/uapi.c`.
    pub(crate) const EFA: Self = Self((&raw const efa_uapi_definitions).cast());

    /// Returns the list.
    pub(crate) const fn as_ptr(self) -> *const uapi_definition {
        self.0
    }
}

/// Where a send work request has what the core's `ib_send_wr`, with which it begins, does not: offsets in
/// bytes, which depend on the transport.
#[cfg(any(kverbs, rdma_client))]
#[derive(Clone, Copy)]
pub(crate) struct SendWrLayout {
    /// Pointer to the address handle.
    pub(crate) ah: usize,
    /// Number of the peer's queue pair.
    pub(crate) remote_qpn: usize,
    /// Q_Key of the peer's queue pair.
    pub(crate) remote_qkey: usize,
    /// Address of the peer's memory and its key, if the transport has RDMA.
    pub(crate) remote_memory: Option<(usize, usize)>,
}

#[cfg(any(kverbs, rdma_client))]
impl SendWrLayout {
    /// Unreliable datagrams.
    pub(crate) const UD: Self = Self {
        ah: offset_of!(ib_ud_wr, ah),
        remote_qpn: offset_of!(ib_ud_wr, remote_qpn),
        remote_qkey: offset_of!(ib_ud_wr, remote_qkey),
        remote_memory: None,
    };

    /// EFA's reliable datagrams, `include/efa_verbs.h`.
    pub(crate) const EFA_SRD: Self = Self {
        ah: offset_of!(ib_srd_wr, ah),
        remote_qpn: offset_of!(ib_srd_wr, remote_qpn),
        remote_qkey: offset_of!(ib_srd_wr, remote_qkey),
        remote_memory: Some((
            offset_of!(ib_srd_rdma_wr, remote_addr),
            offset_of!(ib_srd_rdma_wr, rkey),
        )),
    };
}

// Both kinds of work request begin with the core's.
#[cfg(any(kverbs, rdma_client))]
const _: () = {
    assert!(offset_of!(ib_ud_wr, wr) == 0);
    assert!(offset_of!(ib_srd_wr, wr) == 0);
    assert!(offset_of!(ib_srd_rdma_wr, wr) == 0);
};
