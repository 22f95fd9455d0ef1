// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Records what devices are told and do, so that it can be done again without their guests.
//!
//! Under a device's lock an event is only serialized; a thread writes it, see [`Outbox`]. A recording is of no use any more where
//! something is missing, so that of a device ends where something was lost, and all end where the file is full.

pub(crate) mod format;

use std::{
    fmt, io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use efa_model::{Config, Event, Recorder, TraceEvent};
use efa_vfio::Observer;
use parking_lot::Mutex;

use self::format::{DeviceStart, Frame, Start};
use crate::{
    outbox::{Batch, Outbox, Work},
    output::{self, Output},
};

/// Most bytes that are written at once.
const CHUNK: usize = 64 << 10;

/// How a recording is written.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RecordOptions {
    /// Records all that the devices are told and do to this file, so that `efa-emu replay` can do it again without guests.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Ends the recording when it has this size, such as 64M.
    #[arg(long, value_name = "SIZE", requires = "record", default_value = "1G", value_parser = output::size)]
    record_limit: Option<u64>,
}

/// The recording of all devices.
#[derive(Clone)]
pub(crate) struct Recording {
    outbox: Arc<Outbox<Item>>,
    tapes: Arc<[Tape]>,
}

/// What is being recorded of a device.
type Tape = Arc<Mutex<Reel>>;

#[derive(Debug, Default)]
struct Reel {
    /// What was recorded of the call at hand.
    call: Vec<u8>,
    /// Nothing more is recorded.
    is_full: bool,
}

#[derive(Debug)]
enum Item {
    /// The events of a call.
    Call(Vec<u8>),
    /// All that was to be recorded was.
    End,
}

/// Why a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The program ends. A call that is under way has not happened.
    Orderly,
    /// A device may have panicked. A call that is under way is where.
    Panic,
}

#[cfg(test)]
impl RecordOptions {
    pub(crate) fn to(path: &std::path::Path, limit: u64) -> Self {
        Self {
            record: Some(path.into()),
            record_limit: Some(limit),
        }
    }
}

impl Recording {
    /// A recording of devices that are made like this, and the work of a thread that writes it.
    ///
    /// # Errors
    ///
    /// The file can't be written.
    pub(crate) fn new(
        options: &RecordOptions,
        devices: &[Config],
    ) -> io::Result<Option<(Self, Work)>> {
        let Some(path) = &options.record else {
            return Ok(None);
        };
        let header = format::header(Start {
            program: format!("efa-emu {}", env!("CARGO_PKG_VERSION")),
            devices: devices
                .iter()
                .map(DeviceStart::new)
                .collect::<Result<_, _>>()?,
        })?;
        let limit = options.record_limit.unwrap_or(u64::MAX);
        let tapes: Arc<[Tape]> = devices.iter().map(|_| Tape::default()).collect();
        let mut writer = Writer {
            left: limit.saturating_sub(header.len() as u64),
            tapes: Arc::clone(&tapes),
            over: vec![false; devices.len()],
            frame: Vec::new(),
        };
        let mut output = Output::open(path, CHUNK, None, header)?;
        output.flush()?;
        let outbox = Arc::new(Outbox::new(devices.len()));
        let writing: Work = {
            let outbox = Arc::clone(&outbox);
            Box::new(move || outbox.work("recording", |batch| writer.write(batch, &mut output)))
        };
        Ok(Some((Self { outbox, tapes }, writing)))
    }

    /// Who takes note of what the device with this index does, besides another one.
    pub(crate) fn observer(&self, device: usize, other: Box<dyn Observer>) -> Box<dyn Observer> {
        Box::new(OneDevice {
            recording: self.clone(),
            device,
            other,
        })
    }

    /// Ends the recording and writes what was not written yet, but waits no longer than `most` for that.
    pub(crate) fn finish(&self, most: Duration, end: End) {
        let start = Instant::now();
        for (device, tape) in self.tapes.iter().enumerate() {
            if let Some(mut reel) = tape.try_lock_for(most) {
                reel.is_full = true;
                let call = std::mem::take(&mut reel.call);
                if end == End::Panic && !call.is_empty() {
                    let bytes = call.len();
                    self.outbox.push(device, bytes, || Item::Call(call));
                }
            }
        }
        self.outbox.push(0, 0, || Item::End);
        self.outbox.finish(most.saturating_sub(start.elapsed()));
    }
}

/// Who takes note of what one device does.
struct OneDevice {
    recording: Recording,
    device: usize,
    other: Box<dyn Observer>,
}

impl Observer for OneDevice {
    fn note(&mut self, now: Duration, event: &TraceEvent) {
        self.other.note(now, event);
    }

    fn wants_work(&self) -> bool {
        self.other.wants_work()
    }

    fn recorder(&mut self) -> Option<Box<dyn Recorder>> {
        Some(Box::new(Head {
            outbox: Arc::clone(&self.recording.outbox),
            tape: Arc::clone(&self.recording.tapes[self.device]),
            device: self.device,
        }))
    }
}

/// Who records what one device is told and does.
struct Head {
    outbox: Arc<Outbox<Item>>,
    tape: Tape,
    device: usize,
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl Recorder for Head {
    fn note(&mut self, event: &Event<'_>) {
        let mut reel = self.tape.lock();
        if !reel.is_full {
            format::put(event, &mut reel.call);
        }
    }

    fn end(&mut self) {
        let mut reel = self.tape.lock();
        let call = std::mem::take(&mut reel.call);
        if !reel.is_full && !call.is_empty() {
            let bytes = call.len();
            self.outbox.push(self.device, bytes, || Item::Call(call));
        }
    }
}

/// Who writes a recording.
struct Writer {
    /// Bytes that there is room for.
    left: u64,
    tapes: Arc<[Tape]>,
    /// Devices of which something is missing.
    over: Vec<bool>,
    frame: Vec<u8>,
}

impl Writer {
    fn write(&mut self, batch: &Batch<Item>, output: &mut Output) -> io::Result<()> {
        for (device, item) in &batch.items {
            match item {
                // CAST: there are few devices.
                Item::Call(events) if !self.is_over(*device) => self.put(
                    &Frame::Call {
                        device: *device as u32,
                        events: events.into(),
                    },
                    output,
                )?,
                Item::Call(_) => {}
                Item::End => self.put(&Frame::End, output)?,
            }
        }
        for (device, lost) in &batch.lost {
            if !self.is_over(*device) {
                tracing::warn!(
                    device,
                    "the recording of the device ends here, as it could not be written in time"
                );
                self.end(*device);
                // CAST: as above.
                let (device, calls) = (*device as u32, *lost);
                self.put(&Frame::Lost { device, calls }, output)?;
            }
        }
        output.flush()
    }

    /// Whether nothing more is to be written of a device. What comes then was recorded before it was told.
    fn is_over(&self, device: usize) -> bool {
        self.left == 0 || self.over[device]
    }

    fn end(&mut self, device: usize) {
        self.over[device] = true;
        self.tapes[device].lock().is_full = true;
    }

    /// Writes something, or that there is no room for it.
    fn put(&mut self, frame: &Frame<'_>, output: &mut Output) -> io::Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        self.frame.clear();
        format::put_frame(frame, &mut self.frame)?;
        let size = self.frame.len() as u64;
        if size > self.left {
            tracing::warn!("the recording is full and ends here");
            self.left = 0;
            for device in 0..self.tapes.len() {
                self.end(device);
            }
            self.frame.clear();
            format::put_frame(&Frame::Full, &mut self.frame)?;
        } else {
            self.left -= size;
        }
        output.put(&self.frame)
    }
}
