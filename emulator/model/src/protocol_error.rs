// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a correct driver never does.

use efa_hw::{admin::Opcode, regs::Register};

use crate::dma::DmaError;

/// Something that a correct driver never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A write to where no register is.
    #[error("write of {value:#x} to {offset:#x}, where no register is")]
    NoRegister {
        /// Where the write was.
        offset: u64,
        /// What was written.
        value: u32,
    },
    /// A write to a register that can only be read.
    #[error("write of {value:#x} to {register}, which is read-only")]
    ReadOnly {
        /// The register.
        register: Register,
        /// What was written.
        value: u32,
    },
    /// A register was used that can't be used while a reset is in progress.
    #[error("write of {value:#x} to {register} during a reset")]
    DuringReset {
        /// The register.
        register: Register,
        /// What was written.
        value: u32,
    },
    /// A register read without an address for the answer.
    #[error("read of register {offset:#x} without an address for the answer")]
    NoResponseAddress {
        /// Where the register is.
        offset: u16,
    },
    /// A read of where no register is.
    #[error("read of {offset:#x}, where no register is")]
    NoSuchRegister {
        /// Where the register would be.
        offset: u16,
    },
    /// A ring that can't be.
    #[error("{register} {value:#x} with base {base:#x} is not a possible ring")]
    Ring {
        /// The register with its geometry.
        register: Register,
        /// The geometry.
        value: u32,
        /// Its bus address.
        base: u64,
    },
    /// A control of the device that does not exist or is not possible now.
    #[error("DEV_CTL {value:#x} asks for nothing that can be done")]
    Control {
        /// What was written.
        value: u32,
    },
    /// A reset for a reason that does not exist.
    #[error("reset for the unknown reason {reason}")]
    ResetReason {
        /// The reason.
        reason: u8,
    },
    /// The doorbell of the admin queue before its rings are known.
    #[error("admin doorbell without admin queues")]
    NoQueue,
    /// More commands than can be outstanding.
    #[error("{submitted} new admin commands, but there is room for {room}")]
    Overflow {
        /// How many are new.
        submitted: u16,
        /// How many can be.
        room: usize,
    },
    /// A command with the phase of another round.
    #[error("admin command {command_id} has the wrong phase")]
    Phase {
        /// Id of the command.
        command_id: u16,
    },
    /// A command whose checksum does not match.
    #[error("admin command {command_id} has the wrong checksum")]
    Checksum {
        /// Id of the command.
        command_id: u16,
    },
    /// More events consumed than there were.
    #[error("AENQ_CONS_DB {consumed} is not between events consumed and events posted")]
    Consumer {
        /// How many were consumed according to the driver.
        consumed: u32,
    },
    /// The doorbell of an event queue that does not exist.
    #[error("EQ_DB for event queue {eqn}, which does not exist")]
    NoEventQueue {
        /// Number of the queue.
        eqn: u16,
    },
    /// A command for an object that a reset has ended.
    #[error("{opcode} for an object that a reset has ended")]
    EndedObject {
        /// The command.
        opcode: Opcode,
    },
    /// A doorbell where none can be.
    #[error("doorbell at {offset:#x}, where none was handed out")]
    NoDoorbell {
        /// Offset in the doorbell BAR.
        offset: u64,
    },
    /// A doorbell of a queue that does not exist in this user access region.
    #[error("doorbell in user access region {uar} for a queue that it has not")]
    ForeignDoorbell {
        /// The user access region.
        uar: u16,
    },
    /// The doorbell of a queue pair that can have no work requests.
    #[error("doorbell of queue pair {qp}, which is reset")]
    QueueState {
        /// The queue pair.
        qp: u16,
    },
    /// More work requests than the ring has room for.
    #[error("doorbell of queue pair {qp} for more work requests than there is room for")]
    QueueOverrun {
        /// The queue pair.
        qp: u16,
    },
    /// Memory that the device was told to use is not mapped.
    #[error(transparent)]
    Dma(#[from] DmaError),
}
