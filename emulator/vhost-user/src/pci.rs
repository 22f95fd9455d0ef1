// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A PCI function behind two queues.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::Arc,
};

use efa_vfio::{Backend, Function};
use rustix::event::{EventfdFlags, eventfd};
use vfio_bindings::bindings::vfio::{VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX};
use vfio_user::{Action, Backend as _, DmaMap, IrqData, IrqSet, RegionWrite};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackendMut, VringRwLock, VringT};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_queue::{DescriptorChain, QueueOwnedT};
use vm_memory::{
    Address, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend, GuestMemoryLoadGuard,
    GuestMemoryMmap, GuestMemoryRegion,
};
use vmm_sys_util::{
    epoll::EventSet,
    event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier},
};

use crate::{
    message::{HEADER, Operation, Request},
    table::Table,
};

const QUEUES: usize = 2;
const COMMANDS: u16 = 0;
const INTERRUPTS: u16 = 1;
/// The event by which the function signals vector 0. The one before it ends the thread.
const FIRST_VECTOR: u16 = 3;
const QUEUE_SIZE: usize = 256;

/// Bytes that one message reads or writes at most.
const MOST: usize = 4096;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type Chain = DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>;

/// A function as one kernel has it.
pub(crate) struct Pci {
    memory: Memory,
    backend: Backend<'static>,
    table: Table,
    /// By which the function signals its vectors.
    signals: Vec<File>,
}

impl Pci {
    /// For the kernel whose memory this is.
    ///
    /// # Errors
    ///
    /// There are no more descriptors.
    pub(crate) fn new(function: &Arc<Function>, memory: Memory) -> io::Result<Self> {
        let place = function.msix_table();
        let mut backend = Backend::new(Arc::clone(function), || true);
        let mut signals = Vec::new();
        let mut eventfds = Vec::new();
        for _ in 0..place.vectors {
            let signal: OwnedFd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            eventfds.push(signal.try_clone()?);
            signals.push(File::from(signal));
        }
        backend.set_irqs(IrqSet {
            index: VFIO_PCI_MSIX_IRQ_INDEX,
            start: 0,
            count: place.vectors.into(),
            action: Action::Trigger,
            data: IrqData::Eventfds(eventfds),
        })?;
        Ok(Self {
            memory,
            backend,
            table: Table::new(place),
            signals,
        })
    }

    /// What signals the vectors, with the number of the event.
    pub(crate) fn signals(&self) -> Vec<(RawFd, u64)> {
        let numbers = u64::from(FIRST_VECTOR)..;
        let fds = self.signals.iter().map(AsRawFd::as_raw_fd);
        fds.zip(numbers).collect()
    }

    /// Does what the kernel wants. It does not have to be told: it looks by itself before it wants more.
    fn commands(&mut self, vring: &VringRwLock) -> io::Result<()> {
        while let Some(chain) = self.next(vring) {
            let head = chain.head_index();
            let written = self.command(chain).unwrap_or_else(|error| {
                tracing::debug!(%error, "a request that makes no sense");
                0
            });
            vring.add_used(head, written).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn next(&self, vring: &VringRwLock) -> Option<Chain> {
        let mut vring = vring.get_mut();
        let mut chains = vring.get_queue_mut().iter(self.memory.memory()).ok()?;
        chains.next()
    }

    /// Does one thing; returns how many bytes the answer has.
    fn command(&mut self, chain: Chain) -> io::Result<u32> {
        let memory = self.memory.memory();
        let mut reader = chain.clone().reader(&memory).map_err(io::Error::other)?;
        let mut header = [0; HEADER];
        reader.read_exact(&mut header)?;
        let Some(request) = Request::decode(header) else {
            tracing::debug!(?header, "a request for nothing that there is");
            return Ok(0);
        };
        // CAST: 32 bits fit.
        let size = request.size as usize;
        let mut data = [0; MOST];
        match request.operation {
            Operation::ReadConfig | Operation::ReadBar => {
                let data = &mut data[..size.min(MOST)];
                self.read(request, data)?;
                let mut writer = chain.writer(&memory).map_err(io::Error::other)?;
                let length = writer.available_bytes().min(data.len());
                writer.write_all(&data[..length])?;
                // CAST: no more than MOST.
                return Ok(length as u32);
            }
            Operation::WriteConfig | Operation::WriteBar => {
                // What is written to configuration space comes with a longer buffer.
                let length = reader.available_bytes().min(size).min(MOST);
                reader.read_exact(&mut data[..length])?;
                self.write(request, &data[..length])?;
            }
            Operation::FillBar => {
                let mut byte = [0];
                reader.read_exact(&mut byte)?;
                let data = &mut data[..size.min(MOST)];
                data.fill(byte[0]);
                self.write(request, data)?;
            }
        }
        Ok(0)
    }

    fn read(&mut self, request: Request, data: &mut [u8]) -> io::Result<()> {
        if request.operation != Operation::ReadConfig
            && self.table.read(request.bar, request.address, data)
        {
            return Ok(());
        }
        self.backend
            .region_read(region(request), request.address, data)
    }

    fn write(&mut self, request: Request, data: &[u8]) -> io::Result<()> {
        if request.operation != Operation::WriteConfig
            && self.table.write(request.bar, request.address, data)
        {
            return Ok(());
        }
        self.backend.region_write(&[RegionWrite {
            region: region(request),
            offset: request.address,
            data,
        }])
    }

    /// Sends what is due, as far as there are buffers. What is left waits for the next one.
    fn interrupts(&mut self, vring: &VringRwLock) -> io::Result<()> {
        let mut sent = false;
        while let Some((vector, interrupt)) = self.table.due() {
            let Some(chain) = self.next(vring) else {
                break;
            };
            let head = chain.head_index();
            let memory = self.memory.memory();
            let mut writer = chain.writer(&memory).map_err(io::Error::other)?;
            let message = interrupt.encode();
            writer.write_all(&message)?;
            // CAST: a few bytes.
            let length = message.len() as u32;
            vring.add_used(head, length).map_err(io::Error::other)?;
            self.table.sent(vector);
            sent = true;
        }
        if sent {
            vring.signal_used_queue()?;
        }
        Ok(())
    }
}

fn region(request: Request) -> u32 {
    match request.operation {
        Operation::ReadConfig | Operation::WriteConfig => VFIO_PCI_CONFIG_REGION_INDEX,
        _ => request.bar.into(),
    }
}

impl VhostUserBackendMut for Pci {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        (1 << VIRTIO_F_VERSION_1) | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&mut self, _: bool) {}

    fn update_memory(&mut self, memory: Memory) -> io::Result<()> {
        self.backend.dma_unmap_all()?;
        for region in memory.memory().iter() {
            let file = region.file_offset().ok_or(io::ErrorKind::InvalidInput)?;
            let map = DmaMap {
                readable: true,
                writable: true,
                offset: file.start(),
                address: region.start_addr().raw_value(),
                size: region.len(),
            };
            self.backend.dma_map(map, Some(file.file().try_clone()?))?;
        }
        self.memory = memory;
        Ok(())
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    fn handle_event(
        &mut self,
        event: u16,
        _: EventSet,
        vrings: &[VringRwLock],
        _: usize,
    ) -> io::Result<()> {
        let [commands, interrupts] = vrings else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        match event {
            COMMANDS => self.commands(commands)?,
            INTERRUPTS => {}
            _ => {
                let vector = usize::from(event - FIRST_VECTOR);
                if let Some(mut signal) = self.signals.get(vector) {
                    // Another event of it may have been handled already.
                    let _ = signal.read(&mut [0; 8]);
                }
                self.table.raise(vector);
            }
        }
        self.interrupts(interrupts)
    }
}
