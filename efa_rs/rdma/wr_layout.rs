// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Structures of send work requests, which depend on the transport.

use core::mem::offset_of;

use crate::ffi::{
    ib_rdma_wr,
    ib_srd_rdma_wr,
    ib_srd_wr,
    ib_ud_wr, //
};

/// Offsets in bytes of a transport's fields in a send work request, behind the core's `ib_send_wr`.
///
/// # Invariants
///
/// All offsets are of one transport, of fields of the types that [`SendWr`](super::SendWr) reads.
#[derive(Clone, Copy)]
pub(crate) struct SendWrLayout {
    /// Pointer to the address handle.
    pub(super) ah: usize,
    /// Number of the peer's queue pair.
    pub(super) remote_qpn: usize,
    /// Q_Key of the peer's queue pair.
    pub(super) remote_qkey: usize,
    /// Address of the peer's memory and its key, if the transport has RDMA.
    pub(super) remote_memory: Option<(usize, usize)>,
}

// Each kind of work request begins with the core's `ib_send_wr`.
const _: () = {
    assert!(offset_of!(ib_ud_wr, wr) == 0);
    assert!(offset_of!(ib_srd_wr, wr) == 0);
    assert!(offset_of!(ib_srd_rdma_wr, wr) == 0);
    // The core's RDMA write to address zero has no address handle in any of them.
    assert!(offset_of!(ib_ud_wr, ah) == offset_of!(ib_rdma_wr, remote_addr));
    assert!(offset_of!(ib_srd_wr, ah) == offset_of!(ib_rdma_wr, remote_addr));
};

impl SendWrLayout {
    /// Unreliable datagrams.
    // INVARIANT: The offsets are of `ib_ud_wr`.
    pub(crate) const UD: Self = Self {
        ah: offset_of!(ib_ud_wr, ah),
        remote_qpn: offset_of!(ib_ud_wr, remote_qpn),
        remote_qkey: offset_of!(ib_ud_wr, remote_qkey),
        remote_memory: None,
    };

    /// EFA's scalable reliable datagrams, `include/efa_verbs.h`.
    // INVARIANT: The offsets are of `ib_srd_wr` and `ib_srd_rdma_wr`.
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

/// Memory of the peer.
pub(crate) struct RemoteMemory {
    /// Address.
    pub(crate) addr: u64,
    /// Remote key of the memory region.
    pub(crate) rkey: u32,
}
