// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The vfio-user server: the requests of VMMs to the function.

use std::{
    fs::File,
    io, iter,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    sync::Arc,
    thread,
    time::Duration,
};

use efa_model::Device;
use parking_lot::{Condvar, Mutex};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::sockopt::socket_peercred,
};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS,
    VFIO_PCI_NUM_REGIONS,
};
use vfio_user::{DmaMap, Irq, IrqSet, Limits, MAX_FDS, Region, RegionWrite};

use crate::{
    bar::{Bar, Bars},
    config_space,
    function::Function,
    memory::{Allowed, Files, Shareable},
    msix::Waker,
    slot::{Slot, VmmId},
    socket::{accept, attempt},
};

/// Limit on the VMMs that wait for a function or have sent nothing: each takes a descriptor and a thread. One more
/// disconnects the longest waiting VMM of the user with the most of them.
const MAX_WAITING: usize = 4;

/// Returns the maximum number of file descriptors of a device with so many interrupts, without those of its guest's memory.
///
/// They are its socket, those of VMMs with a message each, its interrupts, its own memory and a waker. The last two count twice,
/// as a VMM that claims the function has new ones. One VMM more counts, which waits until another one has left its place.
pub fn descriptors(vectors: u16) -> usize {
    1 + 2 * 2 + 1 + 1 + (MAX_WAITING + 1) * (1 + MAX_FDS) + usize::from(vectors)
}

/// A server of one function, which one VMM at a time has.
pub struct Server {
    listener: UnixListener,
    function: Arc<Function>,
    device: Arc<vfio_user::Device>,
    waiting: Arc<Waiting>,
    limits: Limits,
    allowed: Allowed,
}

impl Server {
    /// Creates a server of `function`, for VMMs that connect to `listener`, keep to `limits` and share `allowed` kinds of files.
    pub fn new(listener: UnixListener, function: Arc<Function>, limits: Limits, allowed: Allowed) -> Self {
        let device = vfio_user::Device { regions: regions(function.bars), irqs: irqs(function.msix_vectors) };
        Self { listener, function, device: Arc::new(device), waiting: Arc::default(), limits, allowed }
    }

    /// Serves VMMs. A VMM that connects gets the function when no other VMM has it, or when it was unplugged from the other
    /// VMM's slot. The device is in the state after power on then.
    ///
    /// It needs a thread of its own, and starts one for each VMM.
    pub fn run(&self) -> ! {
        let name = thread::current().name().unwrap_or("VMM").to_owned();
        loop {
            let (stream, _) = accept("VMM", || self.listener.accept());
            let stream = Arc::new(stream);
            let place = Place::take(&self.waiting, &stream);
            let (function, device) = (Arc::clone(&self.function), Arc::clone(&self.device));
            let (limits, allowed) = (self.limits, self.allowed);
            let thread = thread::Builder::new().name(name.clone());
            // If no thread can be started, the VMM is disconnected.
            let _ = attempt("VMM", || thread.spawn(move || serve(&stream, &device, function, place, limits, allowed)));
        }
    }
}

/// The VMMs that wait for the function.
#[derive(Default)]
struct Waiting {
    state: Mutex<WaitingState>,
    fewer: Condvar,
}

#[derive(Default)]
struct WaitingState {
    /// The VMMs that wait, the longest waiting first.
    vmms: Vec<Vmm>,
    next: u64,
    /// The user of the VMM that claimed the function last.
    last: Option<u32>,
}

/// A VMM that waits.
struct Vmm {
    number: u64,
    uid: u32,
    stream: Arc<UnixStream>,
}

/// A place among the VMMs that wait.
struct Place {
    waiting: Arc<Waiting>,
    number: u64,
    uid: u32,
}

impl Place {
    /// Adds a VMM to those that wait. If they are too many, another VMM is disconnected for it.
    fn take(waiting: &Arc<Waiting>, stream: &Arc<UnixStream>) -> Self {
        // VMMs of unknown users count as those of one user.
        let uid = socket_peercred(stream).map_or(u32::MAX, |peer| peer.uid.as_raw());
        let mut state = waiting.state.lock();
        if state.vmms.len() >= MAX_WAITING {
            let uids: Vec<_> = state.vmms.iter().map(|vmm| vmm.uid).collect();
            if let Some(vmm) = longest(&uids).and_then(|index| state.vmms.get(index)) {
                tracing::info!("a waiting VMM is disconnected to make room for a new one");
                // A failure means that the connection has ended already.
                let _ = vmm.stream.shutdown(Shutdown::Both);
            }
            let is_full = |state: &mut WaitingState| state.vmms.len() >= MAX_WAITING;
            waiting.fewer.wait_while(&mut state, is_full);
        }
        state.next += 1;
        let number = state.next;
        let stream = Arc::clone(stream);
        state.vmms.push(Vmm { number, uid, stream });
        drop(state);
        let waiting = Arc::clone(waiting);
        Self { waiting, number, uid }
    }

    /// Whether a waiting VMM of another user takes precedence, as that user had the function last.
    fn is_later(&self) -> bool {
        let state = self.waiting.state.lock();
        let last = state.last.filter(|last| *last != self.uid);
        last.is_some_and(|last| state.vmms.iter().any(|vmm| vmm.uid == last))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.waiting.state.lock();
        state.vmms.retain(|vmm| vmm.number != self.number);
        self.waiting.fewer.notify_one();
    }
}

/// Returns the longest waiting VMM of the user with the most. `uids` are the users of the VMMs, longest waiting first.
fn longest(uids: &[u32]) -> Option<usize> {
    let count = |uid| uids.iter().filter(|other| **other == uid).count();
    let most = uids.iter().map(|uid| count(*uid)).max()?;
    uids.iter().position(|uid| count(*uid) == most)
}

/// Serves a VMM that has connected.
fn serve(
    stream: &UnixStream,
    device: &vfio_user::Device,
    function: Arc<Function>,
    place: Place,
    limits: Limits,
    allowed: Allowed,
) {
    let mut backend = Backend { stream, function, vmm: None, place: Some(place), allowed };
    match vfio_user::serve(stream, device, &mut backend, limits) {
        Ok(()) => tracing::info!("the VMM has disconnected"),
        Err(error) => tracing::warn!(%error, "the connection to the VMM has ended"),
    }
}

fn regions(bars: Bars) -> Vec<Region> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let bar = bars.at(index);
            let size = match bar {
                Some(bar) => bars.size(bar),
                None if index == VFIO_PCI_CONFIG_REGION_INDEX => config_space::SIZE as u64,
                None => 0,
            };
            let mappable = match bar {
                Some(Bar::Llq) => iter::once(0..size).collect(),
                _ => Vec::new(),
            };
            Region { size, mappable }
        })
        .collect()
}

fn irqs(msix_vectors: u16) -> Vec<Irq> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| match index {
            VFIO_PCI_MSIX_IRQ_INDEX => Irq {
                // With `NORESIZE`, QEMU would disable all vectors to enable one more. Interrupts would be lost meanwhile.
                flags: VFIO_IRQ_INFO_EVENTFD,
                count: msix_vectors.into(),
            },
            _ => Irq::default(),
        })
        .collect()
}

/// A function as a VMM uses it. When this is dropped, another VMM can have the function.
struct Backend<'a> {
    stream: &'a UnixStream,
    function: Arc<Function>,
    /// The VMM that it serves, from the VMM's first use of the function on, and what wakes its thread for interrupts.
    vmm: Option<(VmmId, Arc<Waker>)>,
    /// The VMM's place among those that wait, until then.
    place: Option<Place>,
    allowed: Allowed,
}

impl Drop for Backend<'_> {
    fn drop(&mut self) {
        if let Some((vmm, _)) = &self.vmm {
            self.function.release(*vmm);
        }
    }
}

impl Backend<'_> {
    /// Returns the VMM that it serves. The first call waits until the VMM can have the function.
    fn vmm(&mut self) -> io::Result<VmmId> {
        if let Some((vmm, _)) = &self.vmm {
            return Ok(*vmm);
        }
        let is_later = || self.place.as_ref().is_some_and(Place::is_later);
        let is_connected = || is_connected(self.stream);
        let (vmm, waker) = self.function.claim(is_connected, is_later)?;
        self.vmm = Some((vmm, waker));
        if let Some(place) = self.place.take() {
            place.waiting.state.lock().last = Some(place.uid);
        }
        Ok(vmm)
    }

    /// Returns the files that the VMM shares, if it still has the function.
    fn files(&self, vmm: VmmId) -> Option<Arc<Mutex<Files>>> {
        self.function.of(vmm, |_, link, _| Arc::clone(&link.files))
    }

    /// Unmaps files of which no part is mapped for DMA any more.
    fn release_unused(&self, vmm: VmmId) {
        if let Some(files) = self.files(vmm) {
            files.lock().release_unused();
        }
    }
}

/// Whether a VMM is still connected.
fn is_connected(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec::default())) == Ok(0)
}

/// Carries out a write of a guest to a region.
fn write(device: &mut Device, link: &mut Slot, now: Duration, bars: Bars, write: RegionWrite<'_>) {
    let RegionWrite { region, offset, data } = write;
    let Some(bar) = bars.at(region) else {
        if region == VFIO_PCI_CONFIG_REGION_INDEX && link.write_config(offset, data) {
            link.reset(device);
        }
        return;
    };
    if !link.config.is_on() {
        return;
    }
    if bar == Bar::Llq {
        if let Some(slice) = link.device_memory(offset, data.len()) {
            slice.copy_from(data);
        }
        return;
    }
    // Registers are four bytes wide. One write of eight bytes is two of them, in ascending order.
    let values = data.chunks_exact(4);
    if offset % 4 != 0 || !values.remainder().is_empty() {
        let len = data.len();
        tracing::debug!(?bar, offset, len, "misaligned register write dropped");
        return;
    }
    for (offset, value) in (offset..).step_by(4).zip(values) {
        let value = value.iter().rfold(0, |high, byte| (high << 8) | u32::from(*byte));
        match bar {
            Bar::Registers => device.write_register(link, now, offset, value),
            _ => device.write_doorbell(link, offset, value),
        }
    }
}

// As on a PCI bus, no access within a region fails: reads of what does not exist are all ones, and writes are dropped. The
// same holds for a VMM after its function was unplugged and attached to another VMM.
impl vfio_user::Backend for Backend<'_> {
    fn may_idle(&self) -> bool {
        self.vmm.is_some()
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.vmm.as_ref().map(|(_, waker)| waker.as_fd())
    }

    fn woken(&mut self) {
        if let Some((vmm, waker)) = &self.vmm {
            // Interrupts that become due from here on wake this thread again.
            waker.clear();
            self.function.interrupt(*vmm);
        }
    }

    fn region_file(&mut self, _: u32) -> io::Result<Arc<File>> {
        let vmm = self.vmm()?;
        let file = |_: &mut Device, link: &mut Slot, _| link.llq.as_ref().map(|llq| llq.file());
        let file = self.function.of(vmm, file).flatten();
        file.ok_or_else(|| Errno::NODEV.into())
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let vmm = self.vmm()?;
        data.fill(0xff);
        let bar = self.function.bars.at(region);
        self.function.access(vmm, |_, link, _| {
            if region == VFIO_PCI_CONFIG_REGION_INDEX {
                link.config.read(offset, data);
            } else if bar == Some(Bar::Llq) && link.config.is_on() {
                if let Some(slice) = link.device_memory(offset, data.len()) {
                    slice.copy_to(data);
                }
            }
        });
        Ok(())
    }

    fn region_write(&mut self, writes: &[RegionWrite<'_>]) -> io::Result<()> {
        let vmm = self.vmm()?;
        let bars = self.function.bars;
        let mut writes = writes.iter().copied().peekable();
        while writes.peek().is_some() {
            let done = self.function.access(vmm, |device, link, now| {
                for one in writes.by_ref() {
                    write(device, link, now, bars, one);
                    // The send queues are cleared between this write and the next one. A rule may unplug the device.
                    if link.unclean.is_some() || !device.is_plugged() {
                        break;
                    }
                }
            });
            if done.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap, file: Option<File>) -> io::Result<()> {
        tracing::debug!(?map, shared = file.is_some(), "map DMA");
        let vmm = self.vmm()?;
        let Some(files) = self.files(vmm) else {
            return Ok(());
        };
        // This may block, so the lock of the device is not held.
        let share = |file| {
            let file = Shareable::new(file, self.allowed)?;
            files.lock().share(file, map.offset, map.size)
        };
        let memory = file.map(share).transpose().inspect_err(|error| {
            tracing::warn!(%error, "refused to map memory of the VMM");
        })?;
        let map = |_: &mut Device, link: &mut Slot, _| link.dma.map(map, memory);
        self.function.of(vmm, map).unwrap_or(Ok(()))
    }

    fn dma_unmap(&mut self, address: u64, size: u64) -> io::Result<()> {
        tracing::debug!(address, size, "unmap DMA");
        let vmm = self.vmm()?;
        self.function.of(vmm, |_, link, _| link.unmap(address, size)).transpose()?;
        self.release_unused(vmm);
        Ok(())
    }

    fn dma_unmap_all(&mut self) -> io::Result<()> {
        tracing::debug!("unmap all DMA");
        let vmm = self.vmm()?;
        self.function.of(vmm, |_, link, _| link.unmap_all());
        self.release_unused(vmm);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        tracing::debug!("function reset");
        let vmm = self.vmm()?;
        self.function.access(vmm, |device, link, _| link.reset(device));
        Ok(())
    }

    fn set_irqs(&mut self, mut set: IrqSet<'_>) -> io::Result<()> {
        tracing::debug!(?set, "set interrupts");
        if set.index != VFIO_PCI_MSIX_IRQ_INDEX {
            // The function has no interrupts of other kinds.
            return Ok(());
        }
        let vmm = self.vmm()?;
        self.function.signaller.lock().check(&set.data)?;
        let set = |_: &mut Device, link: &mut Slot, _| link.vectors.set(&mut set);
        // The former eventfds are dropped here, without the lock of the device.
        self.function.of(vmm, set).transpose().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_with_the_most_waiting_vmms_loses_a_place() {
        for (uids, expected) in
            [(&[1, 1, 1, 1][..], Some(0)), (&[7, 1, 1, 1], Some(1)), (&[7, 1, 1, 7], Some(0)), (&[], None)]
        {
            assert_eq!(longest(uids), expected, "{uids:?}");
        }
    }

    #[test]
    fn the_last_user_of_the_function_takes_precedence() {
        let waiting = Arc::new(Waiting::default());
        let (stream, _peer) = UnixStream::pair().unwrap();
        let first = Place::take(&waiting, &Arc::new(stream));
        let other = Place { waiting: Arc::clone(&waiting), number: 0, uid: first.uid.wrapping_add(1) };
        assert!(!first.is_later() && !other.is_later());
        waiting.state.lock().last = Some(first.uid);
        assert!(!first.is_later() && other.is_later());
        drop(first);
        assert!(!other.is_later());
    }
}
