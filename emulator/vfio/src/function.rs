// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A PCI function: a device in a slot of a VMM, if one has it.

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, Instant},
};

use efa_fabric::{Access, CopyError, Guest, Memory, Pins, PortId};
use efa_model::{Config, Device, DmaError, Host, Recorder, Segment, TraceEvent};
use parking_lot::{Condvar, Mutex};

use crate::{
    bar::{Bar, Bars},
    config_space::{ConfigSpace, MAX_MSIX_VECTORS},
    dma::DmaTable,
    extents::Extents,
    llq::Llq,
    msix::Vectors,
    runtime::Runtime,
};

/// How long to wait before looking again whether a VMM can have a function: a rule may unplug it at any time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A connection of a VMM to a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VmmId(u64);

/// Who is told of what a device does, under its lock: so it must neither wait for anybody nor do more than to take note.
pub trait Observer: Send {
    /// Takes note of something, with the time since the program started.
    fn note(&mut self, now: Duration, event: &TraceEvent);

    /// Whether it wants to be told of each work request and completion, too.
    fn wants_work(&self) -> bool {
        false
    }

    /// Who records all that the device is told and does, from the start, if anybody is to.
    fn recorder(&mut self) -> Option<Box<dyn Recorder>> {
        None
    }
}

impl<F: FnMut(Duration, &TraceEvent) + Send> Observer for F {
    fn note(&mut self, now: Duration, event: &TraceEvent) {
        self(now, event);
    }
}

/// One device and its link to the guest.
pub struct Function {
    device_id: u16,
    pub(crate) bars: Bars,
    pub(crate) msix_vectors: u16,
    runtime: Arc<Runtime>,
    port: PortId,
    /// Somebody waits for the function, and is told when it may be free.
    vacated: (Mutex<()>, Condvar),
}

/// Where a function has its MSI-X table. What is in it is the VMM's affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixTable {
    /// The index of the BAR.
    pub bar: u8,
    /// Where in the BAR.
    pub offset: u64,
    /// How many vectors it has, of 16 bytes each.
    pub vectors: u16,
}

/// The slot that a device is in: its way to the guest.
pub(crate) struct Slot {
    pub(crate) dma: DmaTable,
    pub(crate) vectors: Vectors,
    pub(crate) config: ConfigSpace,
    pub(crate) llq: Llq,
    /// The VMM that has the function, if any has.
    vmm: Option<VmmId>,
    /// How many VMMs have had it.
    vmms: u64,
    observer: Box<dyn Observer>,
    start: Instant,
    pins: Arc<Pins>,
}

impl Function {
    /// Attaches a device after power on, without a guest, to a network.
    ///
    /// It may lack a BAR, for tests of what a driver does then.
    ///
    /// # Errors
    ///
    /// There is no memory for the device's own memory, or the kernel has no asynchronous I/O for its interrupts.
    pub fn new(
        runtime: &Arc<Runtime>,
        config: Config,
        missing: Option<Bar>,
        mut observer: Box<dyn Observer>,
    ) -> io::Result<Self> {
        let device_id = config.profile.pci_device();
        let msix_vectors = config.vectors.clamp(1, MAX_MSIX_VECTORS);
        let mut device = Device::new(config);
        if let Some(recorder) = observer.recorder() {
            device.record(recorder);
        }
        let bars = Bars {
            llq: device.memory_bar_size(),
            doorbells: device.doorbell_bar_size(),
            missing,
        };
        let link = Slot {
            dma: DmaTable::default(),
            vectors: Vectors::new(msix_vectors)?,
            config: ConfigSpace::new(device_id, bars, msix_vectors),
            llq: Llq::new(bars.size(Bar::Llq))?,
            vmm: None,
            vmms: 0,
            observer,
            start: runtime.start(),
            pins: Arc::default(),
        };
        let port = runtime.attach(device, link);
        Ok(Self {
            device_id,
            bars,
            msix_vectors,
            runtime: Arc::clone(runtime),
            port,
            vacated: (Mutex::new(()), Condvar::new()),
        })
    }

    /// Where the MSI-X table is.
    pub fn msix_table(&self) -> MsixTable {
        MsixTable {
            bar: self.bars.msix().index(),
            offset: self.bars.msix_table(),
            vectors: self.msix_vectors,
        }
    }

    /// Works on the device alone, then lets it do what is due.
    pub fn with<R>(&self, work: impl FnOnce(&mut Device, &mut dyn Host, Duration) -> R) -> R {
        self.runtime
            .with(self.port, |device, link, now| work(device, link, now))
    }

    /// Pulls the device out of its slot: no access reaches it any more, and it makes none. Another VMM can have it then, in
    /// whose slot it is plugged in.
    pub fn unplug(&self) {
        self.with(|device, host, _| device.unplug(host));
        self.vacated.1.notify_all();
    }

    /// Plugs the device into the slot that it was pulled out of. It is as after power on.
    pub fn plug(&self) {
        self.runtime.with(self.port, |device, link, _| {
            if !device.is_plugged() {
                link.forget();
                device.plug(link);
            }
        });
    }

    /// Waits until a new VMM can have the function, which is as after power on then, with memory of its own for this VMM.
    ///
    /// # Errors
    ///
    /// There is no memory, or the VMM `is_there` no more.
    pub(crate) fn claim(&self, is_there: impl Fn() -> bool) -> io::Result<VmmId> {
        let mut llq = Some(Llq::new(self.bars.size(Bar::Llq))?);
        while is_there() {
            let claimed = self.runtime.with(self.port, |device, link, _| {
                if link.vmm.is_some() && device.is_plugged() {
                    return None;
                }
                link.vmms += 1;
                link.serve(Some(VmmId(link.vmms)));
                if let Some(llq) = llq.take() {
                    link.llq = llq;
                }
                device.plug(link);
                device.power_on(link);
                link.vmm
            });
            match claimed {
                Some(vmm) => return Ok(vmm),
                None => {
                    let (lock, vacated) = &self.vacated;
                    vacated.wait_for(&mut lock.lock(), LOOK_AGAIN);
                }
            }
        }
        Err(io::ErrorKind::NotConnected.into())
    }

    /// Forgets a VMM, and what the device knew of its guest.
    pub(crate) fn release(&self, vmm: VmmId) {
        self.of(vmm, |device, link, _| {
            link.serve(None);
            device.power_on(link);
        });
        self.vacated.1.notify_all();
    }

    /// Works for a VMM, if it still has the function.
    pub(crate) fn of<R>(
        &self,
        vmm: VmmId,
        work: impl FnOnce(&mut Device, &mut Slot, Duration) -> R,
    ) -> Option<R> {
        self.runtime.with(self.port, |device, link, now| {
            (link.vmm == Some(vmm)).then(|| work(device, link, now))
        })
    }

    /// Does what the guest of a VMM wants, if the device is in its slot.
    pub(crate) fn access<R>(
        &self,
        vmm: VmmId,
        work: impl FnOnce(&mut Device, &mut Slot, Duration) -> R,
    ) -> Option<R> {
        self.of(vmm, |device, link, now| {
            device.is_plugged().then(|| work(device, link, now))
        })
        .flatten()
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("device_id", &self.device_id)
            .field("bars", &self.bars)
            .field("msix_vectors", &self.msix_vectors)
            .finish_non_exhaustive()
    }
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
        // A message signalled interrupt is a write to memory.
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
    /// Forgets the VMM that had the function, for another one or none.
    fn serve(&mut self, vmm: Option<VmmId>) {
        self.vmm = vmm;
        self.unmap_all();
        self.vectors.clear();
        self.forget();
    }

    /// Drops the mappings inside of a range, when nobody copies from or to them any more.
    ///
    /// # Errors
    ///
    /// See [`DmaTable::unmap`].
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> io::Result<()> {
        self.pins.quiesce();
        self.dma.unmap(address, size)
    }

    /// Drops all mappings, likewise.
    pub(crate) fn unmap_all(&mut self) {
        self.pins.quiesce();
        self.dma.clear();
    }

    /// Resets the function.
    pub(crate) fn reset(&mut self, device: &mut Device) {
        self.trace(&TraceEvent::FunctionReset);
        self.forget();
        device.reset(self);
    }

    /// What a reset of the function does, but for the device.
    fn forget(&mut self) {
        self.config.reset();
        if let Err(error) = self.llq.clear() {
            tracing::error!(%error, "the send queues of another guest cannot be cleared");
        }
    }

    /// A function may access memory only if the driver lets it.
    fn check_bus_master(&self, address: u64, length: usize) -> Result<(), DmaError> {
        if self.config.bus_master() {
            Ok(())
        } else {
            Err(DmaError { address, length })
        }
    }
}
