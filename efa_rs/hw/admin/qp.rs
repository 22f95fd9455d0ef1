// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for queue pairs.

use super::*;

codes! {
    /// Transports.
    pub enum QpType: u8 {
        /// Unreliable datagram.
        Ud = 1 => "UD",
        /// Scalable reliable datagram.
        Srd = 2 => "SRD",
    }
}

codes! {
    /// States of a queue pair, as in the verbs.
    pub enum QpState: u32 {
        /// Newly created, or reset.
        Reset = 0 => "RESET",
        /// Initialised: receive work requests may be posted.
        Init = 1 => "INIT",
        /// Ready to receive.
        Rtr = 2 => "RTR",
        /// Ready to send.
        Rts = 3 => "RTS",
        /// Send queue drained.
        Sqd = 4 => "SQD",
        /// Send queue in error.
        Sqe = 5 => "SQE",
        /// In error.
        Err = 6 => "ERR",
    }
}

bits! {
    /// Properties of a new queue pair.
    pub struct CreateQpFlags(u8) {
        /// The send ring's address is one of a memory region instead of a bus address.
        0:0 sq_virt => bool,
        /// The receive ring's address is one of a memory region instead of a bus address.
        1:1 rq_virt => bool,
        /// Incoming RDMA writes with immediate consume no receive work request.
        2:2 unsolicited_write_recv => bool,
        /// Request ids of the send queue have 64 bits, as must those in its completion queue.
        3:3 sq_64_bit_req_id => bool,
    }
}

layout! {
    /// Creates a queue pair.
    pub struct CreateQp[60] {
        /// Protection domain.
        pd @ 0: u16 as Id,
        /// Transport, a [`QpType`].
        qp_type @ 2: u8 as QpType,
        /// Properties.
        flags @ 3: CreateQpFlags,
        /// Address of the send ring; not used for a low-latency queue.
        sq_base_addr @ 4: u64 as Hex,
        /// Address of the receive ring.
        rq_base_addr @ 12: u64 as Address,
        /// Completion queue of the send queue.
        send_cq_idx @ 20: u32 as Id,
        /// Completion queue of the receive queue.
        recv_cq_idx @ 24: u32 as Id,
        /// Local key of the send ring's memory region, if the ring's address is one of a region.
        sq_l_key @ 28: u32 as Hex,
        /// Local key of the receive ring's memory region, if the ring's address is one of a region.
        rq_l_key @ 32: u32 as Hex,
        /// Bytes of the send ring.
        send_queue_ring_size @ 36: u32,
        /// Maximum number of outstanding work requests in the send queue.
        send_queue_depth @ 40: u32,
        /// Bytes of the receive ring.
        recv_queue_ring_size @ 44: u32,
        /// Maximum number of outstanding work requests in the receive queue.
        recv_queue_depth @ 48: u32,
        /// User access region of the doorbells.
        uar @ 52: u16 as Id,
        /// Service level; 0 is the default.
        sl @ 54: u8,
    }
}

layout! {
    /// The new queue pair.
    pub struct CreateQpResponse[64] {
        /// Handle of the queue pair in later commands.
        qp_handle @ 8: u32 as Id,
        /// Number of the queue pair, by which peers address it.
        qp_num @ 12: u16 as Id,
        /// Sub-queue of the send queue's completion queue.
        send_sub_cq_idx @ 16: u16,
        /// Sub-queue of the receive queue's completion queue.
        recv_sub_cq_idx @ 18: u16,
        /// Offset of the send queue's doorbell in the doorbell BAR.
        sq_db_offset @ 20: u32 as Hex,
        /// Offset of the receive queue's doorbell in the doorbell BAR.
        rq_db_offset @ 24: u32 as Hex,
        /// Offset of the send ring in [`MEMORY_BAR`](super::super::pci::MEMORY_BAR).
        llq_descriptors_offset @ 28: u32 as Hex,
    }
}

command!(Opcode::CreateQp, CreateQp => CreateQpResponse);

bits! {
    /// Valid fields of a modification.
    pub struct ModifyQpMask(u32) {
        /// [`ModifyQp::qp_state`].
        0:0 qp_state => bool,
        /// [`ModifyQp::cur_qp_state`].
        1:1 cur_qp_state => bool,
        /// [`ModifyQp::qkey`].
        2:2 qkey => bool,
        /// [`ModifyQp::sq_psn`].
        3:3 sq_psn => bool,
        /// [`ModifyQp::sq_drained_async_notify`].
        4:4 sq_drained_async_notify => bool,
        /// [`ModifyQp::rnr_retry`].
        5:5 rnr_retry => bool,
    }
}

layout! {
    /// Modifies a queue pair.
    pub struct ModifyQp[60] {
        /// Valid fields among those below.
        modify_mask @ 0: ModifyQpMask,
        /// The queue pair's handle.
        qp_handle @ 4: u32 as Id,
        /// New state, a [`QpState`].
        qp_state @ 8: u32 as QpState,
        /// Current state according to the caller, a [`QpState`].
        cur_qp_state @ 12: u32 as QpState,
        /// Q_Key.
        qkey @ 16: u32 as Hex,
        /// Packet sequence number of the send queue.
        sq_psn @ 20: u32 as Hex,
        /// Whether to notify when the send queue is drained.
        sq_drained_async_notify @ 24: bool,
        /// Number of retries if the receiver is not ready; SRD only.
        rnr_retry @ 25: u8,
    }
}

command!(Opcode::ModifyQp, ModifyQp => NoData);

layout! {
    /// Queries the state of a queue pair.
    pub struct QueryQp[60] {
        /// The queue pair's handle.
        qp_handle @ 0: u32 as Id,
    }
}

layout! {
    /// State of a queue pair.
    pub struct QueryQpResponse[64] {
        /// State, a [`QpState`].
        qp_state @ 8: u32 as QpState,
        /// Q_Key.
        qkey @ 12: u32 as Hex,
        /// Packet sequence number of the send queue.
        sq_psn @ 16: u32 as Hex,
        /// Whether the send queue is being drained.
        sq_draining @ 20: bool,
        /// Number of retries if the receiver is not ready; SRD only.
        rnr_retry @ 21: u8,
    }
}

command!(Opcode::QueryQp, QueryQp => QueryQpResponse);

layout! {
    /// Destroys a queue pair.
    pub struct DestroyQp[60] {
        /// The queue pair's handle.
        qp_handle @ 0: u32 as Id,
    }
}

command!(Opcode::DestroyQp, DestroyQp => NoData);
