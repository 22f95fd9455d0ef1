// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The capture: packets, work requests, completions and other operations of devices, as a file for Wireshark.

use std::{
    borrow::Cow,
    io::{self, Write},
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use efa_fabric::{Record, RecordKind};
use efa_hw::io::TxMetaDesc;
use efa_model::TraceEvent;
use pcap_file::{
    DataLink, Endianness,
    pcapng::{
        PcapNgBlock, PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption},
            section_header::{SectionHeaderBlock, SectionHeaderOption},
        },
    },
};

use super::{
    outbox::{Encoder, Event, What},
    output::{self, Output},
};

/// Limit in bytes on blocks that are combined into one write.
const CHUNK: usize = 64 << 10;

/// Limit in bytes on a record's header.
const MAX_HEADER: u32 = 128;

/// Resolution of timestamps (if_tsresol): 10^-9 s.
const RESOLUTION: u8 = 9;

/// Encoder of pcapng blocks.
pub(super) struct Capture {
    blocks: PcapNgWriter<Output>,
    /// Time of the start, since 1970.
    start: Duration,
    snap: u32,
    /// Number of lost records, by device.
    lost: Vec<u64>,
}

impl Capture {
    /// Starts a capture of devices with these descriptions.
    pub(super) fn open(path: &Path, devices: &[String], snap: u32, start: Instant) -> io::Result<Self> {
        let program = concat!("efa-emu ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::Little,
            options: vec![SectionHeaderOption::UserApplication(program.into())],
            ..SectionHeaderBlock::default()
        };
        let output = output::open(path, CHUNK)?;
        let blocks = PcapNgWriter::with_section_header(output, section).map_err(io::Error::other)?;
        let since = (SystemTime::now() - start.elapsed()).duration_since(SystemTime::UNIX_EPOCH);
        let mut capture = Self { blocks, start: since.unwrap_or_default(), snap, lost: vec![0; devices.len()] };
        for (index, description) in devices.iter().enumerate() {
            capture.put(InterfaceDescriptionBlock {
                linktype: DataLink::USER0,
                snaplen: MAX_HEADER + snap,
                options: vec![
                    InterfaceDescriptionOption::IfName(format!("efa{index}").into()),
                    InterfaceDescriptionOption::IfDescription(description.into()),
                    InterfaceDescriptionOption::IfTsResol(RESOLUTION),
                ],
            })?;
        }
        // A reader that opens the file before the first packet finds a valid capture.
        capture.flush()?;
        Ok(capture)
    }

    fn put<'a>(&mut self, block: impl PcapNgBlock<'a>) -> io::Result<()> {
        let written = self.blocks.write_pcapng_block(block);
        written.map(drop).map_err(io::Error::other)
    }
}

impl Encoder for Capture {
    fn event(&mut self, event: &Event) -> io::Result<()> {
        let (record, direction) = match &event.what {
            What::Packet(true, record) => (Cow::Borrowed(record), Some(2)),
            What::Packet(false, record) => (Cow::Borrowed(record), Some(1)),
            What::Operation(what) => (Cow::Owned(record(what, self.snap)), None),
        };
        let options = direction.map(EnhancedPacketOption::Flags);
        self.put(EnhancedPacketBlock {
            // CAST: there are few devices.
            interface_id: event.device as u32,
            timestamp: self.start + event.at,
            original_len: record.length,
            data: Cow::Borrowed(&record.bytes),
            options: options.into_iter().collect(),
        })
    }

    /// Writes a block with the number of records that a device has lost so far.
    fn lost(&mut self, device: usize, at: Duration, count: u64) -> io::Result<()> {
        self.lost[device] += count;
        // CAST: fits until the year 2554.
        let time = (self.start + at).as_nanos() as u64;
        self.put(InterfaceStatisticsBlock {
            // CAST: there are few devices.
            interface_id: device as u32,
            // The format has the upper half first, but the library writes the timestamp as one number.
            timestamp: time.rotate_left(32),
            options: vec![InterfaceStatisticsOption::IsbOsDrop(self.lost[device])],
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.blocks.get_mut().flush()
    }
}

/// Returns the record of an event of a device.
fn record(event: &TraceEvent, snap: u32) -> Record {
    let fields = |number: u16| {
        let mut fields = [0; 8];
        fields[..2].copy_from_slice(&number.to_le_bytes());
        fields
    };
    // CAST: descriptors and texts are short.
    let whole = |kind, number, bytes: &[u8]| Record::new(kind, &fields(number), bytes, bytes.len() as u32);
    match event {
        TraceEvent::WorkRequest { qp, descriptor } => {
            // CAST: descriptors are short.
            let length = descriptor.len() as u32;
            let end = shown(descriptor, snap);
            Record::new(RecordKind::Send, &fields(*qp), &descriptor[..end], length)
        }
        TraceEvent::Receive { qp, descriptors } => whole(RecordKind::Receive, *qp, descriptors),
        TraceEvent::Completion { cq, entry } => whole(RecordKind::Completion, *cq, entry),
        event => whole(RecordKind::Event, 0, event.to_string().as_bytes()),
    }
}

/// Returns the number of captured bytes of a send work request: all but inline data beyond the snap length.
fn shown(descriptor: &[u8], snap: u32) -> usize {
    let Some(meta) = descriptor.first_chunk::<{ TxMetaDesc::SIZE }>() else {
        return descriptor.len();
    };
    let control = TxMetaDesc::decode(meta).ctrl1;
    if !control.inline_msg {
        return descriptor.len();
    }
    // In RDMA requests, inline data follow the description of the peer's memory.
    // CAST: a `usize` has at least 32 bits.
    let start = if control.op_type == 0 { 32 } else { 48 };
    descriptor.len().min(start + snap as usize)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    #[test]
    fn lost_records_add_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("capture");
        let at = Duration::from_secs(1);
        let mut capture = Capture::open(&path, &["".into(), "".into()], 64, Instant::now()).unwrap();
        capture.lost(1, at, 3).unwrap();
        capture.lost(1, at, 4).unwrap();
        capture.flush().unwrap();
        let mut reader = PcapNgReader::new(File::open(&path).unwrap()).unwrap();
        let mut lost = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::InterfaceStatistics(block) = block.unwrap() {
                assert_eq!(block.interface_id, 1);
                let time = u128::from(block.timestamp.rotate_left(32));
                assert_eq!(time, (capture.start + at).as_nanos());
                for option in block.options {
                    if let InterfaceStatisticsOption::IsbOsDrop(count) = option {
                        lost.push(count);
                    }
                }
            }
        }
        assert_eq!(lost, [3, 7]);
    }

    #[test]
    fn inline_data_is_payload() {
        let mut descriptor = [0; 128];
        assert_eq!(shown(&descriptor, 8), 128);
        descriptor[2] = 0xa0;
        assert_eq!(shown(&descriptor, 8), 40);
        assert_eq!(shown(&descriptor[..64], 80), 64);
        descriptor[2] = 0xa2;
        assert_eq!(shown(&descriptor, 8), 56);
    }
}
