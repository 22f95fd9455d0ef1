// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The slot of a device: its configuration space, DMA table, interrupt vectors and memory, for a VMM.

use std::{
    io, mem,
    sync::Arc,
    time::{Duration, Instant},
};

use efa_fabric::{Access, Guest, Pins};
use efa_model::{Device, DmaError, Host, Segment, TraceEvent};
use parking_lot::Mutex;
use vm_memory::VolatileSlice;

use crate::{
    config_space::ConfigSpace,
    dma::DmaTable,
    extents::Extents,
    llq::Llq,
    memory::{Files, MAX_BYTES, MAX_FILES},
    msix::{Eventfd, Vectors, Waker},
};

/// A connection of a VMM to a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VmmId(u64);

/// An observer of a device's events. It is called under the device's lock, so it must not block, and must only record events.
pub trait Observer: Send {
    /// Records an event, with the time since the program started.
    fn note(&mut self, now: Duration, event: &TraceEvent);

    /// Whether the observer needs the events of each work request and completion, too.
    fn wants_work(&self) -> bool {
        false
    }
}

impl<F: FnMut(Duration, &TraceEvent) + Send> Observer for F {
    fn note(&mut self, now: Duration, event: &TraceEvent) {
        self(now, event);
    }
}

/// The slot of a device, which connects it to the guest.
pub(crate) struct Slot {
    pub(crate) dma: DmaTable,
    pub(crate) vectors: Vectors,
    pub(crate) config: ConfigSpace,
    /// The device's memory, while a VMM has the function.
    pub(crate) llq: Option<Arc<Llq>>,
    /// This memory after a reset, until the VMM's thread clears it before its next access.
    pub(crate) unclean: Option<Arc<Llq>>,
    /// The files that the VMM shares. Threads of VMMs lock them, without the lock of the device.
    pub(crate) files: Arc<Mutex<Files>>,
    /// Limits on the number and the bytes of these files, for the next VMM.
    pub(crate) limits: (usize, u64),
    /// The VMM that has the function, if any has.
    pub(crate) vmm: Option<VmmId>,
    /// Number of VMMs that have had the function.
    vmms: u64,
    observer: Box<dyn Observer>,
    start: Instant,
    pins: Arc<Pins>,
}

/// What a VMM had. To unmap large memory takes a while, and so may the end of a descriptor. So the caller must drop this without
/// the lock of the device.
#[must_use = "drop this without the lock of the device"]
pub(crate) struct Previous {
    _files: Arc<Mutex<Files>>,
    _llq: Option<Arc<Llq>>,
    _eventfds: Vec<Option<Eventfd>>,
}

impl Guest for Slot {
    type Memory = Extents;

    fn memory(&self, segments: &[Segment], access: Access) -> Result<Extents, DmaError> {
        let mut extents = Extents::default();
        for segment in segments {
            // CAST: 32 bits fit.
            let (address, length) = (segment.address, segment.length as usize);
            self.check_bus_master(address, length)?;
            self.dma.pin_more(&mut extents, address, length, access)?;
        }
        Ok(extents)
    }

    fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }
}

impl Host for Slot {
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let length = buffer.len();
        self.check_bus_master(address, length)?;
        self.dma.read(address, buffer)
    }

    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        self.check_bus_master(address, data.len())?;
        self.dma.write(address, data)
    }

    fn is_bus_master(&self) -> bool {
        self.config.bus_master()
    }

    fn now(&self) -> Option<Duration> {
        Some(self.start.elapsed())
    }

    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]) {
        match self.device_memory(offset, buffer.len()) {
            Some(slice) => {
                slice.copy_to(buffer);
            }
            None => buffer.fill(0),
        }
    }

    fn quiesce(&mut self) {
        self.pins.quiesce();
    }

    fn interrupt(&mut self, vector: u16) {
        // A message signalled interrupt is a write to memory, which needs bus mastering.
        if self.config.bus_master() {
            self.vectors.signal(vector);
        }
    }

    fn traces_work(&self) -> bool {
        self.observer.wants_work()
    }

    fn trace(&mut self, event: &TraceEvent) {
        self.observer.note(self.start.elapsed(), event);
    }
}

impl Slot {
    /// Creates the slot of a function with a device in the state after power on.
    pub(crate) fn new(config: ConfigSpace, msix_vectors: u16, observer: Box<dyn Observer>, start: Instant) -> Self {
        Self {
            dma: DmaTable::default(),
            vectors: Vectors::new(msix_vectors),
            config,
            llq: None,
            unclean: None,
            files: Arc::default(),
            limits: (MAX_FILES, MAX_BYTES),
            vmm: None,
            vmms: 0,
            observer,
            start,
            pins: Arc::default(),
        }
    }

    /// Returns a part of the device's memory, unless it is beyond the end, or no VMM has the function.
    pub(crate) fn device_memory(&self, offset: u64, length: usize) -> Option<VolatileSlice<'_>> {
        self.llq.as_ref()?.slice(offset, length)
    }

    /// Gives the function to a new VMM, with this memory of the device and what interrupts wake, or to none. Discards the state of
    /// the previous VMM.
    pub(crate) fn serve(&mut self, next: Option<(Llq, Arc<Waker>)>) -> Previous {
        self.vmms += u64::from(next.is_some());
        self.vmm = next.is_some().then_some(VmmId(self.vmms));
        let (llq, waker) = next.unzip();
        self.unmap_all();
        self.config.reset();
        self.unclean = None;
        let (most, most_bytes) = self.limits;
        let files = Arc::new(Mutex::new(Files::new(most, most_bytes)));
        Previous {
            _files: mem::replace(&mut self.files, files),
            _llq: mem::replace(&mut self.llq, llq.map(Arc::new)),
            _eventfds: self.vectors.serve(waker),
        }
    }

    /// Waits for the end of copies from and to the guest's memory, then removes the mappings within a range.
    ///
    /// # Errors
    ///
    /// See [`DmaTable::unmap`].
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> io::Result<()> {
        self.pins.quiesce();
        self.dma.unmap(address, size)
    }

    /// Removes all mappings, likewise.
    pub(crate) fn unmap_all(&mut self) {
        self.pins.quiesce();
        self.dma.clear();
    }

    /// Writes the configuration space; returns whether this resets the function. On a bus, earlier accesses to memory have ended
    /// when a write that disables them has.
    pub(crate) fn write_config(&mut self, offset: u64, data: &[u8]) -> bool {
        let before = self.config.bus_master();
        let resets = self.config.write(offset, data);
        if before && !self.config.bus_master() {
            self.pins.quiesce();
        }
        resets
    }

    /// Resets the function.
    pub(crate) fn reset(&mut self, device: &mut Device) {
        self.trace(&TraceEvent::FunctionReset);
        self.forget();
        device.reset(self);
    }

    /// Resets the configuration space, and has the send queues cleared: a function reset without that of the device.
    pub(crate) fn forget(&mut self) {
        self.config.reset();
        self.unclean.clone_from(&self.llq);
    }

    /// Fails unless the driver has enabled bus mastering, which the function needs to access memory.
    fn check_bus_master(&self, address: u64, length: usize) -> Result<(), DmaError> {
        if self.config.bus_master() { Ok(()) } else { Err(DmaError { address, length }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bar::Bars;

    #[test]
    fn a_write_that_ends_accesses_to_memory_waits_for_them() {
        const COMMAND: u64 = 4;
        const POWER_CONTROL: u64 = 0x44;
        let bars = Bars { llq: 64 << 20, doorbells: 2 << 20, missing: None };
        let config = ConfigSpace::new(0xefa2, 200, bars, 1);
        let ignore = |_, _: &TraceEvent| {};
        let mut slot = Slot::new(config, 1, Box::new(ignore), Instant::now());
        for (offset, value, waits) in [
            (COMMAND, 4, false),
            (COMMAND, 6, false),
            (COMMAND, 2, true),
            (COMMAND, 0, false),
            (COMMAND, 4, false),
            (POWER_CONTROL, 3, true),
        ] {
            let copy = slot.pins.later();
            slot.write_config(offset, &[value, 0]);
            assert_eq!(copy.pin().is_none(), waits, "{offset:#x}: {value}");
        }
    }
}
