// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets as records of a capture.
//!
//! A record is a header and a payload. The payload may be truncated. All numbers are little-endian, as in the device's
//! structures. `Documentation/emulator-observe.md` specifies the format, and `efa.lua` parses it.

use std::fmt::Debug;

use crate::packet::{Ack, Address, Data, Datagram, Header, PortId, Subject, Verdict};

/// Version of the format.
const VERSION: u8 = 1;

/// Length in bytes of the common start of all headers.
const COMMON: usize = 8;

const HAS_MESSAGE: u8 = 1 << 0;
const HAS_IMMEDIATE: u8 = 1 << 1;
const AGAIN: u8 = 1 << 2;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A part of a message.
    Data = 1,
    /// The acknowledgement of a part of a message.
    Ack = 2,
    /// An unreliable datagram.
    Datagram = 3,
    /// A send work request.
    Send = 4,
    /// A receive work request.
    Receive = 5,
    /// A completion.
    Completion = 6,
    /// Any other event of a device, as text.
    Event = 7,
}

/// Observer of all packets of the devices, as they leave and as they arrive. It is called with locks held, so it must not block.
pub trait Tap: Debug + Send + Sync {
    /// Returns the maximum number of payload bytes that it wants per packet.
    fn snap(&self) -> u32;

    /// Observes a packet that leaves the device at a port, or arrives there.
    fn show(&self, port: PortId, has_left: bool, record: Record);
}

/// A record of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The header and the start of the payload.
    pub bytes: Vec<u8>,
    /// Length in bytes with the complete payload.
    pub length: u32,
}

impl Record {
    /// Creates a record. `fields` follow the common start of its header.
    pub fn new(kind: RecordKind, fields: &[u8], payload: &[u8], payload_length: u32) -> Self {
        let header = COMMON + fields.len();
        let mut bytes = Vec::with_capacity(header + payload.len());
        // CAST: headers are short.
        bytes.extend([VERSION, kind as u8]);
        bytes.extend((header as u16).to_le_bytes());
        bytes.extend(payload_length.to_le_bytes());
        bytes.extend(fields);
        bytes.extend(payload);
        Self { length: payload_length.saturating_add(header as u32), bytes }
    }
}

/// Details of a part of a message that only its sender knows.
pub(crate) struct Message<'a> {
    pub(crate) header: &'a Header,
    /// The start of its payload.
    pub(crate) payload: &'a [u8],
    /// Whether the part is retransmitted.
    pub(crate) again: bool,
}

/// Source, destination and path of a packet.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub(crate) from: Address,
    pub(crate) to: Address,
    pub(crate) path: u16,
}

impl Route {
    /// Returns the fields that the headers of all packets have in common.
    fn fields(self, qps: [u16; 2], flags: u8, code: u8, connection: u64, psn: u64) -> Vec<u8> {
        let mut fields = Vec::with_capacity(112);
        fields.extend(self.from);
        fields.extend(self.to);
        fields.extend(self.path.to_le_bytes());
        fields.extend(qps.into_iter().flat_map(u16::to_le_bytes));
        fields.extend([flags, code]);
        fields.extend(connection.to_le_bytes());
        fields.extend(psn.to_le_bytes());
        fields
    }

    pub(crate) fn data(self, data: &Data, message: Option<Message<'_>>) -> Record {
        let mut subject = SubjectFields::default();
        let (mut flags, mut source_qp, mut qkey, mut payload) = (0, 0, 0, &[][..]);
        if let Some(message) = &message {
            subject = SubjectFields::from(message.header.subject);
            flags |= HAS_MESSAGE;
            flags |= if message.again { AGAIN } else { 0 };
            source_qp = message.header.peer_qp;
            qkey = message.header.qkey;
            payload = message.payload;
        }
        flags |= subject.immediate.map_or(0, |_| HAS_IMMEDIATE);
        let mut fields = self.fields([source_qp, subject.qp], flags, subject.code, data.connection, data.psn);
        fields.extend(data.floor.to_le_bytes());
        fields.extend(data.message.to_le_bytes());
        fields.extend(data.offset.to_le_bytes());
        fields.extend(qkey.to_le_bytes());
        fields.extend(subject.immediate.unwrap_or(0).to_le_bytes());
        fields.extend(subject.memory.0.to_le_bytes());
        fields.extend(subject.memory.1.to_le_bytes());
        fields.extend(subject.length.to_le_bytes());
        fields.extend(u32::from(subject.status).to_le_bytes());
        fields.extend(subject.request.to_le_bytes());
        Record::new(RecordKind::Data, &fields, payload, data.length)
    }

    pub(crate) fn ack(self, ack: &Ack) -> Record {
        let (code, status) = match ack.verdict {
            Verdict::Delivered => (1, 0),
            Verdict::NotReady => (2, 0),
            Verdict::Failed(status) => (3, status),
        };
        let mut fields = self.fields([0; 2], 0, code, ack.connection, ack.psn);
        fields.extend(u64::from(status).to_le_bytes());
        Record::new(RecordKind::Ack, &fields, &[], 0)
    }

    pub(crate) fn datagram(self, datagram: &Datagram, snap: u32) -> Record {
        let flags = HAS_MESSAGE | datagram.immediate.map_or(0, |_| HAS_IMMEDIATE);
        let qps = [datagram.peer_qp, datagram.qp];
        let mut fields = self.fields(qps, flags, 0, 0, 0);
        fields.extend(datagram.qkey.to_le_bytes());
        fields.extend(datagram.immediate.unwrap_or(0).to_le_bytes());
        let payload = start(&datagram.payload, snap);
        // CAST: no longer than an MTU.
        let length = datagram.payload.len() as u32;
        Record::new(RecordKind::Datagram, &fields, payload, length)
    }
}

/// Returns the start of a payload.
pub(crate) fn start(payload: &[u8], snap: u32) -> &[u8] {
    // CAST: 32 bits fit.
    &payload[..payload.len().min(snap as usize)]
}

/// Fields of a record that depend on the operation of the message.
#[derive(Default)]
struct SubjectFields {
    code: u8,
    qp: u16,
    immediate: Option<u32>,
    memory: (u32, u64),
    length: u32,
    status: u8,
    request: u64,
}

impl From<Subject> for SubjectFields {
    fn from(subject: Subject) -> Self {
        match subject {
            Subject::Send { qp, immediate } => Self { code: 1, qp, immediate, ..Self::default() },
            Subject::Write { qp, memory, length, immediate, .. } => {
                Self { code: 2, qp, immediate, memory, length, ..Self::default() }
            }
            Subject::Read { qp, memory, length, reader, .. } => {
                Self { code: 3, qp, memory, length, request: reader.request, ..Self::default() }
            }
            Subject::Response { reader } => {
                Self { code: 4, qp: reader.qp.number, request: reader.request, ..Self::default() }
            }
            Subject::Failure { reader, status } => {
                Self { code: 5, qp: reader.qp.number, status, request: reader.request, ..Self::default() }
            }
        }
    }
}
