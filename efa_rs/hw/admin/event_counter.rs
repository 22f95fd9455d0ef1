// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for event counters, in which the device counts events of queue pairs in host memory.

use super::*;

bits! {
    /// Events of a queue pair that can be counted.
    pub struct QpEvents(u32) {
        /// Sends that succeeded.
        0:0 send_comp => bool,
        /// Sends that failed.
        1:1 send_comp_err => bool,
        /// Receives that succeeded.
        2:2 recv_comp => bool,
        /// Receives that failed.
        3:3 recv_comp_err => bool,
        /// RDMA reads that succeeded.
        4:4 read_comp => bool,
        /// RDMA reads that failed.
        5:5 read_comp_err => bool,
        /// RDMA writes that succeeded.
        6:6 write_comp => bool,
        /// RDMA writes that failed.
        7:7 write_comp_err => bool,
        /// RDMA reads by peers that succeeded.
        8:8 remote_read_comp => bool,
        /// RDMA writes by peers that succeeded.
        9:9 remote_write_comp => bool,
    }
}

layout! {
    /// Creates an event counter.
    pub struct CreateEventCounter[60] {
        /// User access region of the program that creates it.
        uar @ 0: u16 as Id,
        /// Bus address of the value, 8 bytes that are naturally aligned.
        paddr @ 4: u64 as Address,
    }
}

layout! {
    /// The new event counter.
    pub struct CreateEventCounterResponse[64] {
        /// Handle of the counter in later commands.
        cntr_handle @ 8: u32 as Id,
    }
}

command!(Opcode::CreateEventCounter, CreateEventCounter => CreateEventCounterResponse);

layout! {
    /// Destroys an event counter.
    pub struct DestroyEventCounter[60] {
        /// Handle of the counter.
        cntr_handle @ 0: u32 as Id,
    }
}

command!(Opcode::DestroyEventCounter, DestroyEventCounter => NoData);

codes! {
    /// Sources of events that a counter can be attached to.
    pub enum AttachType: u8 {
        /// Events of a queue pair.
        QpEvents = 0 => "QP_EVENTS",
    }
}

layout! {
    /// Attaches an event counter to events of a source.
    pub struct AttachEventCounter[60] {
        /// Handle of the counter.
        cntr_handle @ 0: u32 as Id,
        /// Kind of source, an [`AttachType`].
        attach_type @ 4: u8 as AttachType,
        /// Handle of the queue pair.
        qp_handle @ 8: u32 as Id,
        /// Events to count.
        events @ 12: QpEvents,
    }
}

command!(Opcode::AttachEventCounter, AttachEventCounter => NoData);

codes! {
    /// Modifications of an event counter's value.
    pub enum ModifyOp: u8 {
        /// Replaces the value.
        Set = 0 => "SET",
        /// Adds to the value.
        Add = 1 => "ADD",
    }
}

layout! {
    /// Modifies the value of an event counter.
    pub struct ModifyEventCounter[60] {
        /// Handle of the counter.
        cntr_handle @ 0: u32 as Id,
        /// Kind of modification, a [`ModifyOp`].
        operation @ 4: u8 as ModifyOp,
        /// New value, or number to add.
        value @ 12: u64,
    }
}

command!(Opcode::ModifyEventCounter, ModifyEventCounter => NoData);

layout! {
    /// Detaches an event counter from events of a source: the reverse of [`AttachEventCounter`].
    pub struct DetachEventCounter[60] {
        /// Handle of the counter.
        cntr_handle @ 0: u32 as Id,
        /// Kind of source, an [`AttachType`].
        attach_type @ 4: u8 as AttachType,
        /// Handle of the queue pair.
        qp_handle @ 8: u32 as Id,
        /// Events to stop counting.
        events @ 12: QpEvents,
    }
}

command!(Opcode::DetachEventCounter, DetachEventCounter => NoData);
