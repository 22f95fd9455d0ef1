// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Errors of a driver in the use of the interface.

use efa_hw::{admin::Opcode, regs::Register};

use crate::dma::DmaError;

/// An error that a correct driver never makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A write to an offset without a register.
    #[error("write of {value:#x} to {offset:#x}, where no register exists")]
    NoRegister {
        /// Offset of the write.
        offset: u64,
        /// Value that was written.
        value: u32,
    },
    /// A write to a register that can only be read.
    #[error("write of {value:#x} to {register}, which is read-only")]
    ReadOnly {
        /// The register.
        register: Register,
        /// Value that was written.
        value: u32,
    },
    /// A write to a register that is not accessible during a reset.
    #[error("write of {value:#x} to {register} during a reset")]
    DuringReset {
        /// The register.
        register: Register,
        /// Value that was written.
        value: u32,
    },
    /// A register read without an address for the response.
    #[error("read of register {offset:#x} without a response address")]
    NoResponseAddress {
        /// Offset of the register.
        offset: u16,
    },
    /// A read of an offset without a register.
    #[error("read of {offset:#x}, where no register exists")]
    NoSuchRegister {
        /// Offset of the read.
        offset: u16,
    },
    /// A ring with an invalid geometry.
    #[error("{register} {value:#x} with base {base:#x} is an invalid ring")]
    Ring {
        /// The register with its geometry.
        register: Register,
        /// The geometry.
        value: u32,
        /// Bus address of the ring.
        base: u64,
    },
    /// A write to `DEV_CTL` that is undefined, or invalid in the current state of the device.
    #[error("DEV_CTL {value:#x} is invalid in this state")]
    Control {
        /// Value that was written.
        value: u32,
    },
    /// A reset with an undefined reason.
    #[error("reset for the unknown reason {reason}")]
    ResetReason {
        /// The reason.
        reason: u8,
    },
    /// The doorbell of the admin queue before its rings are configured.
    #[error("admin doorbell without admin queues")]
    NoQueue,
    /// More commands than can be in flight.
    #[error("{submitted} new admin commands, but there is room for {room}")]
    Overflow {
        /// Number of commands that are submitted and not fetched.
        submitted: u16,
        /// Limit on this number.
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
    /// More events consumed than were posted.
    #[error("AENQ_CONS_DB {consumed} is not between events consumed and events posted")]
    Consumer {
        /// Number of consumed events according to the driver.
        consumed: u32,
    },
    /// The doorbell of an event queue that does not exist.
    #[error("EQ_DB for event queue {eqn}, which does not exist")]
    NoEventQueue {
        /// Number of the queue.
        eqn: u16,
    },
    /// A command for an object that a reset has destroyed.
    #[error("{opcode} for an object that a reset has destroyed")]
    EndedObject {
        /// The command.
        opcode: Opcode,
    },
    /// A write to an offset without a doorbell.
    #[error("doorbell at {offset:#x}, where no doorbell exists")]
    NoDoorbell {
        /// Offset in the doorbell BAR.
        offset: u64,
    },
    /// A doorbell of a queue that does not exist in this user access region.
    #[error("doorbell in user access region {uar} for a queue outside of it")]
    ForeignDoorbell {
        /// The user access region.
        uar: u16,
    },
    /// The doorbell of a queue pair in the reset state, which can have no work requests.
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
    /// Memory that the driver passed to the device is not mapped.
    #[error(transparent)]
    Dma(#[from] DmaError),
}
