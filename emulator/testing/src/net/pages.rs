// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory of a host on a network, which is copied without the device's lock.

use std::{
    ops::Range,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU8, Ordering},
    },
};

use efa_fabric::{Access, CopyError, Guest, Memory, Pins};
use efa_model::{DmaError, Host, Segment};

use crate::mock::{Page, World, load, store};

/// Memory of a host: parts of pages.
#[derive(Debug)]
pub struct Pages {
    parts: Vec<(Arc<Page>, Range<usize>)>,
    is_blank: bool,
    stuck: Arc<RwLock<()>>,
}

impl Guest for World {
    type Memory = Pages;

    fn memory(&self, segments: &[Segment], _: Access) -> Result<Pages, DmaError> {
        let mut parts = Vec::new();
        for segment in segments.iter().filter(|_| !self.is_blank) {
            let (address, length) = (segment.address, segment.length as usize);
            if !self.is_bus_master() {
                return Err(DmaError { address, length });
            }
            self.access(address, length, |_, page, range| {
                parts.push((Arc::clone(page), range));
            })?;
        }
        Ok(Pages { parts, is_blank: self.is_blank, stuck: Arc::clone(&self.stuck) })
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
        assert!(self.is_blank || own == length, "{own} of {length} bytes");
    }
}

impl Memory for Pages {
    fn read(&self, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.check(buffer.len());
        let _free = self.stuck.read();
        load(self.bytes(), buffer);
        Ok(())
    }

    fn write(&self, data: &[u8]) -> Result<(), DmaError> {
        self.check(data.len());
        let _free = self.stuck.read();
        store(self.bytes(), data);
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
