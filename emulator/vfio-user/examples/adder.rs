// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A PCI function that adds one to a number of 64 bits in guest memory, and then raises its MSI.
//!
//! A write of 8 bytes to offset 0 of BAR 0 is the address of the number. A read returns how many numbers were incremented.
//!
//! ```sh
//! cargo run --example adder -- adder.sock &
//! qemu-system-x86_64 -m 1G -machine q35,memory-backend=ram -object memory-backend-memfd,id=ram,size=1G,share=on \
//!     -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"adder.sock"}}'
//! ```

#![forbid(unsafe_code)]

use std::{
    env,
    error::Error,
    fs::File,
    io::{self, Write},
    os::unix::{fs::FileExt, net::UnixListener},
    sync::Arc,
};

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSI_IRQ_INDEX,
    VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
};
use vfio_user_server::{Action, Backend, Device, DmaMap, Irq, IrqData, IrqSet, Limits, Region, RegionWrite, serve};

/// Bytes of the configuration space, with their offsets. The others are zero.
const CONFIG: [(usize, &[u8]); 6] = [
    (0x00, &[0x34, 0x12, 0xdd, 0x0a]), // vendor and device
    (0x06, &[0x10]),                   // status: there is a list of capabilities
    (0x0b, &[0xff]),                   // class: none that is defined
    (0x2c, &[0x34, 0x12, 0xdd, 0x0a]), // subsystem
    (0x34, &[0x40]),                   // the first capability
    (0x40, &[0x05, 0, 0x80, 0]),       // MSI, one vector, addresses of 64 bits
];

/// The command register, which is all of the configuration space that guests write here. QEMU emulates BARs and MSI.
const COMMAND: usize = 4;

#[derive(Default)]
struct Adder {
    command: [u8; 2],
    count: u64,
    msi: Option<File>,
    ranges: Vec<(DmaMap, Option<File>)>,
}

impl Adder {
    fn add_one(&mut self, address: u64) -> io::Result<()> {
        let found = self.ranges.iter().find_map(|(map, file)| {
            let offset = address.checked_sub(map.address)?;
            let inside = offset.checked_add(8)? <= map.size && map.readable && map.writable;
            Some((file.as_ref().filter(|_| inside)?, map.offset + offset))
        });
        let (file, offset) = found.ok_or(io::ErrorKind::NotFound)?;
        let mut number = [0; 8];
        file.read_exact_at(&mut number, offset)?;
        let sum = u64::from_le_bytes(number).wrapping_add(1);
        file.write_all_at(&sum.to_le_bytes(), offset)?;
        self.count += 1;
        match &mut self.msi {
            Some(eventfd) => eventfd.write_all(&1_u64.to_ne_bytes()),
            None => Ok(()),
        }
    }
}

impl Backend for Adder {
    fn region_file(&mut self, _: u32) -> io::Result<Arc<File>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        // The server has checked that the access is within the region.
        let mut bytes = vec![0; 0x1000];
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            for (offset, value) in CONFIG.iter().copied().chain([(COMMAND, &self.command[..])]) {
                bytes[offset..offset + value.len()].copy_from_slice(value);
            }
        } else {
            bytes[..8].copy_from_slice(&self.count.to_le_bytes());
        }
        data.copy_from_slice(&bytes[offset as usize..][..data.len()]);
        Ok(())
    }

    fn region_write(&mut self, writes: &[RegionWrite<'_>]) -> io::Result<()> {
        for write in writes {
            match (write.region, write.offset, write.data) {
                (VFIO_PCI_BAR0_REGION_INDEX, 0, &[a, b, c, d, e, f, g, h]) => {
                    self.add_one(u64::from_le_bytes([a, b, c, d, e, f, g, h]))?;
                }
                (VFIO_PCI_CONFIG_REGION_INDEX, 4, &[low, high]) => self.command = [low, high],
                _ => {}
            }
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap, file: Option<File>) -> io::Result<()> {
        let end = map.address.checked_add(map.size);
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        map.offset.checked_add(map.size).ok_or(io::ErrorKind::InvalidInput)?;
        let mut others = self.ranges.iter();
        if others.any(|(other, _)| map.address < other.address + other.size && other.address < end) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.ranges.push((map, file));
        Ok(())
    }

    fn dma_unmap(&mut self, address: u64, size: u64) -> io::Result<()> {
        let same = |(map, _): &(DmaMap, _)| (map.address, map.size) == (address, size);
        let found = self.ranges.iter().position(same);
        self.ranges.swap_remove(found.ok_or(io::ErrorKind::NotFound)?);
        Ok(())
    }

    fn dma_unmap_all(&mut self) -> io::Result<()> {
        self.ranges.clear();
        Ok(())
    }

    fn set_irqs(&mut self, set: IrqSet<'_>) -> io::Result<()> {
        match (set.action, set.data) {
            (Action::Trigger, IrqData::Eventfds(fds)) => {
                self.msi = fds.into_iter().next().map(File::from);
            }
            (Action::Trigger, IrqData::None) => self.msi = None,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        (self.command, self.count) = ([0; 2], 0);
        Ok(())
    }
}

fn device() -> Device {
    let mut regions = vec![Region::default(); VFIO_PCI_NUM_REGIONS as usize];
    regions[VFIO_PCI_BAR0_REGION_INDEX as usize].size = 0x1000;
    regions[VFIO_PCI_CONFIG_REGION_INDEX as usize].size = 0x100;
    let mut irqs = vec![Irq::default(); VFIO_PCI_NUM_IRQS as usize];
    irqs[VFIO_PCI_MSI_IRQ_INDEX as usize] = Irq { flags: VFIO_IRQ_INFO_EVENTFD, count: 1 };
    Device { regions, irqs }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args_os().nth(1).ok_or("usage: adder SOCKET")?;
    for stream in UnixListener::bind(path)?.incoming() {
        if let Err(error) = serve(&stream?, &device(), &mut Adder::default(), Limits::default()) {
            eprintln!("the connection has ended: {error}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::fd::AsFd, os::unix::net::UnixStream, thread};

    use rustix::{
        event::{EventfdFlags, eventfd},
        fs::{MemfdFlags, memfd_create},
    };
    use vfio_bindings::bindings::vfio::{
        VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_REGION_INFO_FLAG_READ,
    };
    use vfio_user_server::Client;

    use super::*;

    #[test]
    fn a_number_is_incremented() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let limits = Limits::default();
        let server = thread::spawn(move || serve(&theirs, &device(), &mut Adder::default(), limits));
        let mut vmm = Client::new(ours).unwrap();
        vmm.negotiate().unwrap();
        let info = vmm.region_info(VFIO_PCI_CONFIG_REGION_INDEX).unwrap();
        assert_eq!((info.size, info.flags & VFIO_REGION_INFO_FLAG_READ), (0x100, 1));
        let mut ids = [0; 4];
        vmm.region_read(VFIO_PCI_CONFIG_REGION_INDEX, 0, &mut ids).unwrap();
        assert_eq!(ids, [0x34, 0x12, 0xdd, 0x0a]);

        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(0x3000).unwrap();
        memory.write_all_at(&41_u64.to_le_bytes(), 0x1008).unwrap();
        let map = DmaMap { readable: true, writable: true, offset: 0x1000, address: 0x8000, size: 0x1000 };
        vmm.dma_map(map, Some(&memory)).unwrap();
        assert!(vmm.dma_map(map, Some(&memory)).is_err());
        let msi = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let flags = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_EVENTFD;
        vmm.set_irqs(VFIO_PCI_MSI_IRQ_INDEX, flags, 0, 1, &[msi.as_fd()]).unwrap();

        let mut add = |address: u64| vmm.region_write(VFIO_PCI_BAR0_REGION_INDEX, 0, &address.to_le_bytes());
        add(0x8008).unwrap();
        // Not, or not wholly, in memory that is mapped.
        for outside in [0x7fff, 0x8ff9, 0x9000, u64::MAX] {
            assert_eq!(add(outside).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        let mut number = [0; 8];
        memory.read_exact_at(&mut number, 0x1008).unwrap();
        assert_eq!(u64::from_le_bytes(number), 42);
        File::from(msi).read_exact(&mut number).unwrap();
        assert_eq!(u64::from_ne_bytes(number), 1);
        vmm.region_read(VFIO_PCI_BAR0_REGION_INDEX, 0, &mut number).unwrap();
        assert_eq!(u64::from_le_bytes(number), 1);

        vmm.dma_unmap(0x8000, 0x1000).unwrap();
        let write = vmm.region_write(VFIO_PCI_BAR0_REGION_INDEX, 0, &0x8008_u64.to_le_bytes());
        assert!(write.is_err());
        vmm.shutdown().unwrap();
        server.join().unwrap().unwrap();
    }
}
