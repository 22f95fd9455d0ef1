// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The data path: work requests and completions.
//!
//! Programs write work requests themselves, bypassing the driver. Send queues are in device memory,
//! as *low-latency queues*, and receive queues in host memory. A doorbell takes a producer counter.
//! All layouts are those of rdma-core's `efa_io_defs.h` and `efa_io_regs_defs.h`.

use super::{
    admin::mr::RegMrPermissions,
    wire::{
        self,
        bits,
        codes,
        layout, //
    }, //
};

/// Bytes of the largest send work request.
pub const MAX_WQE_SIZE: usize = 128;

/// Bytes of the smallest send work request.
pub const MIN_WQE_SIZE: usize = 64;

bits! {
    /// A local or remote key in a work request.
    pub struct Key(u32) {
        /// Identifier of the memory region.
        19:0 region => u32,
        /// Number of fast registrations of the region, modulo 16; 0 without fast registration.
        /// Source: amzn-drivers, kernel/linux/efa/src/efa_verbs.h.
        23:20 generation => u8,
    }
}

/// Address handle number in the completion of a message from a peer without address handle.
pub const UNKNOWN_AH: u16 = u16::MAX;

/// Offset of a UD payload in its receive buffer. The bytes before are for a global route header.
pub const UD_PAYLOAD_OFFSET: u32 = 40;

codes! {
    /// Operation of a work request.
    pub enum OpType: u8 {
        /// Sends to a receive buffer.
        Send = 0 => "SEND",
        /// Reads from memory of the peer.
        RdmaRead = 1 => "RDMA_READ",
        /// Writes to memory of the peer.
        RdmaWrite = 2 => "RDMA_WRITE",
        /// Sets the pages of a memory region, see [`FastMrRegReq`].
        FastReg = 3 => "FAST_REG",
        /// Removes the pages of a memory region, see [`FastMrInvReq`].
        FastInv = 4 => "FAST_INV",
    }
}

bits! {
    /// First control byte of a send work request.
    pub struct TxCtrl1(u8) {
        /// Operation, an [`OpType`].
        3:0 op_type => u8 as OpType,
        /// The work request has immediate data.
        4:4 has_imm => bool,
        /// The data is in the work request instead of buffers.
        5:5 inline_msg => bool,
        /// A second descriptor follows the first.
        6:6 meta_extension => bool,
        /// This is a meta descriptor; always set.
        7:7 meta_desc => bool,
    }
}

bits! {
    /// Second control byte of a send work request.
    pub struct TxCtrl2(u8) {
        /// Phase: toggles with each pass through the queue; 0 in the first pass.
        0:0 phase => bool,
        /// First descriptor of the work request; always set.
        2:2 first => bool,
        /// Last descriptor of the work request; always set.
        3:3 last => bool,
        /// Success generates a completion, too.
        4:4 comp_req => bool,
    }
}

bits! {
    /// Third control byte of a send work request.
    pub struct TxCtrl3(u8) {
        /// Optimization hints, see [`HINT_BURST_PPS_SENSITIVE`].
        1:0 processing_hints => u8,
    }
}

/// Hint that many small messages follow each other.
pub const HINT_BURST_PPS_SENSITIVE: u8 = 1 << 0;

layout! {
    /// First half of a send work request of 64 bytes, and first quarter of one of 128 bytes.
    pub struct TxMetaDesc[32] {
        /// Request id, which the completion repeats.
        req_id @ 0: u16,
        /// Operation.
        ctrl1 @ 2: TxCtrl1,
        /// Framing.
        ctrl2 @ 3: TxCtrl2,
        /// Queue pair of the peer.
        dest_qp_num @ 4: u16 as Id,
        /// Bytes of inline data, or number of buffers.
        length @ 6: u16,
        /// Immediate data.
        immediate_data @ 8: u32 as Hex,
        /// Address handle of the peer.
        ah @ 12: u16 as Id,
        /// Hints.
        ctrl3 @ 14: TxCtrl3,
        /// Q_Key of the peer's queue pair.
        qkey @ 16: u32 as Hex,
        /// The upper 48 bits of the request id, if the queue has ids of 64 bits.
        req_id_ex @ 26: [u8; 6],
    }
}

layout! {
    /// A buffer of a send work request.
    pub struct TxBufDesc[16] {
        /// Length in bytes.
        length @ 0: u32,
        /// Local key of the memory region, 24 bits.
        lkey @ 4: u32 as Key,
        /// Address.
        buf_addr @ 8: u64 as Address,
    }
}

layout! {
    /// Memory of the peer.
    pub struct RemoteMemAddr[16] {
        /// Length in bytes.
        length @ 0: u32,
        /// Remote key of the memory region.
        rkey @ 4: u32 as Key,
        /// Address.
        buf_addr @ 8: u64 as Address,
    }
}

codes! {
    /// Location of the bus addresses of the pages in a [`FastMrRegReq`].
    pub enum PblMode: u8 {
        /// In the work request, which has room for one.
        Inline = 0 => "INLINE_PBL",
        /// In host memory, 8 bytes each.
        Direct = 1 => "DIRECT_PBL",
    }
}

bits! {
    /// Page size and page list of a [`FastMrRegReq`].
    pub struct FastMrRegFlags(u8) {
        /// Binary logarithm of the page size in bytes.
        4:0 phys_page_size_shift => u8,
        /// Location of the pages' addresses, a [`PblMode`].
        6:5 pbl_mode => u8 as PblMode,
    }
}

layout! {
    /// Second half of a fast registration, a send work request that sets a memory region's pages.
    pub struct FastMrRegReq[32] {
        /// Local key of the region, with the new generation of its keys.
        lkey @ 0: u32 as Key,
        /// Permitted accesses to the region.
        permissions @ 4: RegMrPermissions,
        /// Page size and page list.
        flags @ 5: FastMrRegFlags,
        /// IOVA: address of the region's start in work requests.
        iova @ 8: u64 as Address,
        /// Length of the region in bytes.
        mr_length @ 16: u64,
        /// Bus address of the only page, or of the list of page addresses.
        pbl @ 24: u64 as Address,
    }
}

layout! {
    /// Second half of a send work request that removes the pages of a memory region.
    pub struct FastMrInvReq[32] {
        /// Local key of the region.
        lkey @ 0: u32 as Key,
    }
}

bits! {
    /// Last word of a receive descriptor.
    pub struct RxLkeyCtrl(u32) {
        /// Local key of the memory region.
        23:0 lkey => u32 as Key,
        /// First descriptor of a work request.
        30:30 first => bool,
        /// Last descriptor of a work request.
        31:31 last => bool,
    }
}

layout! {
    /// One buffer of a receive work request, which consists of one or more of these.
    pub struct RxDesc[16] {
        /// Address.
        buf_addr @ 0: u64 as Address,
        /// Request id, which the completion repeats; used in the first descriptor only.
        req_id @ 8: u16,
        /// Length in bytes.
        length @ 10: u16,
        /// Key and framing.
        lkey_ctrl @ 12: RxLkeyCtrl,
    }
}

codes! {
    /// Completion status of a work request.
    pub enum CompStatus: u8 {
        /// Success.
        Ok = 0 => "OK",
        /// Not executed, because the queue pair is in error or destroyed.
        Flushed = 1 => "FLUSHED",
        /// The queue pair is in error.
        LocalQpInternalError = 2 => "LOCAL_ERROR_QP_INTERNAL_ERROR",
        /// The device or the queue pair does not support the operation.
        LocalUnsupportedOp = 3 => "LOCAL_ERROR_UNSUPPORTED_OP",
        /// There is no such address handle.
        LocalInvalidAh = 4 => "LOCAL_ERROR_INVALID_AH",
        /// No memory region permits the queue pair to use a buffer.
        LocalInvalidLkey = 5 => "LOCAL_ERROR_INVALID_LKEY",
        /// The message is too long.
        LocalBadLength = 6 => "LOCAL_ERROR_BAD_LENGTH",
        /// No memory region of the peer permits the access to its memory.
        RemoteBadAddress = 7 => "REMOTE_ERROR_BAD_ADDRESS",
        /// The peer aborted the operation.
        RemoteAbort = 8 => "REMOTE_ERROR_ABORT",
        /// The peer's queue pair does not exist, or can't receive.
        RemoteBadDestQpn = 9 => "REMOTE_ERROR_BAD_DEST_QPN",
        /// The peer has no receive work request.
        RemoteRnr = 10 => "REMOTE_ERROR_RNR",
        /// The peer's receive work request is too short.
        RemoteBadLength = 11 => "REMOTE_ERROR_BAD_LENGTH",
        /// The peer responded with an error of its own.
        RemoteBadStatus = 12 => "REMOTE_ERROR_BAD_STATUS",
        /// The peer responded before, but no longer does.
        LocalUnrespRemote = 13 => "LOCAL_ERROR_UNRESP_REMOTE",
        /// The peer has no address handle for the requester.
        RemoteUnknownPeer = 14 => "REMOTE_ERROR_UNKNOWN_PEER",
        /// The peer never responded.
        LocalUnreachRemote = 15 => "LOCAL_ERROR_UNREACH_REMOTE",
        /// The peer does not support the operation.
        RemoteFeatureMismatch = 18 => "REMOTE_ERROR_FEATURE_MISMATCH",
    }
}

codes! {
    /// Queues of a queue pair.
    pub enum QueueType: u8 {
        /// Send queue.
        Send = 1 => "SEND_QUEUE",
        /// Receive queue.
        Receive = 2 => "RECV_QUEUE",
    }
}

bits! {
    /// Flags of a completion.
    pub struct CdescFlags(u8) {
        /// Phase: toggles with each pass through the queue; 1 in the first pass.
        0:0 phase => bool,
        /// Queue of the work request, a [`QueueType`].
        2:1 q_type => u8 as QueueType,
        /// The message has immediate data.
        3:3 has_imm => bool,
        /// Operation, an [`OpType`].
        6:4 op_type => u8 as OpType,
        /// The message consumed no receive work request.
        7:7 unsolicited => bool,
    }
}

layout! {
    /// A completion. Entries of 16 bytes have the first half of it.
    pub struct Cdesc[32] {
        /// Request id of the completed work request.
        req_id @ 0: u16,
        /// Completion status, a [`CompStatus`].
        status @ 2: u8 as CompStatus,
        /// Phase, and kind of the work request.
        flags @ 3: CdescFlags,
        /// Number of its queue pair.
        qp_num @ 4: u16 as Id,
        /// Bytes received; for an RDMA write, the low half. For a send queue, this and all later
        /// fields are zero, unless [`Cdesc::with_req_id_ex`] has set them.
        length @ 6: u16,
        /// Address handle of the peer, or [`UNKNOWN_AH`].
        ah @ 8: u16 as Id,
        /// Queue pair of the peer.
        src_qp_num @ 10: u16 as Id,
        /// Immediate data.
        imm @ 12: u32 as Hex,
        /// For an RDMA write, the high half of the length in the first two bytes. Otherwise the GID
        /// of a peer without address handle, if the queue was created to report it.
        extension @ 16: [u8; 16],
    }
}

/// Offset of the byte with the phase in a completion.
pub const CDESC_FLAGS_OFFSET: usize = 3;

impl Cdesc {
    /// Adds the upper 48 bits of a send work request's id, unchanged. They take the fields for
    /// length and peer, which only receives use.
    #[must_use]
    pub fn with_req_id_ex(self, [a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self {
            length: u16::from_le_bytes([a, b]),
            ah: u16::from_le_bytes([c, d]),
            src_qp_num: u16::from_le_bytes([e, f]),
            ..self
        }
    }
}

bits! {
    /// Doorbell of a completion queue.
    pub struct CqDb(u32) {
        /// Number of completions that the program has consumed, modulo 2^16.
        15:0 consumer_index => u16,
        /// Number of events that the program has received, modulo 4.
        30:29 cmd_sn => u8,
        /// Whether the next completion raises an event.
        31:31 arm => bool,
    }
}
