// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The host of a device on a network, whose memory is copied without the device's lock.

use std::{
    ops::Range,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU8, Ordering},
    },
};

use efa_fabric::{Access, CopyError, Guest, Memory, Pins};
use efa_model::{DmaError, Host, Segment, TraceEvent};

use crate::{
    bus::PAGE,
    mock::{Page, World},
};

/// A device's host, whose memory is copied without the device's lock.
#[derive(Default)]
pub struct Computer {
    /// Its memory.
    pub world: World,
    pub(super) pins: Arc<Pins>,
    /// Locked while accesses to its memory without the device's lock are stuck.
    pub stuck: Arc<RwLock<()>>,
}

/// Memory of a host: parts of pages.
#[derive(Debug)]
pub struct Pages {
    parts: Vec<(Arc<Page>, Range<usize>)>,
    address: u64,
    is_blank: bool,
    stuck: Arc<RwLock<()>>,
}

impl Host for Computer {
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.world.dma_read(address, buffer)
    }

    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        self.world.dma_write(address, data)
    }

    fn is_bus_master(&self) -> bool {
        self.world.is_bus_master()
    }

    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]) {
        self.world.read_device_memory(offset, buffer);
    }

    fn interrupt(&mut self, vector: u16) {
        self.world.interrupt(vector);
    }

    fn trace(&mut self, event: &TraceEvent) {
        self.world.trace(event);
    }

    fn quiesce(&mut self) {
        self.pins.quiesce();
    }
}

impl Guest for Computer {
    type Memory = Pages;

    fn memory(&self, segments: &[Segment], _: Access) -> Result<Pages, DmaError> {
        let mut pages = Pages {
            parts: Vec::new(),
            address: segments.first().map_or(0, |segment| segment.address),
            is_blank: self.world.is_blank,
            stuck: Arc::clone(&self.stuck),
        };
        let segments = if pages.is_blank { &[] } else { segments };
        for segment in segments {
            let length = segment.length as usize;
            let error = DmaError {
                address: segment.address,
                length,
            };
            if !self.is_bus_master() {
                return Err(error);
            }
            let mut done = 0;
            while done < length {
                let start = segment.address.checked_add(done as u64).ok_or(error)?;
                let page = self.world.page(start).ok_or(error)?;
                let offset = (start % PAGE) as usize;
                let part = (PAGE as usize - offset).min(length - done);
                pages.parts.push((Arc::clone(page), offset..offset + part));
                done += part;
            }
        }
        Ok(pages)
    }

    fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }
}

impl Pages {
    fn bytes(&self) -> impl Iterator<Item = &AtomicU8> {
        let parts = self.parts.iter();
        parts.flat_map(|(page, range)| &page[range.clone()])
    }

    fn check(&self, length: usize) {
        let own: usize = self.parts.iter().map(|(_, range)| range.len()).sum();
        assert!(self.is_blank || own == length, "at {:#x}", self.address);
    }
}

impl Memory for Pages {
    fn read(&self, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.check(buffer.len());
        let _free = self.stuck.read();
        for (byte, own) in buffer.iter_mut().zip(self.bytes()) {
            *byte = own.load(Ordering::Relaxed);
        }
        Ok(())
    }

    fn write(&self, data: &[u8]) -> Result<(), DmaError> {
        self.check(data.len());
        let _free = self.stuck.read();
        for (byte, own) in data.iter().zip(self.bytes()) {
            own.store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }

    fn copy_to(&self, target: &Self) -> Result<(), CopyError> {
        target.check(self.bytes().count());
        let _free = [&self.stuck, &target.stuck].map(|stuck| stuck.read());
        for (from, to) in self.bytes().zip(target.bytes()) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(())
    }
}
