// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A VMM can't exhaust the resources of others: descriptors, memory, the process itself.

use std::{
    fs,
    io::{Error, ErrorKind},
};

use efa_testing::{machine::Ram, prelude::*};
use vfio_user::{Client, Command, DmaMap, Flags};

/// Shares new memory for reading and writing.
fn share(client: &mut Client, address: u64, size: u64) -> Result<(), ErrorKind> {
    let map = DmaMap { readable: true, writable: true, offset: 0, address, size };
    let shared = client.dma_map(map, Some(Ram::new(size).file()));
    shared.map_err(|error: Error| error.kind())
}

/// Checks that another VMM gets a device, which works.
fn check(emulator: &Emulator) {
    let mut end = End::new(&emulator.device(0), QpType::Srd);
    end.connect(end.address);
    let write = Send::write(&end.qp, &end.region, &end.region, 64);
    assert_eq!(end.run(&write), CompStatus::Ok);
}

/// Each device has a share of the process's descriptors.
#[test]
fn files_of_memory() {
    const DEVICES: usize = 4;
    // Without files: 32 of the program, 65 of the control socket, and 125 of each device. Each device may also have 8 files.
    let limit = limited(&format!("-n {}", 32 + 65 + DEVICES * (125 + 8)));
    let emulator = Emulator::run(limit, DEVICES, 0, &[]);
    let mut hoarders: Vec<_> = (1..DEVICES).map(|device| Client::connect(&emulator.device(device)).unwrap()).collect();
    for hoarder in &mut hoarders {
        let shared = (0..64).map(|number| share(hoarder, BASE + number * PAGE, PAGE)).take_while(Result::is_ok);
        assert_eq!(shared.count(), 8);
        let more = share(hoarder, 0, PAGE);
        assert_eq!(more, Err(ErrorKind::StorageFull));
    }
    check(&emulator);
}

/// Shared memory counts as memory of the process, so each device has a limit on it.
#[test]
fn bytes_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("efa");
    let device = format!("number=1,memory=1M,socket={}", socket.display());
    let emulator = Emulator::start(1, &["--device", &device]);
    let mut hoarder = Client::connect(&socket).unwrap();
    for (size, expected) in [(1 << 30, Err(ErrorKind::StorageFull)), (1 << 20, Ok(()))] {
        assert_eq!(share(&mut hoarder, BASE, size), expected);
    }
    check(&emulator);
}

/// Returns the number of memory files for send queues that the process has.
fn send_queue_memories(emulator: &Emulator) -> usize {
    let descriptors = fs::read_dir(emulator.proc("fd")).unwrap();
    let files = descriptors.filter_map(|descriptor| fs::read_link(descriptor.ok()?.path()).ok());
    files.filter(|file| file.to_string_lossy().starts_with("/memfd:efa-llq")).count()
}

/// VMMs that wait for a device have no memory of it. The limit on descriptors counts two memory files: the old and the new one.
#[test]
fn memory_of_vmms_that_wait() {
    let emulator = Emulator::start(1, &[]);
    let connect = || Client::connect(&emulator.device(0)).unwrap();
    let mut owner = connect();
    owner.reset().unwrap();
    let waiting = [(); 4].map(|()| {
        let mut client = connect();
        let reset = Command::DeviceReset;
        client.send(reset, Flags::COMMAND, &[], &[]).unwrap();
        client
    });
    for _ in 0..200 {
        owner.reset().unwrap();
        let count = send_queue_memories(&emulator);
        assert!((1..=2).contains(&count), "{count}");
    }
    drop((owner, waiting));
    check(&emulator);
}
