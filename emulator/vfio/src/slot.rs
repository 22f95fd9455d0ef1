// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The slot of a device: its configuration space, DMA table, interrupt vectors and memory, for a VMM.

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, Instant},
};

use efa_fabric::{Access, CopyError, Guest, Memory, Pins};
use efa_model::{Device, DmaError, Host, Segment, TraceEvent};

use crate::{
    bar::{Bar, Bars},
    config_space::ConfigSpace,
    dma::{DmaTable, Unmapped},
    extents::Extents,
    llq::Llq,
    msix::Vectors,
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
    pub(crate) llq: Llq,
    /// The VMM that has the function, if any has.
    vmm: Option<VmmId>,
    /// Number of VMMs that have had the function.
    vmms: u64,
    observer: Box<dyn Observer>,
    start: Instant,
    pins: Arc<Pins>,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("vmm", &self.vmm)
            .finish_non_exhaustive()
    }
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

impl Memory for Extents {
    fn read(&self, buffer: &mut [u8]) -> Result<(), DmaError> {
        self.read(buffer)
    }

    fn write(&self, data: &[u8]) -> Result<(), DmaError> {
        self.write(data)
    }

    fn copy_to(&self, target: &Self) -> Result<(), CopyError> {
        self.copy_to(target)
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
        match self.llq.slice(offset, buffer.len()) {
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
    ///
    /// # Errors
    ///
    /// There is no memory for the device's own memory, or the kernel has no asynchronous I/O for its interrupts.
    pub(crate) fn new(
        config: ConfigSpace,
        bars: Bars,
        msix_vectors: u16,
        observer: Box<dyn Observer>,
        start: Instant,
    ) -> io::Result<Self> {
        Ok(Self {
            dma: DmaTable::default(),
            vectors: Vectors::new(msix_vectors)?,
            config,
            llq: Llq::new(bars.size(Bar::Llq))?,
            vmm: None,
            vmms: 0,
            observer,
            start,
            pins: Arc::default(),
        })
    }

    /// Returns the VMM that has the function, if any has.
    pub(crate) fn vmm(&self) -> Option<VmmId> {
        self.vmm
    }

    /// Gives the function to a new VMM, and discards the state of the previous one.
    pub(crate) fn serve_next(&mut self) -> (VmmId, Unmapped) {
        self.vmms += 1;
        let vmm = VmmId(self.vmms);
        (vmm, self.serve(Some(vmm)))
    }

    /// Takes the function from its VMM, and discards the state of that VMM.
    pub(crate) fn vacate(&mut self) -> Unmapped {
        self.serve(None)
    }

    fn serve(&mut self, vmm: Option<VmmId>) -> Unmapped {
        self.vmm = vmm;
        let unmapped = self.unmap_all();
        self.vectors.clear();
        self.forget();
        unmapped
    }

    /// Waits for the end of copies from and to the guest's memory, then removes the mappings within a range.
    ///
    /// # Errors
    ///
    /// See [`DmaTable::unmap`].
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> io::Result<Unmapped> {
        self.pins.quiesce();
        self.dma.unmap(address, size)
    }

    /// Removes all mappings, likewise.
    pub(crate) fn unmap_all(&mut self) -> Unmapped {
        self.pins.quiesce();
        self.dma.clear()
    }

    /// Resets the function.
    pub(crate) fn reset(&mut self, device: &mut Device) {
        self.trace(&TraceEvent::FunctionReset);
        self.forget();
        device.reset(self);
    }

    /// Resets the configuration space and clears the send queues: a function reset without that of the device.
    pub(crate) fn forget(&mut self) {
        self.config.reset();
        if let Err(error) = self.llq.clear() {
            tracing::error!(%error, "cannot clear the send queues of the previous guest");
        }
    }

    /// Fails unless the driver has enabled bus mastering, which the function needs to access memory.
    fn check_bus_master(&self, address: u64, length: usize) -> Result<(), DmaError> {
        if self.config.bus_master() {
            Ok(())
        } else {
            Err(DmaError { address, length })
        }
    }
}
