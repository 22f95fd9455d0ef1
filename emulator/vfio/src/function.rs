// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A PCI function: a device in the slot of a VMM, or of none.

use std::{io, sync::Arc, time::Duration};

use efa_fabric::{ConnectionState, PortId};
use efa_model::{Config, Device, Host};
use parking_lot::{Condvar, Mutex};

use crate::{
    bar::{Bar, Bars},
    config_space::{ConfigSpace, MAX_MSIX_VECTORS},
    llq::Llq,
    msix::{Signaller, Waker},
    runtime::Runtime,
    slot::{Observer, Slot, VmmId},
};

/// Interval of checks whether a waiting VMM can have the function: a rule may unplug the device at any time.
const RECHECK_INTERVAL: Duration = Duration::from_millis(20);

/// One device and its link to the guest.
pub struct Function {
    pub(crate) bars: Bars,
    pub(crate) msix_vectors: u16,
    runtime: Arc<Runtime>,
    port: PortId,
    /// Locked by threads of VMMs for one signal at a time, without the lock of the device.
    pub(crate) signaller: Mutex<Signaller>,
    /// Locked by the VMM that claims the function. Signalled when the function may be free.
    vacated: (Mutex<()>, Condvar),
}

impl Function {
    /// Attaches a new device to a network, without a guest, in the state after power on.
    ///
    /// The device may lack a BAR, to test how a driver handles that.
    ///
    /// # Errors
    ///
    /// The kernel has no asynchronous I/O for the device's interrupts.
    pub fn new(
        runtime: &Arc<Runtime>,
        config: Config,
        missing: Option<Bar>,
        observer: Box<dyn Observer>,
    ) -> io::Result<Self> {
        let device_id = config.profile.pci_device();
        let msix_vectors = config.vectors.clamp(1, MAX_MSIX_VECTORS);
        let gbps = config.link_gbps();
        let device = Device::new(config);
        let bars = Bars { llq: device.memory_bar_size(), doorbells: device.doorbell_bar_size(), missing };
        let space = ConfigSpace::new(device_id, gbps, bars, msix_vectors);
        let link = Slot::new(space, msix_vectors, observer, runtime.start);
        let port = runtime.fabric.attach(device, link);
        Ok(Self {
            bars,
            msix_vectors,
            runtime: Arc::clone(runtime),
            port,
            signaller: Mutex::new(Signaller::new()?),
            vacated: (Mutex::new(()), Condvar::new()),
        })
    }

    /// Calls `work` with exclusive access to the device, then carries out some of the work that is due.
    pub fn with<R>(&self, work: impl FnOnce(&mut Device, &mut dyn Host, Duration) -> R) -> R {
        self.runtime.with(self.port, |device, link, now| work(device, link, now))
    }

    /// Returns the state of the first connections of the device.
    pub fn connections(&self) -> Vec<ConnectionState> {
        self.runtime.fabric.connections(self.port)
    }

    /// Limits the files that the next VMM shares, and their bytes. Each file takes a descriptor of this program. The bytes that
    /// the device accesses count as memory of this program.
    pub fn limit_memory(&self, files: usize, bytes: u64) {
        self.runtime.with(self.port, |_, link, _| link.limits = (files, bytes));
    }

    /// Unplugs the device from its slot: no access reaches it any more, and it makes none. Another VMM can claim the function
    /// then, which plugs the device into the slot of that VMM.
    pub fn unplug(&self) {
        self.with(|device, host, _| device.unplug(host));
        self.vacated.1.notify_all();
    }

    /// Plugs the device into its slot again, in the state after power on.
    pub fn plug(&self) {
        self.runtime.with(self.port, |device, link, _| {
            if !device.is_plugged() {
                link.forget();
                device.plug(link);
            }
        });
    }

    /// Waits until a new VMM can have the function and is not later than others. The device is in the state after power on
    /// then, with new memory for this VMM. Its interrupts use the waker.
    ///
    /// # Errors
    ///
    /// No memory or descriptor is available, or the VMM has disconnected (`is_connected`).
    pub(crate) fn claim(
        &self,
        is_connected: impl Fn() -> bool,
        is_later: impl Fn() -> bool,
    ) -> io::Result<(VmmId, Arc<Waker>)> {
        // One VMM at a time allocates memory, and waiting VMMs have none.
        let (turn, vacated) = &self.vacated;
        let mut turn = turn.lock();
        while is_connected() {
            let is_free = self.runtime.with(self.port, |device, link, _| link.vmm.is_none() || !device.is_plugged());
            if is_later() || !is_free {
                vacated.wait_for(&mut turn, RECHECK_INTERVAL);
                continue;
            }
            let llq = Llq::new(self.bars.size(Bar::Llq))?;
            let waker = Arc::new(Waker::new()?);
            let (vmm, previous) = self.runtime.with(self.port, |device, link, _| {
                let previous = link.serve(Some((llq, Arc::clone(&waker))));
                device.plug(link);
                device.power_on(link);
                (link.vmm, previous)
            });
            drop(previous);
            return vmm.map(|vmm| (vmm, waker)).ok_or_else(|| io::ErrorKind::NotConnected.into());
        }
        Err(io::ErrorKind::NotConnected.into())
    }

    /// Takes the function from a VMM and discards the state of its guest.
    pub(crate) fn release(&self, vmm: VmmId) {
        let previous = self.of(vmm, |device, link, _| {
            let previous = link.serve(None);
            device.power_on(link);
            previous
        });
        drop(previous);
        self.vacated.1.notify_all();
    }

    /// Calls `work` for a VMM, if it still has the function.
    pub(crate) fn of<R>(&self, vmm: VmmId, work: impl FnOnce(&mut Device, &mut Slot, Duration) -> R) -> Option<R> {
        self.runtime.with(self.port, |device, link, now| (link.vmm == Some(vmm)).then(|| work(device, link, now)))
    }

    /// Signals the interrupts that are due for a VMM. Called by the VMM's thread.
    pub(crate) fn interrupt(&self, vmm: VmmId) {
        let due =
            self.runtime.fabric.with_guest(self.port, |link| (link.vmm == Some(vmm)).then(|| link.vectors.take_due()));
        for eventfd in due.into_iter().flatten() {
            self.signaller.lock().signal(&eventfd);
        }
    }

    /// Calls `work` for an access by a VMM's guest, if the VMM has the function and the device is plugged in. Called by the VMM's
    /// thread.
    pub(crate) fn access<R>(&self, vmm: VmmId, work: impl FnOnce(&mut Device, &mut Slot, Duration) -> R) -> Option<R> {
        let (result, unclean) = self.of(vmm, |device, link, now| {
            let result = device.is_plugged().then(|| work(device, link, now));
            (result, link.unclean.take())
        })?;
        if let Some(Err(error)) = unclean.map(|llq| llq.clear()) {
            tracing::error!(%error, "cannot clear the send queues after a reset");
        }
        result
    }
}
