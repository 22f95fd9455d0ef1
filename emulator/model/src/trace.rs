// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Trace events, formatted as one line each.

mod command;
mod fields;
mod wire;
mod work;

use std::fmt::{self, Display, Formatter};

use efa_hw::{
    admin::{AcqEntry, AcqHeader, AqEntry, Opcode, Status},
    aenq::AenqGroup,
    io::CompStatus,
    regs::Register,
};

use self::fields::{Fields, code};
use crate::{program_error::ProgramError, protocol_error::ProtocolError, region_work::RegionWork};

/// Kind of a trace event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceKind {
    /// Admin commands.
    Admin,
    /// Reads and writes of registers.
    Registers,
    /// Resets, by the driver or of the PCI function.
    Resets,
    /// Asynchronous events.
    Events,
    /// Work requests that change memory regions.
    Data,
    /// All work requests and completions. These are very frequent.
    Work,
    /// Protocol errors of the driver, and errors of programs.
    Errors,
    /// Actions of the operator: death, unplug and plug.
    Operator,
}

/// An event in the trace. `Display` formats it as one line, with the numbers of queues and objects.
#[allow(missing_docs, reason = "the variants describe their fields")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A command was executed and completed, unless no completion was written.
    Command {
        command: AqEntry,
        completion: Option<AcqEntry>,
        /// Number of commands in flight, including this one.
        in_flight: usize,
        /// Whether a fault rule hit the command.
        injected: bool,
    },
    /// A work request that changes a memory region has ended.
    RegionWork { qp: u16, work: RegionWork, status: CompStatus },
    /// A send work request was fetched, with this descriptor. Traced only if the host [`traces_work`](crate::Host::traces_work).
    WorkRequest { qp: u16, descriptor: Box<[u8]> },
    /// A receive work request was taken for an arrival. Traced likewise.
    Receive { qp: u16, descriptors: Box<[u8]> },
    /// A completion of 16 or 32 bytes was written. Traced likewise.
    Completion { cq: u16, entry: Box<[u8]> },
    /// The driver read a register at an offset, and got a value unless no response was written.
    RegisterRead { offset: u16, value: Option<u32> },
    /// The driver wrote a register, except for doorbells and `MMIO_REG_READ`.
    RegisterWrite { register: Register, value: u32 },
    /// The driver started a reset for a reason, by name or number.
    Reset { reason: String },
    /// The driver ended a reset.
    ResetEnd,
    /// The PCI function was reset.
    FunctionReset,
    /// The device posted an asynchronous event.
    Event {
        group: u16,
        syndrome: u16,
        /// Whether the event queue had room for it.
        posted: bool,
    },
    /// The device posted asynchronous events of a storm.
    Storm {
        group: u16,
        syndrome: u16,
        /// Number of events posted.
        posted: u64,
        /// Number of asynchronous events of all storms that are still to be posted.
        left: u64,
    },
    /// The device died. If it did silently, it raised no event and set no error status.
    Death { silent: bool },
    /// The device was hot-unplugged.
    Unplugged,
    /// The device was hot-plugged again.
    Plugged,
    /// An error of the driver.
    ProtocolError(ProtocolError),
    /// An error of a program.
    ProgramError(ProgramError),
}

impl TraceEvent {
    /// Kind of the event.
    pub fn kind(&self) -> TraceKind {
        match self {
            Self::Command { .. } => TraceKind::Admin,
            Self::RegionWork { .. } => TraceKind::Data,
            Self::WorkRequest { .. } | Self::Receive { .. } | Self::Completion { .. } => TraceKind::Work,
            Self::RegisterRead { .. } | Self::RegisterWrite { .. } => TraceKind::Registers,
            Self::Reset { .. } | Self::ResetEnd | Self::FunctionReset => TraceKind::Resets,
            Self::Event { .. } | Self::Storm { .. } => TraceKind::Events,
            Self::Death { .. } | Self::Unplugged | Self::Plugged => TraceKind::Operator,
            Self::ProtocolError(_) | Self::ProgramError(_) => TraceKind::Errors,
        }
    }

    /// Bytes of a command in hexadecimal, without the values that differ between runs; `None` for other events.
    ///
    /// Two drivers that issue the same command have the same bytes, including reserved ones. Numbers of objects, the phase and
    /// the checksum are zero. Only the page offset of an address is kept.
    pub fn wire(&self) -> Option<String> {
        match self {
            Self::Command { command, .. } => Some(wire::bytes(command)),
            _ => None,
        }
    }

    /// Heap memory of the event in bytes.
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
            Self::Command { command, completion, in_flight, injected } => {
                let (header, request) = (command.header(), command.request());
                write!(f, "aq {} ", header.command_id.id)?;
                let opcode = Opcode::try_from(header.opcode);
                write!(f, "{}(", code(opcode, "opcode", header.opcode))?;
                if let Ok(opcode) = opcode {
                    let mut fields = Fields { f, separator: "", zeros: false, without: &[] };
                    command::arguments(&mut fields, opcode, &request)?;
                }
                f.write_str(") = ")?;
                match completion {
                    None => f.write_str("no completion")?,
                    Some(completion) => {
                        let status = AcqHeader::of(completion).status;
                        write!(f, "{}", code(Status::try_from(status), "status", status))?;
                        if let (0, Ok(opcode)) = (status, opcode) {
                            let mut fields = Fields { f, separator: " ", zeros: true, without: &[] };
                            command::results(&mut fields, opcode, &request, completion)?;
                        }
                    }
                }
                if *injected {
                    f.write_str(" (injected)")?;
                }
                write!(f, " [{in_flight} in flight]")
            }
            Self::RegionWork { qp, work, status } => work::region(f, *qp, work, *status),
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
                    None => f.write_str(" = no response (injected)"),
                }
            }
            Self::RegisterWrite { register, value } => write!(f, "write {register} = {value:#x}"),
            Self::Reset { reason } => write!(f, "reset {reason}"),
            Self::FunctionReset => f.write_str("function reset"),
            Self::ResetEnd => f.write_str("reset end"),
            Self::Event { group, syndrome, posted } => {
                event(f, *group, *syndrome)?;
                if *posted { Ok(()) } else { f.write_str(" lost: no room") }
            }
            Self::Storm { group, syndrome, posted, left } => {
                event(f, *group, *syndrome)?;
                write!(f, " {posted} times, {left} pending")
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
    let group = code(AenqGroup::try_from(group), "group", group);
    write!(f, "aenq {group} syndrome={syndrome}")
}
