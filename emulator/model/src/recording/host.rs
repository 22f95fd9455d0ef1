// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A host that tells of what a device does to it, and of what it answers.

use std::{borrow::Cow, cell::RefCell, time::Duration};

use super::{event::Event, nanos, recorder::Recorder};
use crate::{DmaError, Host, TraceEvent, TraceKind};

/// A host with somebody who keeps all that goes between it and its device.
pub(crate) struct Watched<'a> {
    host: &'a mut dyn Host,
    recorder: RefCell<&'a mut dyn Recorder>,
}

impl<'a> Watched<'a> {
    pub(crate) fn new(host: &'a mut dyn Host, recorder: &'a mut dyn Recorder) -> Self {
        Self {
            host,
            recorder: RefCell::new(recorder),
        }
    }

    fn note(&self, event: &Event<'_>) {
        self.recorder.borrow_mut().note(event);
    }
}

impl Host for Watched<'_> {
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let read = self.host.dma_read(address, buffer);
        self.note(&Event::Read {
            address,
            length: buffer.len() as u64,
            data: Cow::Borrowed(if read.is_ok() { buffer } else { &[] }),
            mapped: read.is_ok(),
        });
        read
    }

    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        let written = self.host.dma_write(address, data);
        self.note(&Event::Write {
            address,
            data: Cow::Borrowed(data),
            mapped: written.is_ok(),
        });
        written
    }

    fn is_bus_master(&self) -> bool {
        let may = self.host.is_bus_master();
        self.note(&Event::BusMaster(may));
        may
    }

    fn now(&self) -> Option<Duration> {
        let now = self.host.now();
        self.note(&Event::Time(now.map(nanos)));
        now
    }

    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]) {
        self.host.read_device_memory(offset, buffer);
        self.note(&Event::DeviceMemory {
            offset,
            data: Cow::Borrowed(buffer),
        });
    }

    // What a device does next does not depend on it.
    fn quiesce(&mut self) {
        self.host.quiesce();
    }

    fn interrupt(&mut self, vector: u16) {
        self.host.interrupt(vector);
        self.note(&Event::Interrupt(vector));
    }

    fn traces_work(&self) -> bool {
        self.host.traces_work()
    }

    fn trace(&mut self, event: &TraceEvent) {
        self.host.trace(event);
        // There are very many of work requests, not always, and all that they tell is there as what the device reads and writes.
        if event.kind() != TraceKind::Work {
            self.note(&Event::Trace(event.to_string().into()));
        }
    }
}
