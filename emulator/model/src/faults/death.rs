// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Death of a device, as by a firmware hang: it executes nothing until a reset revives it.

use std::{num::NonZeroU32, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{DmaError, Host, queue::Place};

/// How a device dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Death {
    /// The device raises no event and sets no error status.
    pub silent: bool,
    /// Number of resets that it takes to revive the device. All but the last fail.
    pub resets: NonZeroU32,
    /// How the resets before the last fail.
    pub how: FailedReset,
    /// The device continues to write to the memory of its queues and memory regions, until it is revived or its PCI function is
    /// reset. By the PCI Express specification, a function level reset ends DMA.
    pub dma: bool,
}

impl Default for Death {
    fn default() -> Self {
        Self { silent: false, resets: NonZeroU32::MIN, how: FailedReset::default(), dma: false }
    }
}

/// How a reset fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailedReset {
    /// The device never reports the reset as in progress.
    #[default]
    NeverStarts,
    /// The device reports the reset as in progress forever.
    NeverEnds,
}

/// State of a device that has died and was not revived.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) death: Death,
    /// Number of resets that it still takes to revive the device.
    pub(crate) resets: u32,
    pub(crate) strays: Strays,
}

impl Dead {
    /// `places` is all memory that the device may have written to.
    pub(crate) fn new(death: Death, places: impl Iterator<Item = Place>) -> Self {
        let strays = if death.dma { Strays::new(places) } else { Strays::default() };
        Self { death, resets: death.resets.get(), strays }
    }

    /// Counts a reset. Returns how it fails, or `None` if it revives the device.
    pub(crate) fn reset(&mut self) -> Option<FailedReset> {
        self.resets -= 1;
        self.strays.was_reset = true;
        (self.resets > 0).then_some(self.death.how)
    }
}

/// Pattern that a dead device writes at the end of every line of the host memory that it used. No queue has a phase bit there,
/// so a program or driver that still polls it sees no new entry. A new owner of the memory sees the pattern. An event counter
/// has no other bytes, so its value becomes the pattern.
const STRAY: [u8; 8] = [0xef, 0xa0, 0xde, 0xad, 0xef, 0xa0, 0xde, 0xad];

/// Size of a line in bytes.
const LINE: u64 = 64;

/// Limit on the number of places that are written to.
const MAX_PLACES: usize = 4096;

/// Limit on the part of a place that is written to, in bytes.
const MAX_SIZE: u64 = 64 << 10;

/// Interval between batches of stray writes.
const PERIOD: Duration = Duration::from_millis(1);

/// Number of writes in a batch.
const AT_A_TIME: u32 = 512;

/// Memory that a dead device keeps writing to.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    places: Vec<Place>,
    place: usize,
    offset: u64,
    /// Due time of the next batch.
    due: Duration,
    /// Whether the driver has tried to reset the device since it died.
    was_reset: bool,
}

/// Numbers of stray writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StrayWrites {
    pub(crate) done: u64,
    pub(crate) after_reset: u64,
    pub(crate) refused: u64,
}

impl Strays {
    fn new(places: impl Iterator<Item = Place>) -> Self {
        // The value of an event counter is shorter than a line.
        let usable = |place: &Place| place.size == STRAY.len() as u64 || place.base % LINE == 0 && place.size >= LINE;
        Self { places: places.filter(usable).take(MAX_PLACES).collect(), ..Self::default() }
    }

    /// Writes a batch if it is due, and returns the due time of the next one.
    pub(crate) fn write(&mut self, host: &mut dyn Host, now: Duration, counts: &mut StrayWrites) -> Option<Duration> {
        let writes = if self.due <= now { AT_A_TIME } else { 0 };
        for _ in 0..writes {
            let place = self.places.get(self.place)?;
            let line = place.size.min(LINE);
            let address = place.base + self.offset + line - STRAY.len() as u64;
            let written: Result<(), DmaError> = host.dma_write(address, &STRAY);
            match written {
                Ok(()) => {
                    counts.done += 1;
                    counts.after_reset += u64::from(self.was_reset);
                }
                Err(_) => counts.refused += 1,
            }
            self.offset += line;
            if self.offset + line > place.size.min(MAX_SIZE) {
                self.offset = 0;
                self.place = (self.place + 1) % self.places.len();
            }
        }
        if writes > 0 {
            self.due = now.saturating_add(PERIOD);
        }
        (!self.places.is_empty()).then_some(self.due)
    }
}
