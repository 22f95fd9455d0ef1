// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The vfio-user server: what the VMM asks of the function.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::net::UnixListener},
    sync::Arc,
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
    config_space::{self, ConfigSpace},
    function::Function,
    llq::Llq,
};

/// Serves one function to one VMM at a time.
pub struct Server {
    transport: vfio_user::Server,
    backend: Backend,
}

impl Server {
    /// A server of `function` that takes connections from `listener`.
    pub fn new(listener: UnixListener, function: Arc<Function>) -> Self {
        let regions = regions(function.bars, &function.llq);
        let irqs = irqs(function.msix_vectors);
        let transport =
            vfio_user::Server::from_owned_fd(OwnedFd::from(listener), true, irqs, regions);
        let config_space =
            ConfigSpace::new(function.device_id, function.bars, function.msix_vectors);
        Self {
            transport,
            backend: Backend {
                function,
                config_space,
            },
        }
    }

    /// Serves one VMM after the other. When one disconnects, the function is as after power on for the next.
    ///
    /// Returns only if no VMM can connect any more; it needs a thread of its own.
    pub fn run(&mut self) -> vfio_user::Error {
        loop {
            let end = self.transport.run(&mut self.backend);
            self.backend.power_off();
            match end {
                Ok(()) => tracing::info!("the VMM has disconnected"),
                Err(error @ vfio_user::Error::SocketAccept(_)) => return error,
                Err(error) => tracing::warn!(%error, "the connection to the VMM has ended"),
            }
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
    config_space: ConfigSpace,
}

impl Backend {
    fn function_reset(&mut self) {
        self.config_space.reset();
        self.function.reset();
    }

    fn power_off(&mut self) {
        self.config_space.reset();
        self.function.disconnect();
    }

    fn write_config_space(&mut self, offset: u64, data: &[u8]) {
        if self.config_space.write(offset, data) {
            self.function_reset();
        } else {
            let bus_master = self.config_space.bus_master();
            self.function.with_link(|link| link.bus_master = bus_master);
        }
    }

    fn write_bar(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        if bar == Bar::Llq {
            if let Some(slice) = self.function.llq.slice(offset, data.len()) {
                slice.copy_from(data);
            }
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
        self.function.with(|device, host, now| {
            for (offset, value) in (offset..end).step_by(4).zip(values) {
                let value = value
                    .iter()
                    .rfold(0, |high, byte| (high << 8) | u32::from(*byte));
                match bar {
                    Bar::Registers => device.write_register(host, now, offset, value),
                    _ => device.write_doorbell(host, offset, value),
                }
            }
        });
    }
}

// As on a PCI bus, no access of a region fails: reads of what does not exist are all ones, and writes are dropped.
// A write is posted: an error would be a reply that QEMU does not expect.
impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(0xff);
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.config_space.read(offset, data);
        } else if self.function.bars.at(region) == Some(Bar::Llq) {
            if let Some(slice) = self.function.llq.slice(offset, data.len()) {
                slice.copy_to(data);
            }
        }
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
        self.function
            .with_link(|link| link.dma.map(flags, offset, address, size, fd))
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        tracing::debug!(address, size, ?flags, "unmap DMA");
        self.function.with_link(|link| {
            if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
                link.dma.clear();
                return Ok(());
            }
            link.dma.unmap(address, size)
        })
    }

    fn reset(&mut self) -> io::Result<()> {
        tracing::debug!("function reset");
        self.function_reset();
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
        self.function
            .with_link(|link| link.vectors.set(flags, start, count, fds))
    }
}
