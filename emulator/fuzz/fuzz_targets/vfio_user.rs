// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A monitor that sends arbitrary data and descriptors over its socket, in pieces of any size.

#![no_main]

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::Arc,
};

use libfuzzer_sys::fuzz_target;
use vfio_user::{
    Backend, Client, Device, DmaMap, Flags, HEADER, Header, Irq, IrqSet, Limits, MAX_BATCH, Region, RegionWrite, serve,
};

/// Small, so that all replies fit into the socket's buffer until the client reads them.
const REGION: u64 = 0x100;
const IRQS: u32 = 5;

/// Maximum number of pieces of an input, all of which fit into the socket's buffer.
const PIECES: usize = 64;

/// A backend that asserts that each call is within the bounds of its device.
struct Strict(File);

impl Backend for Strict {
    fn region_file(&mut self, region: u32) -> io::Result<Arc<File>> {
        assert_eq!(region, 1);
        Ok(Arc::new(self.0.try_clone()?))
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        check(region, offset, data);
        data.fill(0xaa);
        Ok(())
    }

    fn region_write(&mut self, writes: &[RegionWrite<'_>]) -> io::Result<()> {
        assert!((1..=MAX_BATCH).contains(&writes.len()));
        for write in writes {
            check(write.region, write.offset, write.data);
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap, _: Option<File>) -> io::Result<()> {
        match map.size {
            0 => Err(io::ErrorKind::InvalidInput.into()),
            _ => Ok(()),
        }
    }

    fn dma_unmap(&mut self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn dma_unmap_all(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn set_irqs(&mut self, set: IrqSet<'_>) -> io::Result<()> {
        // The device may have no interrupts of this kind. Then the message must name none.
        let count = device().irqs[set.index as usize].count;
        assert!(set.start + set.count <= count);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn check(region: u32, offset: u64, data: &[u8]) {
    assert!(region < 2 && !data.is_empty() && offset + data.len() as u64 <= REGION);
}

fn device() -> Device {
    let whole = 0..REGION;
    let region = |mappable| Region { size: REGION, mappable };
    Device {
        regions: vec![region(vec![]), region(vec![whole]), Region::default()],
        irqs: vec![Irq::default(), Irq { flags: 1, count: IRQS }],
    }
}

/// Takes a piece from an input: raw bytes, or a message with them. Returns its number of descriptors.
fn piece<'a>(input: &mut &'a [u8], bytes: &mut Vec<u8>) -> Option<usize> {
    let (&[kind, command, length, flags], rest): (&[u8; 4], &'a [u8]) = input.split_first_chunk()?;
    let (payload, rest) = rest.split_at(rest.len().min(length.into()));
    *input = rest;
    bytes.clear();
    if kind & 1 == 0 {
        let header = Header { command: command.into(), flags: Flags(flags.into()), ..Header::default() };
        header.encode(&[payload], bytes);
        // Truncated within the header, so that the next piece continues it.
        if kind & 2 != 0 {
            bytes.truncate(HEADER / 2);
        }
    } else {
        bytes.extend(payload);
    }
    Some(usize::from(kind >> 4))
}

fn play(input: &[u8]) {
    let Ok(null) = File::open("/dev/null") else {
        return;
    };
    let Ok((ours, theirs)) = UnixStream::pair() else {
        return;
    };
    let Ok(mut client) = Client::new(ours) else {
        return;
    };
    let (mut input, mut bytes) = (input, Vec::new());
    let Some((first, rest)) = input.split_first() else {
        return;
    };
    input = rest;
    if first & 1 == 0 {
        // The shortest proposal of a version.
        let _ = client.send(vfio_user::Command::Version, Flags::COMMAND, &[0; 4], &[]);
    }
    for _ in 0..PIECES {
        let Some(fds) = piece(&mut input, &mut bytes) else {
            break;
        };
        let _ = client.send_raw(&bytes, &vec![null.as_fd(); fds]);
    }
    let _ = client.shutdown_write();
    let _ = serve(&theirs, &device(), &mut Strict(null), Limits::default());
    drop(theirs);
    while let Ok(reply) = client.receive() {
        let error = reply.header.error;
        match reply.header.flags {
            Flags::REPLY => assert_eq!(error, 0),
            flags => assert!(flags == Flags::ERROR && error != 0 && reply.payload.is_empty()),
        }
    }
}

fuzz_target!(|input: &[u8]| play(input));
