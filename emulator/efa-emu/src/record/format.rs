// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The format of recordings.
//!
//! A file begins with [`MAGIC`] and the version as two bytes. What follows is frames: the length as four bytes, and so many bytes
//! of a [`Frame`] in the format of postcard. Numbers are little-endian. Anything that is added to what is serialized is another
//! version.

use std::{
    borrow::Cow,
    io::{self, Read},
};

use efa_model::{Config, Event};
use serde::{Deserialize, Serialize};

/// What a recording begins with.
const MAGIC: &[u8; 8] = b"EFA-REC\n";

/// The version of the format.
pub(crate) const VERSION: u16 = 2;

/// Most bytes of a frame: far more than a call of a device takes.
const MAX_FRAME: u32 = 64 << 20;

/// A part of a recording.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Frame<'a> {
    /// The first.
    Start(Start),
    /// What happened in a call of a device: its events.
    Call {
        /// Its index.
        device: u32,
        #[serde(borrow)]
        events: Cow<'a, [u8]>,
    },
    /// So many calls of a device were lost, with which its recording ends.
    Lost {
        /// Its index.
        device: u32,
        calls: u64,
    },
    /// There was no room for more.
    Full,
    /// The program has ended as it should, or said why it could not.
    End,
}

/// How all begins.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// What has written it.
    pub(crate) program: String,
    pub(crate) devices: Vec<DeviceStart>,
}

/// How a device was made: its configuration as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DeviceStart(pub(crate) String);

/// Why a recording can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadRecording {
    #[error("it is no recording of efa-emu")]
    Magic,
    #[error("its format is {0}, but this program reads {VERSION}")]
    Version(u16),
    #[error("it is malformed in front of byte {0}")]
    Malformed(u64),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl DeviceStart {
    pub(crate) fn new(config: &Config) -> io::Result<Self> {
        Ok(Self(serde_json::to_string(config)?))
    }

    pub(crate) fn config(&self) -> Option<Config> {
        serde_json::from_str(&self.0).ok()
    }
}

/// What a recording begins with.
pub(crate) fn header(start: Start) -> io::Result<Vec<u8>> {
    let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    put_frame(&Frame::Start(start), &mut bytes)?;
    Ok(bytes)
}

/// Adds an event to others.
pub(crate) fn put(event: &Event<'_>, bytes: &mut Vec<u8>) {
    // To memory, and of what has a length.
    if let Ok(more) = postcard::to_extend(event, std::mem::take(bytes)) {
        *bytes = more;
    }
}

/// Adds a frame to others.
///
/// # Errors
///
/// It is too long.
pub(crate) fn put_frame(frame: &Frame<'_>, bytes: &mut Vec<u8>) -> io::Result<()> {
    let start = bytes.len();
    bytes.extend([0; 4]);
    *bytes = postcard::to_extend(frame, std::mem::take(bytes)).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - start - 4).map_err(io::Error::other)?;
    bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// The events of a call.
pub(crate) fn events(mut bytes: &[u8]) -> Option<Vec<Event<'static>>> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let (event, rest) = postcard::take_from_bytes(bytes).ok()?;
        events.push(event);
        bytes = rest;
    }
    Some(events)
}

/// Who reads a recording.
pub(crate) struct Reader<R> {
    from: R,
    /// How far it is.
    at: u64,
    frame: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads how all begins.
    ///
    /// # Errors
    ///
    /// It is no recording, or one that this program can't read.
    pub(crate) fn new(from: R) -> Result<(Self, Start), BadRecording> {
        let mut reader = Self {
            from,
            at: 0,
            frame: Vec::new(),
        };
        let length = MAGIC.len() + size_of::<u16>();
        if !reader.fill(length as u64)? || reader.frame[..MAGIC.len()] != *MAGIC {
            return Err(BadRecording::Magic);
        }
        let version = u16::from_le_bytes([reader.frame[length - 2], reader.frame[length - 1]]);
        if version != VERSION {
            return Err(BadRecording::Version(version));
        }
        match reader.next_frame()? {
            Some(Frame::Start(start)) => Ok((reader, start)),
            _ => Err(BadRecording::Malformed(reader.at)),
        }
    }

    /// Reads so many bytes, if there are as many.
    fn fill(&mut self, length: u64) -> io::Result<bool> {
        self.frame.clear();
        let read = (&mut self.from).take(length).read_to_end(&mut self.frame)?;
        self.at += read as u64;
        Ok(read as u64 == length)
    }

    /// The next frame, if the file does not end in the middle of it or before.
    ///
    /// # Errors
    ///
    /// It has no meaning.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame<'_>>, BadRecording> {
        if !self.fill(4)? {
            return Ok(None);
        }
        let length = self.frame[..].try_into().map(u32::from_le_bytes);
        let length = length.ok().filter(|length| *length <= MAX_FRAME);
        let length = length.ok_or(BadRecording::Malformed(self.at))?;
        if !self.fill(length.into())? {
            return Ok(None);
        }
        match postcard::take_from_bytes(&self.frame) {
            Ok((frame, [])) => Ok(Some(frame)),
            _ => Err(BadRecording::Malformed(self.at)),
        }
    }

    /// How far it is, in bytes.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }
}
