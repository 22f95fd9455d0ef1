// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The capture: packets, work requests, completions and other operations of devices, as a file for Wireshark.
//!
//! As in the trace, events are only queued under the locks of devices. A thread encodes them as blocks and writes those.

use std::{
    borrow::Cow,
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use clap::Args;
use efa_fabric::{PortId, Record, RecordKind, Tap};
use efa_hw::io::TxMetaDesc;
use efa_model::TraceEvent;
use efa_vfio::Observer;
use pcap_file::{
    DataLink, Endianness,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption},
            section_header::{SectionHeaderBlock, SectionHeaderOption},
        },
    },
};

use crate::{
    outbox::{Batch, Outbox, Work},
    output::Output,
};

/// Limit in bytes on blocks that are combined into one write.
const CHUNK: usize = 64 << 10;

/// Limit in bytes on a record's header.
const MAX_HEADER: u32 = 128;

/// Resolution of timestamps (if_tsresol): 10^-9 s.
const RESOLUTION: u8 = 9;

/// Options of the capture.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct CaptureOptions {
    /// Writes all packets, work requests, completions, commands and events to this file, which Wireshark opens (pcapng).
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,

    /// Number of captured payload bytes of each packet and work request, up to 9216.
    #[arg(long, value_name = "BYTES", requires = "capture", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=9216))]
    capture_snap: u32,
}

/// The capture of all devices.
#[derive(Clone, Debug)]
pub(crate) struct Capture {
    outbox: Arc<Outbox<Item>>,
    start: Instant,
    snap: u32,
}

/// A captured packet or event, and its time.
#[derive(Debug)]
struct Item(Duration, Content);

#[derive(Debug)]
enum Content {
    /// Whether the packet has left the device or arrived there, and its record.
    Packet(bool, Record),
    Event(TraceEvent),
}

impl Capture {
    /// Returns a capture of devices with these descriptions, and the work of its writer thread. Times count from `start`.
    ///
    /// # Errors
    ///
    /// The file can't be written.
    pub(crate) fn new(
        options: &CaptureOptions,
        devices: &[String],
        start: Instant,
    ) -> io::Result<Option<(Self, Work)>> {
        let Some(path) = &options.capture else {
            return Ok(None);
        };
        let snap = options.capture_snap;
        let mut writer = Writer::new(devices, snap, SystemTime::now() - start.elapsed())?;
        let mut output = Output::open(path, CHUNK)?;
        output.put(&writer.take())?;
        // A reader that opens the file before the first packet finds a valid capture.
        output.flush()?;
        let outbox = Arc::new(Outbox::new(devices.len()));
        let writing: Work = {
            let outbox = Arc::clone(&outbox);
            Box::new(move || outbox.work("capture", |batch| writer.write(batch, &mut output)))
        };
        let capture = Self {
            outbox,
            start,
            snap,
        };
        Ok(Some((capture, writing)))
    }

    /// Returns an observer of the device with this index, which also forwards to `other`.
    pub(crate) fn observer(self, device: usize, other: Box<dyn Observer>) -> Box<dyn Observer> {
        Box::new(OneDevice {
            capture: self,
            device,
            other,
        })
    }

    /// Writes all pending records. Waits no longer than `most` for the reader.
    pub(crate) fn finish(&self, most: Duration) {
        self.outbox.finish(most);
    }

    fn push(&self, device: usize, bytes: usize, what: impl FnOnce() -> Content) {
        let now = self.start.elapsed();
        self.outbox.push(device, bytes, || Item(now, what()));
    }
}

// Numbers of ports are indices of devices, which are attached in this order.
impl Tap for Capture {
    fn snap(&self) -> u32 {
        self.snap
    }

    fn show(&self, port: PortId, has_left: bool, record: Record) {
        self.push(port.0, record.bytes.len(), || {
            Content::Packet(has_left, record)
        });
    }
}

/// Observer of one device.
struct OneDevice {
    capture: Capture,
    device: usize,
    other: Box<dyn Observer>,
}

impl Observer for OneDevice {
    fn note(&mut self, now: Duration, event: &TraceEvent) {
        self.other.note(now, event);
        self.capture.push(self.device, event.heap_size(), || {
            Content::Event(event.clone())
        });
    }

    fn wants_work(&self) -> bool {
        true
    }
}

/// Encoder of pcapng blocks.
struct Writer {
    blocks: PcapNgWriter<Vec<u8>>,
    /// Time of the start, since 1970.
    start: Duration,
    snap: u32,
    /// Number of lost records, by device.
    lost: Vec<u64>,
}

impl Writer {
    fn new(devices: &[String], snap: u32, start: SystemTime) -> io::Result<Self> {
        let program = concat!("efa-emu ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::Little,
            options: vec![SectionHeaderOption::UserApplication(program.into())],
            ..SectionHeaderBlock::default()
        };
        let mut blocks =
            PcapNgWriter::with_section_header(Vec::new(), section).map_err(io::Error::other)?;
        for (index, description) in devices.iter().enumerate() {
            let interface = InterfaceDescriptionBlock {
                linktype: DataLink::USER0,
                snaplen: MAX_HEADER + snap,
                options: vec![
                    InterfaceDescriptionOption::IfName(format!("efa{index}").into()),
                    InterfaceDescriptionOption::IfDescription(Cow::from(description.clone())),
                    InterfaceDescriptionOption::IfTsResol(RESOLUTION),
                ],
            };
            blocks
                .write_pcapng_block(interface)
                .map_err(io::Error::other)?;
        }
        Ok(Self {
            blocks,
            start: start
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default(),
            snap,
            lost: vec![0; devices.len()],
        })
    }

    /// Takes the encoded bytes.
    fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.blocks.get_mut())
    }

    fn write(&mut self, batch: &Batch<Item>, output: &mut Output) -> io::Result<()> {
        for (device, Item(at, what)) in &batch.items {
            self.packet(*device, *at, what)?;
            output.put(self.blocks.get_ref())?;
            self.blocks.get_mut().clear();
        }
        let last = batch
            .items
            .last()
            .map_or(Duration::ZERO, |(_, item)| item.0);
        for (device, lost) in &batch.lost {
            self.lost[*device] += lost;
            self.statistics(*device, last)?;
            output.put(self.blocks.get_ref())?;
            self.blocks.get_mut().clear();
        }
        output.flush()
    }

    /// Encodes a captured packet or event as a block.
    fn packet(&mut self, device: usize, at: Duration, what: &Content) -> io::Result<()> {
        let (record, direction) = match what {
            Content::Packet(true, record) => (Cow::Borrowed(record), Some(2)),
            Content::Packet(false, record) => (Cow::Borrowed(record), Some(1)),
            Content::Event(event) => (Cow::Owned(record(event, self.snap)), None),
        };
        let options = direction.map(EnhancedPacketOption::Flags);
        let block = EnhancedPacketBlock {
            // CAST: there are few devices.
            interface_id: device as u32,
            timestamp: self.start + at,
            original_len: record.length,
            data: Cow::Borrowed(&record.bytes),
            options: options.into_iter().collect(),
        };
        let written = self.blocks.write_pcapng_block(block);
        written.map(drop).map_err(io::Error::other)
    }

    /// Encodes a block with the number of records that a device has lost so far.
    fn statistics(&mut self, device: usize, at: Duration) -> io::Result<()> {
        // CAST: fits until the year 2554.
        let time = (self.start + at).as_nanos() as u64;
        let block = InterfaceStatisticsBlock {
            // CAST: there are few devices.
            interface_id: device as u32,
            // The format has the upper half first, but the library writes the timestamp as one number.
            timestamp: time.rotate_left(32),
            options: vec![InterfaceStatisticsOption::IsbOsDrop(self.lost[device])],
        };
        let written = self.blocks.write_pcapng_block(block);
        written.map(drop).map_err(io::Error::other)
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
    let whole =
        |kind, number, bytes: &[u8]| Record::new(kind, &fields(number), bytes, bytes.len() as u32);
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
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    #[test]
    fn lost_records_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("capture");
        let mut writer = Writer::new(&["a".into(), "b".into()], 64, SystemTime::now()).unwrap();
        let mut output = Output::open(&path, CHUNK).unwrap();
        output.put(&writer.take()).unwrap();
        let event = || Item(Duration::from_secs(1), Content::Event(TraceEvent::ResetEnd));
        for lost in [vec![(1, 3)], vec![], vec![(1, 4)]] {
            let items = vec![(1, event())];
            writer.write(&Batch { items, lost }, &mut output).unwrap();
        }
        let file = std::fs::File::open(&path).unwrap();
        let mut reader = PcapNgReader::new(file).unwrap();
        let (mut packets, mut lost) = (0, Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::EnhancedPacket(block) => {
                    assert_eq!(block.interface_id, 1);
                    assert!(block.data.ends_with(b"reset end"));
                    packets += 1;
                }
                Block::InterfaceStatistics(block) => {
                    let time = u128::from(block.timestamp.rotate_left(32));
                    let expected = (writer.start + Duration::from_secs(1)).as_nanos();
                    assert_eq!((block.interface_id, time), (1, expected));
                    for option in block.options {
                        let InterfaceStatisticsOption::IsbOsDrop(count) = option else {
                            panic!("{option:?}");
                        };
                        lost.push(count);
                    }
                }
                _ => {}
            }
        }
        assert_eq!(packets, 3);
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
