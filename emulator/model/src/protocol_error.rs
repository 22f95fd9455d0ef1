// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Errors of a driver in the use of the interface.

use efa_hw::{admin::Opcode, regs::Register};

use crate::dma::DmaError;

/// An error that a correct driver never makes.
#[allow(missing_docs, reason = "the messages describe the errors and their fields")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("write of {value:#x} to {offset:#x}, where no register exists")]
    NoRegister { offset: u64, value: u32 },
    #[error("write of {value:#x} to {register}, which is read-only")]
    ReadOnly { register: Register, value: u32 },
    #[error("write of {value:#x} to {register} during a reset")]
    DuringReset { register: Register, value: u32 },
    #[error("read of register {offset:#x} without a response address")]
    NoResponseAddress { offset: u16 },
    #[error("read of {offset:#x}, where no register exists")]
    NoSuchRegister { offset: u16 },
    #[error("{register} {value:#x} with base {base:#x} is an invalid ring")]
    Ring { register: Register, value: u32, base: u64 },
    #[error("DEV_CTL {value:#x} is invalid in this state")]
    Control { value: u32 },
    #[error("reset for the unknown reason {reason}")]
    ResetReason { reason: u8 },
    #[error("admin doorbell without admin queues")]
    NoQueue,
    #[error("{submitted} new admin commands, but there is room for {room}")]
    Overflow { submitted: u16, room: usize },
    #[error("admin command {command_id} has the wrong phase")]
    Phase { command_id: u16 },
    #[error("admin command {command_id} has the wrong checksum")]
    Checksum { command_id: u16 },
    #[error("AENQ_CONS_DB {consumed} is not between events consumed and events posted")]
    Consumer { consumed: u32 },
    #[error("EQ_DB for event queue {eqn}, which does not exist")]
    NoEventQueue { eqn: u16 },
    #[error("{opcode} for an object that a reset has destroyed")]
    EndedObject { opcode: Opcode },
    #[error("doorbell at {offset:#x}, where no doorbell exists")]
    NoDoorbell { offset: u64 },
    #[error("doorbell in user access region {uar} for a queue outside of it")]
    ForeignDoorbell { uar: u16 },
    #[error("doorbell of queue pair {qp}, which is reset")]
    QueueState { qp: u16 },
    #[error("doorbell of queue pair {qp} for more work requests than there is room for")]
    QueueOverrun { qp: u16 },
    #[error(transparent)]
    Dma(#[from] DmaError),
}
