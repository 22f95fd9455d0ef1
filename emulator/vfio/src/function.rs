// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! One device and its link to the guest, shared by the threads that work on it.

use std::{
    fmt,
    sync::{Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use efa_model::{Config, Device, DmaError, Host, TraceEvent};

use crate::{
    bar::{Bar, Bars},
    config_space::MAX_MSIX_VECTORS,
    dma::DmaTable,
    msix::Vectors,
};

/// Is told of what the device does, with the time since the program started.
pub type Tracer = Box<dyn FnMut(Duration, &TraceEvent) + Send>;

/// A device and its link to the guest.
///
/// The VMM's messages, timers and the control socket come from different threads; each works on the device alone.
pub struct Function {
    pub(crate) device_id: u16,
    pub(crate) bars: Bars,
    pub(crate) msix_vectors: u16,
    state: Mutex<State>,
    due_changed: Condvar,
    start: Instant,
}

struct State {
    device: Device,
    link: Link,
    // When the device wants to run next.
    due: Option<Duration>,
}

/// The device's way to the guest.
pub(crate) struct Link {
    pub(crate) dma: DmaTable,
    pub(crate) vectors: Vectors,
    pub(crate) bus_master: bool,
    tracer: Tracer,
    now: Duration,
}

impl Function {
    /// A device after power on, without a guest. Its time is the time since `start`.
    ///
    /// It may lack a BAR, for tests of what a driver does then.
    pub fn new(config: Config, missing: Option<Bar>, start: Instant, tracer: Tracer) -> Self {
        let device_id = config.profile.pci_device();
        let msix_vectors = config.vectors.clamp(1, MAX_MSIX_VECTORS);
        let device = Device::new(config);
        let bars = Bars {
            llq: device.memory_bar_size(),
            doorbells: device.doorbell_bar_size(),
            missing,
        };
        let link = Link {
            dma: DmaTable::default(),
            vectors: Vectors::new(msix_vectors),
            bus_master: false,
            tracer,
            now: start.elapsed(),
        };
        Self {
            device_id,
            bars,
            msix_vectors,
            state: Mutex::new(State {
                device,
                link,
                due: None,
            }),
            due_changed: Condvar::new(),
            start,
        }
    }

    /// Works on the device alone, then lets it do what is due.
    ///
    /// # Panics
    ///
    /// Another thread panicked while it worked on the device.
    pub fn with<R>(&self, work: impl FnOnce(&mut Device, &mut dyn Host, Duration) -> R) -> R {
        let mut state = self.lock();
        let State { device, link, .. } = &mut *state;
        let now = self.start.elapsed();
        link.now = now;
        let result = work(device, link, now);
        self.run(&mut state);
        result
    }

    /// Works on the link to the guest.
    pub(crate) fn with_link<R>(&self, work: impl FnOnce(&mut Link) -> R) -> R {
        work(&mut self.lock().link)
    }

    /// The reset of a PCI function: it stays connected to the guest.
    pub(crate) fn reset(&self) {
        let mut state = self.lock();
        state.link.bus_master = false;
        state.device.reset();
        self.run(&mut state);
    }

    /// Forgets the guest, and what the device knew of it.
    pub(crate) fn disconnect(&self) {
        let mut state = self.lock();
        state.link.bus_master = false;
        state.link.dma.clear();
        state.link.vectors.clear();
        state.device.reset();
        self.run(&mut state);
    }

    /// Lets the device do what is due, whenever it is due. Never returns; it needs a thread of its own.
    ///
    /// # Panics
    ///
    /// Another thread panicked while it worked on the device.
    pub fn run_timer(&self) -> ! {
        let mut state = self.lock();
        loop {
            state = match state
                .due
                .map(|due| due.saturating_sub(self.start.elapsed()))
            {
                None => self.due_changed.wait(state).unwrap(),
                Some(Duration::ZERO) => {
                    self.run(&mut state);
                    state
                }
                Some(wait) => self.due_changed.wait_timeout(state, wait).unwrap().0,
            };
        }
    }

    fn run(&self, state: &mut State) {
        let now = self.start.elapsed();
        state.link.now = now;
        let due = state.device.run(&mut state.link, now);
        if due != state.due {
            state.due = due;
            self.due_changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
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

impl Host for Link {
    fn dma_read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), DmaError> {
        let length = buffer.len();
        self.check_bus_master(address, length)?;
        self.dma.read(address, buffer)
    }

    fn dma_write(&mut self, address: u64, data: &[u8]) -> Result<(), DmaError> {
        self.check_bus_master(address, data.len())?;
        self.dma.write(address, data)
    }

    fn interrupt(&mut self, vector: u16) {
        // A message signalled interrupt is a write to memory.
        if self.bus_master {
            self.vectors.signal(vector);
        }
    }

    fn trace(&mut self, event: &TraceEvent) {
        (self.tracer)(self.now, event);
    }
}

impl Link {
    /// A function may access memory only if the driver lets it.
    fn check_bus_master(&self, address: u64, length: usize) -> Result<(), DmaError> {
        if self.bus_master {
            Ok(())
        } else {
            Err(DmaError { address, length })
        }
    }
}
