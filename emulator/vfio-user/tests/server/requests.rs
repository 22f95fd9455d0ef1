// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Requests and their replies.

use std::{
    fs::File,
    os::{fd::AsFd, unix::fs::FileExt},
    sync::atomic::Ordering,
    thread,
};

use rustix::fs::{MemfdFlags, memfd_create};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_MASK, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_BOOL, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_IRQ_SET_DATA_NONE, VFIO_REGION_INFO_FLAG_MMAP,
};
use vfio_user_server::{Action, Command, DmaMap, Flags, HEADER, MAX_BATCH, MAX_DATA};

use super::{EINVAL, ENOSPC, ENOSYS, Event, IRQ, IRQS, SIZE, connect, errno, message, refused, words, write};

fn content<const N: usize>(file: &File, offset: u64) -> [u8; N] {
    let mut found = [0xa5; N];
    file.read_exact_at(&mut found, offset).unwrap();
    found
}

#[test]
fn clients_get_the_regions_and_interrupts_of_the_device() {
    let (mut client, ..) = connect();
    assert_eq!(client.device_info().unwrap(), (4, 3));
    let mmap = VFIO_REGION_INFO_FLAG_MMAP;
    let plain = client.region_info(0).unwrap();
    assert_eq!((plain.size, plain.flags & mmap), (SIZE as u64, 0));
    assert!(plain.file.is_none());
    let shared = client.region_info(1).unwrap();
    assert_eq!(shared.mappable, [0..0x1000, 0x2000..0x3000]);
    assert_eq!(shared.flags & mmap, mmap);
    client.region_write(1, 0x2345, b"hello").unwrap();
    assert_eq!(&content(&shared.file.unwrap(), 0x2345), b"hello");
    // A reply without space for the list of areas has no file, but QEMU requires the offset of the list.
    let mut request = vec![0; 32];
    (request[0], request[8]) = (32, 1);
    let reply = client.request(Command::DeviceGetRegionInfo, &request, &[]).unwrap();
    assert_eq!((reply.payload.len(), reply.fds.len()), (32, 0));
    assert_eq!((reply.payload[0], reply.payload[12]), (80, 32));
    let absent = client.region_info(2).unwrap();
    assert_eq!((absent.size, absent.flags), (0, 0));
    assert_eq!(errno(client.region_info(4)), EINVAL);
    assert_eq!(client.irq_info(IRQ).unwrap().count, IRQS);
    assert_eq!(errno(client.irq_info(3)), EINVAL);
}

#[test]
fn regions_are_read_and_written() {
    let (mut client, memory, _) = connect();
    client.region_write(0, 0x10, b"hello").unwrap();
    let mut found = [0; 7];
    client.region_read(0, 0xf, &mut found).unwrap();
    assert_eq!(&found, b"\0hello\0");
    let writes: Vec<_> = (0..5_u64).map(|n| write(0, 0x20 + 2 * n, &b"abcdefgh"[..n as usize + 1])).collect();
    client.region_write_multi(&writes).unwrap();
    let mut found = [0; 13];
    client.region_read(0, 0x20, &mut found).unwrap();
    assert_eq!(&found, b"a\0ababababcde");
    assert_eq!(memory.events(), [Event::Writes(1), Event::Writes(5)]);
    let mut large = vec![0; MAX_DATA];
    large[MAX_DATA - 1] = 7;
    client.region_write(3, 9, &large).unwrap();
    let mut found = vec![1; MAX_DATA];
    client.region_read(3, 9, &mut found).unwrap();
    assert_eq!(found, large);
}

#[test]
fn accesses_outside_of_regions_fail() {
    let (mut client, memory, _) = connect();
    for (region, offset, count) in [
        (0, SIZE as u64, 1),
        (0, SIZE as u64 - 1, 2),
        (0, u64::MAX, 1),
        (0, 0, SIZE + 1),
        (0, 0, 0),
        (2, 0, 1),
        (4, 0, 1),
        (u32::MAX, 0, 1),
    ] {
        let mut data = vec![0; count];
        let written = client.region_write(region, offset, &data);
        assert_eq!(errno(written), EINVAL, "{region} {offset}");
        let read = client.region_read(region, offset, &mut data);
        assert_eq!(errno(read), EINVAL, "{region} {offset}");
        if count <= 8 {
            let writes = [write(0, 0, &[1]), write(region, offset, &data)];
            let written = client.region_write_multi(&writes);
            assert_eq!(errno(written), EINVAL, "{region} {offset}");
        }
    }
    // More bytes than a message may read.
    let access = words(&[0, 0, 3, MAX_DATA as u32 + 1]);
    refused(&mut client, Command::RegionRead, &access, &[]);
    assert_eq!(memory.events(), []);
    assert_eq!(memory.state().memory[0], 0);
}

#[test]
fn posted_writes_are_batched_in_order() {
    let (mut client, memory, _) = connect();
    // The writes queue while the backend blocks.
    let busy = memory.2.lock.lock();
    client.region_post(0, 0, &[0]).unwrap();
    while !memory.2.is_reached.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    for n in 1..=MAX_BATCH as u8 + 9 {
        client.region_post(0, 0, &[n]).unwrap();
    }
    // A posted write that fails has no reply, either.
    client.region_post(9, 0, &[1]).unwrap();
    // The read that follows the writes takes effect after them.
    let access = words(&[0, 0, 0, 1]);
    client.send(Command::RegionRead, Flags::COMMAND, &access, &[]).unwrap();
    drop(busy);
    let found = client.receive().unwrap().payload;
    assert_eq!(found.last(), Some(&(MAX_BATCH as u8 + 9)));
    let batches = [1, MAX_BATCH, 9].map(Event::Writes);
    assert_eq!(memory.events(), batches);
    client.region_post(0, 0, &[1]).unwrap();
    client.region_write(0, 1, &[1]).unwrap();
    client.reset().unwrap();
    assert_eq!(memory.state().memory[..2], [1, 1]);
}

#[test]
fn memory_is_mapped_and_unmapped() {
    let (mut client, memory, _) = connect();
    let ram = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
    ram.write_all_at(b"ram", 0).unwrap();
    let map = DmaMap { readable: true, writable: false, offset: 0x1000, address: 1 << 40, size: 0x2000 };
    client.dma_map(map, Some(&ram)).unwrap();
    assert_eq!(&content(&memory.state().files[0], 0), b"ram");
    let both = DmaMap { writable: true, ..map };
    client.dma_map(both, None).unwrap();
    client.dma_unmap(1 << 40, 0x2000).unwrap();
    client.dma_unmap_all().unwrap();
    let expected = [Event::Map(map, true), Event::Map(both, false), Event::Unmap(1 << 40, 0x2000), Event::UnmapAll];
    assert_eq!(memory.events(), expected);

    memory.state().refuses = true;
    assert_eq!(errno(client.dma_map(map, Some(&ram))), ENOSPC);
    assert_eq!(errno(client.dma_unmap(0, 1)), ENOSPC);
    assert_eq!(errno(client.reset()), ENOSPC);
    memory.events();
    // Unknown flags, two files, and a range in a request to unmap all.
    let mut payload = vec![0; 32];
    payload[4] = 4;
    refused(&mut client, Command::DmaMap, &payload, &[]);
    payload[4] = 3;
    let files = [ram.as_fd(), ram.as_fd()];
    refused(&mut client, Command::DmaMap, &payload, &files);
    let mut payload = vec![0; 24];
    (payload[4], payload[17]) = (2, 1);
    refused(&mut client, Command::DmaUnmap, &payload, &[]);
    assert_eq!(memory.events(), []);
}

#[test]
fn interrupts_are_set() {
    let (mut client, memory, _) = connect();
    let file = File::open("/dev/null").unwrap();
    let fds = [file.as_fd(); 3];
    let trigger = VFIO_IRQ_SET_ACTION_TRIGGER;
    let eventfd = VFIO_IRQ_SET_DATA_EVENTFD | trigger;
    client.set_irqs(IRQ, eventfd, 1, 3, &fds).unwrap();
    client.set_irqs(IRQ, eventfd, 0, 2, &[]).unwrap();
    client.set_irqs(IRQ, VFIO_IRQ_SET_DATA_NONE | trigger, 0, 0, &[]).unwrap();
    let mask = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_MASK;
    client.set_irqs(IRQ, mask, 0, IRQS, &[]).unwrap();
    let mut bools = words(&[23, VFIO_IRQ_SET_DATA_BOOL | trigger, IRQ, 1, 3]);
    bools.extend([1, 0, 1]);
    client.request(Command::DeviceSetIrqs, &bools, &[]).unwrap();
    let set = |start, count, action, data: &str| Event::Irqs(start, count, action, data.into());
    let expected = [
        set(1, 3, Action::Trigger, "3 eventfds"),
        set(0, 2, Action::Trigger, "0 eventfds"),
        set(0, 0, Action::Trigger, "none"),
        set(0, IRQS, Action::Mask, "none"),
        set(1, 3, Action::Trigger, "[1, 0, 1]"),
    ];
    assert_eq!(memory.events(), expected);

    let none = VFIO_IRQ_SET_DATA_NONE | trigger;
    for (index, flags, start, count, fds) in [
        (3, none, 0, 0, &fds[..0]),
        (0, none, 0, 1, &[]),
        (IRQ, none, IRQS, 1, &[]),
        (IRQ, none, u32::MAX, 2, &[]),
        (IRQ, none, 0, 1, &fds[..1]),
        (IRQ, eventfd, 0, 3, &fds[..2]),
        (IRQ, eventfd, 0, 1, &fds[..2]),
        (IRQ, trigger, 0, 1, &[]),
        (IRQ, VFIO_IRQ_SET_DATA_NONE, 0, 1, &[]),
        (IRQ, none | VFIO_IRQ_SET_ACTION_MASK, 0, 1, &[]),
        (IRQ, none | VFIO_IRQ_SET_DATA_BOOL, 0, 1, &[]),
        (IRQ, VFIO_IRQ_SET_DATA_BOOL | trigger, 0, 1, &[]),
        (IRQ, none | (1 << 31), 0, 1, &[]),
    ] {
        let set = client.set_irqs(index, flags, start, count, fds);
        assert_eq!(errno(set), EINVAL, "{index} {flags:#x} {start} {count}");
    }
    assert_eq!(memory.events(), []);
}

#[test]
fn invalid_requests_do_not_end_the_connection() {
    let (mut client, memory, server) = connect();
    let file = File::open("/dev/null").unwrap();
    let fd = [file.as_fd()];
    for command in [Command::DeviceReset, Command::RegionRead, Command::DeviceGetInfo] {
        refused(&mut client, command, &[0; 16], &fd);
    }
    for command in [
        Command::Version,
        Command::DmaMap,
        Command::DmaUnmap,
        Command::DeviceGetInfo,
        Command::DeviceGetRegionInfo,
        Command::DeviceGetIrqInfo,
        Command::DeviceSetIrqs,
        Command::RegionRead,
        Command::RegionWrite,
        Command::RegionWriteMulti,
        Command::DeviceReset,
    ] {
        // Too short or too long for any of them.
        for length in [3, 7, 35] {
            refused(&mut client, command, &vec![0; length], &[]);
            // A command without a reply gets none if it fails, either.
            client.send(command, Flags::NO_REPLY, &vec![0; length], &[]).unwrap();
        }
    }
    for command in [0, 6, 11, 12, 14, 16, 17, 18, 99, u16::MAX] {
        client.send_raw(&message(command, HEADER as u32, 0), &fd).unwrap();
        let header = client.receive().unwrap().header;
        assert_eq!((header.command, header.flags), (command, Flags::ERROR));
        assert_eq!(Some(header.error as i32), ENOSYS);
        assert_eq!(header.size as usize, HEADER);
    }
    assert_eq!(memory.events(), []);
    client.reset().unwrap();
    drop(client);
    server.join().unwrap().unwrap();
    assert_eq!(memory.events(), [Event::Reset]);
}
