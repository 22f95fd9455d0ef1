// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices and their links to guests, with the network between them, shared by the threads that work on them.

use std::{
    fmt, io,
    sync::{Arc, mpsc::Sender},
    time::{Duration, Instant},
};

use efa_fabric::{Cluster, CopyError, Frame, Guest, LinkId, PathCounters, PortId, Settings};
use efa_model::{Config, Device, DmaError, Host, TraceEvent};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    bar::{Bar, Bars},
    config_space::{ConfigSpace, MAX_MSIX_VECTORS},
    dma::DmaTable,
    llq::Llq,
    msix::Vectors,
};

/// Packets that whoever gives a device something to do moves at once, so that a short message needs no other thread.
const PROMPT: u32 = 16;

/// Packets that are moved before others may work on the devices.
const BATCH: u32 = 32;

/// How long to wait before looking again whether a VMM can have a function: a rule may unplug it at any time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A connection of a VMM to a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VmmId(u64);

/// Is told of what the device does, with the time since the program started.
pub type Tracer = Box<dyn FnMut(Duration, &TraceEvent) + Send>;

/// All devices of the program.
///
/// The VMMs' messages, timers and the control socket come from different threads; each works on the devices alone, for no
/// longer than it takes to move some packets.
pub struct Fabric {
    state: Mutex<State>,
    due_changed: Condvar,
    vacated: Condvar,
    start: Instant,
}

struct State {
    cluster: Cluster<Link>,
    // Where packets for other programs go.
    links: Vec<Option<Sender<Frame>>>,
    // When there will be something to do.
    due: Option<Duration>,
}

/// One device and its link to the guest.
pub struct Function {
    device_id: u16,
    pub(crate) bars: Bars,
    pub(crate) msix_vectors: u16,
    pub(crate) llq: Arc<Llq>,
    fabric: Arc<Fabric>,
    port: PortId,
}

/// The device's way to the guest.
pub(crate) struct Link {
    pub(crate) dma: DmaTable,
    pub(crate) vectors: Vectors,
    pub(crate) config: ConfigSpace,
    pub(crate) llq: Arc<Llq>,
    /// The VMM that has the function, if any has.
    vmm: Option<VmmId>,
    /// How many VMMs have had it.
    vmms: u64,
    tracer: Tracer,
    start: Instant,
}

impl Fabric {
    /// A network without devices. `program` distinguishes this program from others of the same network. All times are
    /// times since `start`.
    pub fn new(settings: Settings, seed: u64, program: u64, start: Instant) -> Self {
        Self {
            state: Mutex::new(State {
                cluster: Cluster::new(settings, seed, program),
                links: Vec::new(),
                due: None,
            }),
            due_changed: Condvar::new(),
            vacated: Condvar::new(),
            start,
        }
    }

    /// What the network is like.
    pub fn settings(&self) -> Settings {
        self.state.lock().cluster.settings().clone()
    }

    /// Changes what the network is like.
    pub fn set(&self, settings: Settings) {
        self.state.lock().cluster.set(settings);
    }

    /// What each path did.
    pub fn paths(&self) -> Vec<PathCounters> {
        self.state.lock().cluster.paths().to_vec()
    }

    /// The addresses of all devices of this program.
    pub fn addresses(&self) -> Vec<[u8; 16]> {
        self.state.lock().cluster.addresses()
    }

    /// How many devices of other programs there are.
    pub fn remote_devices(&self) -> usize {
        self.state.lock().cluster.remote_devices()
    }

    /// Takes note of another program with these devices, which gets its packets by `sender`.
    pub fn join(&self, addresses: Vec<[u8; 16]>, sender: Sender<Frame>) -> LinkId {
        let mut state = self.state.lock();
        state.links.push(Some(sender));
        state.cluster.join(addresses)
    }

    /// Takes note that another program is gone.
    pub fn leave(&self, link: LinkId) {
        let mut state = self.state.lock();
        state.links[link.0] = None;
        state.cluster.leave(link);
    }

    /// Takes a packet from another program.
    pub fn accept(&self, link: LinkId, frame: Frame) {
        let mut state = self.state.lock();
        let now = self.start.elapsed();
        state.cluster.accept(now, link, frame);
        self.run(&mut state, now, PROMPT);
    }

    /// Lets the devices and the network do what is due, whenever it is due. Never returns; it needs a thread of its own.
    pub fn run_timer(&self) -> ! {
        let mut state = self.state.lock();
        loop {
            match state
                .due
                .map(|due| due.saturating_sub(self.start.elapsed()))
            {
                None => self.due_changed.wait(&mut state),
                Some(Duration::ZERO) => {
                    let now = self.start.elapsed();
                    state.due = state.cluster.run(now, BATCH);
                    state.forward();
                    // Whoever waits for the devices gets them now.
                    MutexGuard::bump(&mut state);
                }
                Some(wait) => {
                    self.due_changed.wait_for(&mut state, wait);
                }
            }
        }
    }

    /// Works on a device, then lets all do what is due.
    fn with<R>(&self, port: PortId, work: impl FnOnce(&mut Device, &mut Link, Duration) -> R) -> R {
        let mut state = self.state.lock();
        let now = self.start.elapsed();
        let result = state
            .cluster
            .with(port, now, |device, link| work(device, link, now));
        self.run(&mut state, now, PROMPT);
        result
    }

    /// Lets all do what is due, but no more than `budget`; the thread of the network does the rest.
    fn run(&self, state: &mut State, now: Duration, budget: u32) {
        let due = state.cluster.run(now, budget);
        state.forward();
        if due != state.due {
            state.due = due;
            self.due_changed.notify_one();
        }
    }
}

impl State {
    /// Hands packets for other programs on.
    fn forward(&mut self) {
        for (link, frame) in self.cluster.take_frames() {
            if let Some(Some(sender)) = self.links.get(link.0) {
                // One for a program that is gone is lost.
                let _ = sender.send(frame);
            }
        }
    }
}

impl Function {
    /// Attaches a device after power on, without a guest, to a network.
    ///
    /// It may lack a BAR, for tests of what a driver does then.
    ///
    /// # Errors
    ///
    /// There is no memory for the device's own memory.
    pub fn new(
        fabric: &Arc<Fabric>,
        config: Config,
        missing: Option<Bar>,
        tracer: Tracer,
    ) -> io::Result<Self> {
        let device_id = config.profile.pci_device();
        let msix_vectors = config.vectors.clamp(1, MAX_MSIX_VECTORS);
        let device = Device::new(config);
        let bars = Bars {
            llq: device.memory_bar_size(),
            doorbells: device.doorbell_bar_size(),
            missing,
        };
        let llq = Arc::new(Llq::new(bars.size(Bar::Llq))?);
        let link = Link {
            dma: DmaTable::default(),
            vectors: Vectors::new(msix_vectors),
            config: ConfigSpace::new(device_id, bars, msix_vectors),
            llq: Arc::clone(&llq),
            vmm: None,
            vmms: 0,
            tracer,
            start: fabric.start,
        };
        let port = fabric.state.lock().cluster.attach(device, link);
        Ok(Self {
            device_id,
            bars,
            msix_vectors,
            llq,
            fabric: Arc::clone(fabric),
            port,
        })
    }

    /// Works on the device alone, then lets it do what is due.
    pub fn with<R>(&self, work: impl FnOnce(&mut Device, &mut dyn Host, Duration) -> R) -> R {
        self.fabric
            .with(self.port, |device, link, now| work(device, link, now))
    }

    /// Pulls the device out of its slot: no access reaches it any more, and it makes none. Another VMM can have it then, in
    /// whose slot it is plugged in.
    pub fn unplug(&self) {
        self.with(|device, host, _| device.unplug(host));
        self.fabric.vacated.notify_all();
    }

    /// Plugs the device into the slot that it was pulled out of. It is as after power on.
    pub fn plug(&self) {
        self.fabric.with(self.port, |device, link, _| {
            if !device.is_plugged() {
                link.forget();
                device.plug(link);
            }
        });
    }

    /// Waits until a new VMM can have the function, which is as after power on then.
    pub(crate) fn claim(&self) -> VmmId {
        loop {
            let claimed = self.fabric.with(self.port, |device, link, _| {
                if link.vmm.is_some() && device.is_plugged() {
                    return None;
                }
                link.vmms += 1;
                link.serve(Some(VmmId(link.vmms)));
                device.plug(link);
                device.power_on();
                link.vmm
            });
            match claimed {
                Some(vmm) => return vmm,
                None => {
                    let mut state = self.fabric.state.lock();
                    self.fabric.vacated.wait_for(&mut state, LOOK_AGAIN);
                }
            }
        }
    }

    /// Forgets a VMM, and what the device knew of its guest.
    pub(crate) fn release(&self, vmm: VmmId) {
        self.of(vmm, |device, link, _| {
            link.serve(None);
            device.power_on();
        });
        self.fabric.vacated.notify_all();
    }

    /// Works for a VMM, if it still has the function.
    pub(crate) fn of<R>(
        &self,
        vmm: VmmId,
        work: impl FnOnce(&mut Device, &mut Link, Duration) -> R,
    ) -> Option<R> {
        self.fabric.with(self.port, |device, link, now| {
            (link.vmm == Some(vmm)).then(|| work(device, link, now))
        })
    }

    /// Does what the guest of a VMM wants, if the device is in its slot.
    pub(crate) fn access<R>(
        &self,
        vmm: VmmId,
        work: impl FnOnce(&mut Device, &mut Link, Duration) -> R,
    ) -> Option<R> {
        self.of(vmm, |device, link, now| {
            device.is_plugged().then(|| work(device, link, now))
        })
        .flatten()
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
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

impl Guest for Link {
    fn copy(&self, from: u64, to: &Self, at: u64, length: usize) -> Result<(), CopyError> {
        self.check_bus_master(from, length)
            .map_err(CopyError::Source)?;
        to.check_bus_master(at, length).map_err(CopyError::Target)?;
        self.dma.copy(from, &to.dma, at, length)
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

    fn is_bus_master(&self) -> bool {
        self.config.bus_master()
    }

    fn read_device_memory(&mut self, offset: u64, buffer: &mut [u8]) {
        match self.llq.slice(offset, buffer.len()) {
            Some(slice) => {
                slice.copy_to(buffer);
            }
            None => buffer.fill(0),
        }
    }

    fn interrupt(&mut self, vector: u16) {
        // A message signalled interrupt is a write to memory.
        if self.config.bus_master() {
            self.vectors.signal(vector);
        }
    }

    fn trace(&mut self, event: &TraceEvent) {
        (self.tracer)(self.start.elapsed(), event);
    }
}

impl Link {
    /// Forgets the VMM that had the function, for another one or none.
    fn serve(&mut self, vmm: Option<VmmId>) {
        self.vmm = vmm;
        self.dma.clear();
        self.vectors.clear();
        self.forget();
    }

    /// Resets the function.
    pub(crate) fn reset(&mut self, device: &mut Device) {
        self.trace(&TraceEvent::FunctionReset);
        self.forget();
        device.reset();
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
