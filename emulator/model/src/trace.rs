// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What happens, one line each.

mod command;
mod flag;
mod wire;
mod work;

use std::fmt::{self, Display, Formatter};

use efa_hw::{
    admin::{AcqEntry, AcqHeader, AqEntry, Opcode, Status},
    aenq::AenqGroup,
    io::CompStatus,
    regs::Register,
};

use crate::{program_error::ProgramError, protocol_error::ProtocolError, region_work::RegionWork};

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceKind {
    /// Commands.
    Admin,
    /// Reads and writes of registers.
    Registers,
    /// Resets, by the driver or of the PCI function.
    Resets,
    /// Asynchronous events.
    Events,
    /// Work requests that change memory regions.
    Data,
    /// All work requests and completions, of which there are very many.
    Work,
    /// What a correct driver or program never does.
    Errors,
    /// What an operator did to the device: death, unplug and plug.
    Operator,
}

/// Something that happened. `Display` gives one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A command was executed and completed.
    Command {
        /// The command.
        command: AqEntry,
        /// Its completion, unless none was written.
        completion: Option<AcqEntry>,
        /// How many commands were in flight, this one included.
        in_flight: usize,
        /// Whether a rule for faults hit it.
        injected: bool,
    },
    /// A work request that changes a memory region was carried out, or was not.
    RegionWork {
        /// The queue pair.
        qp: u16,
        /// The work request.
        work: RegionWork,
        /// How it ended.
        status: CompStatus,
    },
    /// A send work request was fetched. Only a host that [`traces_work`](crate::Host::traces_work) is told.
    WorkRequest {
        /// The queue pair.
        qp: u16,
        /// The descriptor as it was in the send queue.
        descriptor: Box<[u8]>,
    },
    /// A receive work request was taken for what has arrived, likewise.
    Receive {
        /// The queue pair.
        qp: u16,
        /// Its descriptors.
        descriptors: Box<[u8]>,
    },
    /// A completion was written, likewise.
    Completion {
        /// The completion queue.
        cq: u16,
        /// The entry, of 16 or 32 bytes.
        entry: Box<[u8]>,
    },
    /// The driver read a register.
    RegisterRead {
        /// Where the register is.
        offset: u16,
        /// What it was told, unless it got no answer.
        value: Option<u32>,
    },
    /// The driver wrote a register that is no doorbell, and does not ask for the value of another one.
    RegisterWrite {
        /// The register.
        register: Register,
        /// The value.
        value: u32,
    },
    /// The driver started a reset.
    Reset {
        /// Why.
        reason: String,
    },
    /// The driver ended a reset.
    ResetEnd,
    /// The PCI function was reset.
    FunctionReset,
    /// The device posted an asynchronous event.
    Event {
        /// The group.
        group: u16,
        /// The syndrome.
        syndrome: u16,
        /// Whether there was room for it.
        posted: bool,
    },
    /// The device posted asynchronous events of a storm.
    Storm {
        /// The group.
        group: u16,
        /// The syndrome.
        syndrome: u16,
        /// How many.
        posted: u64,
        /// How many events are still to come, of any kind.
        left: u64,
    },
    /// The device died.
    Death {
        /// Whether it told nobody.
        silent: bool,
    },
    /// The device was pulled out of its slot.
    Unplugged,
    /// The device was plugged in again.
    Plugged,
    /// The driver did what a correct driver never does.
    ProtocolError(ProtocolError),
    /// A program did what a correct program never does.
    ProgramError(ProgramError),
}

impl TraceEvent {
    /// What kind of thing it is.
    pub fn kind(&self) -> TraceKind {
        match self {
            Self::Command { .. } => TraceKind::Admin,
            Self::RegionWork { .. } => TraceKind::Data,
            Self::WorkRequest { .. } | Self::Receive { .. } | Self::Completion { .. } => {
                TraceKind::Work
            }
            Self::RegisterRead { .. } | Self::RegisterWrite { .. } => TraceKind::Registers,
            Self::Reset { .. } | Self::ResetEnd | Self::FunctionReset => TraceKind::Resets,
            Self::Event { .. } | Self::Storm { .. } => TraceKind::Events,
            Self::Death { .. } | Self::Unplugged | Self::Plugged => TraceKind::Operator,
            Self::ProtocolError(_) | Self::ProgramError(_) => TraceKind::Errors,
        }
    }

    /// The bytes of a command in hexadecimal, without what differs from run to run; nothing if it is none.
    ///
    /// Two drivers that ask for the same thing have the same bytes, reserved ones included. Numbers of objects, the phase and the checksum are
    /// zero. An address has its offset in a page.
    pub fn wire(&self) -> Option<String> {
        match self {
            Self::Command { command, .. } => Some(wire::bytes(command)),
            _ => None,
        }
    }

    /// Bytes of memory that it takes besides its own size.
    pub fn heap_size(&self) -> usize {
        match self {
            Self::WorkRequest { descriptor, .. } => descriptor.len(),
            Self::Receive { descriptors, .. } => descriptors.len(),
            Self::Completion { entry, .. } => entry.len(),
            Self::Reset { reason } => reason.capacity(),
            Self::ProgramError(ProgramError::Malformed { bytes, .. }) => bytes.0.len(),
            _ => 0,
        }
    }
}

impl Display for TraceEvent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command {
                command,
                completion,
                in_flight,
                injected,
            } => {
                let (header, request) = (command.header(), command.request());
                write!(f, "aq {} ", header.command_id.id)?;
                let opcode = Opcode::try_from(header.opcode);
                match opcode {
                    Ok(opcode) => {
                        write!(f, "{opcode}(")?;
                        command::arguments(f, opcode, &request)?;
                    }
                    Err(_) => write!(f, "opcode {}(", header.opcode)?,
                }
                f.write_str(") = ")?;
                match completion {
                    None => f.write_str("no completion")?,
                    Some(completion) => {
                        let status = AcqHeader::of(completion).status;
                        match (Status::try_from(status), opcode) {
                            (Ok(Status::Success), Ok(opcode)) => {
                                write!(f, "{}", Status::Success)?;
                                command::results(f, opcode, &request, completion)?;
                            }
                            (Ok(status), _) => write!(f, "{status}")?,
                            (Err(_), _) => write!(f, "status {status}")?,
                        }
                    }
                }
                if *injected {
                    f.write_str(" (injected)")?;
                }
                write!(f, " [{in_flight} in flight]")
            }
            Self::RegionWork { qp, work, status } => write!(f, "sq {qp} {work} = {status}"),
            Self::WorkRequest { qp, descriptor } => work::request(f, *qp, descriptor),
            Self::Receive { qp, descriptors } => work::receive(f, *qp, descriptors),
            Self::Completion { cq, entry } => work::completion(f, *cq, entry),
            Self::RegisterRead { offset, value } => {
                f.write_str("read ")?;
                match Register::try_from(*offset) {
                    Ok(register) => write!(f, "{register}")?,
                    Err(_) => write!(f, "{offset:#x}")?,
                }
                match value {
                    Some(value) => write!(f, " = {value:#x}"),
                    None => f.write_str(" = no answer (injected)"),
                }
            }
            Self::RegisterWrite { register, value } => write!(f, "write {register} = {value:#x}"),
            Self::Reset { reason } => write!(f, "reset {reason}"),
            Self::FunctionReset => f.write_str("function reset"),
            Self::ResetEnd => f.write_str("reset end"),
            Self::Event {
                group,
                syndrome,
                posted,
            } => {
                event(f, *group, *syndrome)?;
                if *posted {
                    Ok(())
                } else {
                    f.write_str(" lost: no room")
                }
            }
            Self::Storm {
                group,
                syndrome,
                posted,
                left,
            } => {
                event(f, *group, *syndrome)?;
                write!(f, " {posted} times, {left} to come")
            }
            Self::Death { silent: false } => f.write_str("dies"),
            Self::Death { silent: true } => f.write_str("dies silently"),
            Self::Unplugged => f.write_str("unplugged"),
            Self::Plugged => f.write_str("plugged"),
            Self::ProtocolError(error) => write!(f, "protocol error: {error}"),
            Self::ProgramError(error) => write!(f, "program error: {error}"),
        }
    }
}

fn event(f: &mut Formatter<'_>, group: u16, syndrome: u16) -> fmt::Result {
    f.write_str("aenq ")?;
    match AenqGroup::try_from(group) {
        Ok(group) => write!(f, "{group}")?,
        Err(_) => write!(f, "group {group}")?,
    }
    write!(f, " syndrome={syndrome}")
}
