// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The vfio-user server: what the VMM asks of the function.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::net::UnixListener},
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread,
};

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_MMAP,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
    vfio_region_sparse_mmap_area,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, ServerBackend, ServerRegion, SparseArea};

use crate::{
    bar::{Bar, Bars},
    config_space,
    function::{Function, VmmId},
    llq::Llq,
};

/// Serves one function to VMMs, of which one at a time has it.
pub struct Server {
    transport: Arc<vfio_user::Server>,
    function: Arc<Function>,
}

/// Why a thread does not wait for a VMM any more.
enum End {
    /// One has connected, or was gone before it wanted anything.
    Served,
    /// None can connect.
    Failed(vfio_user::Error),
}

impl Server {
    /// A server of `function` that takes connections from `listener`.
    pub fn new(listener: UnixListener, function: Arc<Function>) -> Self {
        let regions = regions(function.bars, &function.llq);
        let irqs = irqs(function.msix_vectors);
        let transport =
            vfio_user::Server::from_owned_fd(OwnedFd::from(listener), true, irqs, regions);
        Self {
            transport: Arc::new(transport),
            function,
        }
    }

    /// Serves VMMs. One that connects gets the function when no other has it, or when it was pulled out of the other one's
    /// slot; it is as after power on.
    ///
    /// Returns only if no VMM can connect any more; it needs a thread of its own, and starts one for each VMM.
    pub fn run(&self) -> vfio_user::Error {
        let (sender, ends) = channel();
        let name = thread::current().name().unwrap_or("VMM").to_owned();
        loop {
            let (transport, function) = (Arc::clone(&self.transport), Arc::clone(&self.function));
            let ended = sender.clone();
            let waiting = thread::Builder::new().name(name.clone());
            if let Err(error) = waiting.spawn(move || serve(&transport, function, ended)) {
                return vfio_user::Error::SocketAccept(error);
            }
            // There always is a sender: this one's.
            if let Ok(End::Failed(error)) = ends.recv() {
                return error;
            }
        }
    }
}

/// Serves the next VMM that connects.
fn serve(transport: &vfio_user::Server, function: Arc<Function>, ended: Sender<End>) {
    let mut backend = Backend {
        function,
        vmm: None,
        ended,
    };
    match transport.run(&mut backend) {
        Ok(()) => tracing::info!("the VMM has disconnected"),
        Err(error @ vfio_user::Error::SocketAccept(_)) => {
            let _ = backend.ended.send(End::Failed(error));
            return;
        }
        Err(error) => tracing::warn!(%error, "the connection to the VMM has ended"),
    }
    match backend.vmm {
        Some(vmm) => backend.function.release(vmm),
        None => {
            let _ = backend.ended.send(End::Served);
        }
    }
}

fn regions(bars: Bars, llq: &Llq) -> Vec<ServerRegion> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let bar = bars.at(index);
            let size = match bar {
                Some(bar) => bars.size(bar),
                None if index == VFIO_PCI_CONFIG_REGION_INDEX => config_space::SIZE as u64,
                None => 0,
            };
            let mut flags = match size {
                0 => 0,
                _ => VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE,
            };
            let mut sparse_areas = Vec::new();
            let mut mmap_fd = None;
            if bar == Some(Bar::Llq) {
                flags |= VFIO_REGION_INFO_FLAG_MMAP;
                mmap_fd = Some(llq.fd());
                // The library sends the file only with a list of areas that may be mapped, so name all of it.
                let area = vfio_region_sparse_mmap_area { offset: 0, size };
                sparse_areas.push(SparseArea { area });
            }
            let region_info = vfio_region_info {
                argsz: size_of::<vfio_region_info>() as u32,
                flags,
                index,
                size,
                ..Default::default()
            };
            ServerRegion {
                region_info,
                sparse_areas,
                mmap_fd,
            }
        })
        .collect()
}

fn irqs(msix_vectors: u16) -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| match index {
            VFIO_PCI_MSIX_IRQ_INDEX => IrqInfo {
                index,
                flags: VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE,
                count: msix_vectors.into(),
            },
            _ => IrqInfo {
                index,
                flags: 0,
                count: 0,
            },
        })
        .collect()
}

struct Backend {
    function: Arc<Function>,
    /// The VMM that it serves, from when that has wanted something.
    vmm: Option<VmmId>,
    ended: Sender<End>,
}

impl Backend {
    /// The VMM that it serves. The first time, this waits until it can have the function.
    fn vmm(&mut self) -> VmmId {
        if let Some(vmm) = self.vmm {
            return vmm;
        }
        let vmm = self.function.claim();
        self.vmm = Some(vmm);
        // The main thread is gone only when the program ends.
        let _ = self.ended.send(End::Served);
        vmm
    }

    fn write_config_space(&mut self, offset: u64, data: &[u8]) {
        let vmm = self.vmm();
        self.function.access(vmm, |device, link, _| {
            if link.config.write(offset, data) {
                link.reset(device);
            }
        });
    }

    fn write_bar(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        let vmm = self.vmm();
        if bar == Bar::Llq {
            self.function.access(vmm, |_, link, _| {
                let slice = link.llq.slice(offset, data.len());
                if let Some(slice) = slice.filter(|_| link.config.is_on()) {
                    slice.copy_from(data);
                }
            });
            return;
        }
        // Registers are four bytes wide. One write of eight bytes is two of them, in ascending order.
        let values = data.chunks_exact(4);
        if offset % 4 != 0 || !values.remainder().is_empty() {
            let len = data.len();
            tracing::debug!(
                ?bar,
                offset,
                len,
                "a write that fits no register is dropped"
            );
            return;
        }
        let end = self.function.bars.size(bar);
        self.function.access(vmm, |device, link, now| {
            if !link.config.is_on() {
                return;
            }
            for (offset, value) in (offset..end).step_by(4).zip(values) {
                let value = value
                    .iter()
                    .rfold(0, |high, byte| (high << 8) | u32::from(*byte));
                match bar {
                    Bar::Registers => device.write_register(link, now, offset, value),
                    _ => device.write_doorbell(link, offset, value),
                }
            }
        });
    }
}

// As on a PCI bus, no access of a region fails: reads of what does not exist are all ones, and writes are dropped.
// A write is posted: an error would be a reply that QEMU does not expect. What a VMM wants that does not have the function
// any more, as it was pulled out of its slot and has gone to another one, is likewise done to nothing.
impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let vmm = self.vmm();
        data.fill(0xff);
        let bar = self.function.bars.at(region);
        self.function.access(vmm, |_, link, _| {
            if region == VFIO_PCI_CONFIG_REGION_INDEX {
                link.config.read(offset, data);
            } else if bar == Some(Bar::Llq) && link.config.is_on() {
                if let Some(slice) = link.llq.slice(offset, data.len()) {
                    slice.copy_to(data);
                }
            }
        });
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.write_config_space(offset, data);
        } else if let Some(bar) = self.function.bars.at(region) {
            self.write_bar(bar, offset, data);
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        tracing::debug!(address, size, ?flags, shared = fd.is_some(), "map DMA");
        let vmm = self.vmm();
        let mapped = self.function.of(vmm, |_, link, _| {
            link.dma.map(flags, offset, address, size, fd)
        });
        mapped.unwrap_or(Ok(()))
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        tracing::debug!(address, size, ?flags, "unmap DMA");
        let vmm = self.vmm();
        let unmapped = self.function.of(vmm, |_, link, _| {
            if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
                link.dma.clear();
                return Ok(());
            }
            link.dma.unmap(address, size)
        });
        unmapped.unwrap_or(Ok(()))
    }

    fn reset(&mut self) -> io::Result<()> {
        tracing::debug!("function reset");
        let vmm = self.vmm();
        self.function
            .access(vmm, |device, link, _| link.reset(device));
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> io::Result<()> {
        tracing::debug!(
            index,
            flags,
            start,
            count,
            fds = fds.len(),
            "set interrupts"
        );
        if index != VFIO_PCI_MSIX_IRQ_INDEX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the function has MSI-X interrupts only",
            ));
        }
        let vmm = self.vmm();
        let set = self
            .function
            .of(vmm, |_, link, _| link.vectors.set(flags, start, count, fds));
        set.unwrap_or(Ok(()))
    }
}
