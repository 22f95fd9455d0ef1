// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for completion queues.

use super::*;

bits! {
    /// Modes of a completion queue.
    pub struct CqCaps1(u8) {
        /// New completions raise events, if the queue is armed.
        5:5 interrupt_mode_enabled => bool,
        /// The ring's address is one of a memory region instead of a bus address.
        6:6 virt => bool,
    }
}

bits! {
    /// Format of a completion queue's entries.
    pub struct CqCaps2(u8) {
        /// 32-bit words in one entry: 4 or 8.
        4:0 cq_entry_size_words => u8,
        /// Completions of messages from unknown peers hold the peer's address; only in entries of 8
        /// words.
        5:5 set_src_addr => bool,
        /// Completions of send queues have request ids of 64 bits.
        6:6 sq_comp_64_bit_req_id => bool,
    }
}

layout! {
    /// Creates a completion queue.
    pub struct CreateCq[60] {
        /// Modes of the queue.
        caps_1 @ 0: CqCaps1,
        /// Format of the entries.
        caps_2 @ 1: CqCaps2,
        /// Number of entries in each sub-queue, a power of two.
        sub_cq_depth @ 2: u16,
        /// Number of the event queue for its events.
        eqn @ 4: u16 as Id,
        /// Address of the ring.
        base_address @ 8: u64 as Address,
        /// Local key of the ring's memory region, if the address is one of a region.
        l_key @ 16: u32 as Hex,
        /// Number of sub-queues: [`sub_cqs_per_cq`].
        ///
        /// [`sub_cqs_per_cq`]: super::super::features::QueueAttr1::sub_cqs_per_cq
        num_sub_cqs @ 20: u16,
        /// User access region of the doorbell.
        uar @ 22: u16 as Id,
    }
}

bits! {
    /// Optional fields of a response.
    pub struct CreateCqResponseFlags(u32) {
        /// The doorbell's offset is valid.
        0:0 db_valid => bool,
    }
}

layout! {
    /// The new completion queue.
    pub struct CreateCqResponse[64] {
        /// Number of the completion queue.
        cq_idx @ 8: u16 as Id,
        /// Actual number of entries in each sub-queue.
        sub_cq_actual_depth @ 10: u16,
        /// Offset of its doorbell in the doorbell BAR.
        db_offset @ 12: u32 as Hex,
        /// Valid fields.
        flags @ 16: CreateCqResponseFlags,
    }
}

command!(Opcode::CreateCq, CreateCq => CreateCqResponse);

layout! {
    /// Destroys a completion queue.
    pub struct DestroyCq[60] {
        /// Number of the completion queue.
        cq_idx @ 0: u16 as Id,
    }
}

command!(Opcode::DestroyCq, DestroyCq => NoData);
