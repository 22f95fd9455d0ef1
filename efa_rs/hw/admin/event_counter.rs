// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands for event counters: the device counts what happens to queue pairs, in memory of the host.

use super::{
    super::{
        admin,
        wire::{
            self,
            bits,
            codes,
            layout, //
        }, //
    },
    command,
    NoData,
    Opcode, //
};

bits! {
    /// What can be counted of a queue pair.
    pub struct QpEvents(u32) {
        /// Sends that ended well.
        0:0 send_comp => bool,
        /// Sends that failed.
        1:1 send_comp_err => bool,
        /// Receives that ended well.
        2:2 recv_comp => bool,
        /// Receives that failed.
        3:3 recv_comp_err => bool,
        /// RDMA reads that ended well.
        4:4 read_comp => bool,
        /// RDMA reads that failed.
        5:5 read_comp_err => bool,
        /// RDMA writes that ended well.
        6:6 write_comp => bool,
        /// RDMA writes that failed.
        7:7 write_comp_err => bool,
        /// RDMA reads of peers that ended well.
        8:8 remote_read_comp => bool,
        /// RDMA writes of peers that ended well.
        9:9 remote_write_comp => bool,
    }
}

layout! {
    /// Creates an event counter.
    pub struct CreateEventCounter[60] {
        /// User access region of the program that it is for.
        uar @ 0: u16,
        /// Bus address of its value, 8 bytes that are aligned to their size.
        paddr @ 4: u64,
    }
}

layout! {
    /// The new event counter.
    pub struct CreateEventCounterResponse[64] {
        /// By which further commands refer to it.
        cntr_handle @ 8: u32,
    }
}

command!(Opcode::CreateEventCounter, CreateEventCounter => CreateEventCounterResponse);

layout! {
    /// Destroys an event counter.
    pub struct DestroyEventCounter[60] {
        /// Its handle.
        cntr_handle @ 0: u32,
    }
}

command!(Opcode::DestroyEventCounter, DestroyEventCounter => NoData);

codes! {
    /// What an event counter is attached to.
    pub enum AttachType: u8 {
        /// Events of a queue pair.
        QpEvents = 0 => "QP_EVENTS",
    }
}

layout! {
    /// Has an event counter count events.
    pub struct AttachEventCounter[60] {
        /// Its handle.
        cntr_handle @ 0: u32,
        /// Of what, an [`AttachType`].
        attach_type @ 4: u8,
        /// Handle of the queue pair.
        qp_handle @ 8: u32,
        /// Which events.
        events @ 12: QpEvents,
    }
}

command!(Opcode::AttachEventCounter, AttachEventCounter => NoData);

codes! {
    /// How the value of an event counter is changed.
    pub enum ModifyOp: u8 {
        /// It is replaced.
        Set = 0 => "SET",
        /// Something is added to it.
        Add = 1 => "ADD",
    }
}

layout! {
    /// Changes the value of an event counter.
    pub struct ModifyEventCounter[60] {
        /// Its handle.
        cntr_handle @ 0: u32,
        /// How, a [`ModifyOp`].
        operation @ 4: u8,
        /// To what, or by what.
        value @ 12: u64,
    }
}

command!(Opcode::ModifyEventCounter, ModifyEventCounter => NoData);

layout! {
    /// Has an event counter not count events any more: the opposite of [`AttachEventCounter`].
    pub struct DetachEventCounter[60] {
        /// Its handle.
        cntr_handle @ 0: u32,
        /// Of what, an [`AttachType`].
        attach_type @ 4: u8,
        /// Handle of the queue pair.
        qp_handle @ 8: u32,
        /// Which events.
        events @ 12: QpEvents,
    }
}

command!(Opcode::DetachEventCounter, DetachEventCounter => NoData);
