// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Several VMMs of one device, and devices that are unplugged.

use std::{
    os::unix::net::UnixStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use efa_hw::{
    admin::{Command, pd::AllocPd},
    regs::Register,
};
use efa_testing::{
    machine::{BASE, MEMORY_AND_BUS_MASTER, Machine as Guest, Ram},
    wait::{patience, wait_for, wait_until},
};
use efa_vfio::Limits;
use rustix::fs::MemfdFlags;
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
};
use vfio_user::{Client, Flags, RegionWrite};

use super::{
    Interrupt, LLQ, Machine, OFFSET, RAM_SIZE, answers, connect, copy_of, copy_to, power_on, power_on_again,
    region_read, region_write, reset, send_queues, start,
};

#[test]
fn the_next_guest_finds_a_fresh_device() {
    let machine = Machine::start(None);
    let mut first = machine.started_guest();
    first.submit(&AllocPd::default());
    assert_eq!(machine.state().resources.pd, 1);
    first.device.client.shutdown().unwrap();
    drop(first);

    // The second guest waits until the first has disconnected.
    let mut second = machine.connect();
    assert_eq!(second.command(), 0);
    assert_eq!(machine.state().resources.pd, 0);
    power_on(&mut second);
    reset(&mut second);
}

#[test]
fn an_unplugged_device_does_not_respond() {
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    guest.submit(&AllocPd::default());
    guest.completion().unwrap();
    let interrupt = Interrupt::of(&mut guest);
    machine.function.unplug();
    let state = machine.state();
    assert!(!state.plugged);
    assert_eq!(state.resources.pd, 0);

    // No access has an effect.
    for region in [VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_BAR0_REGION_INDEX, LLQ, VFIO_PCI_BAR4_REGION_INDEX] {
        region_write(&mut guest, region, 4, &[0; 4]);
        let found = region_read(&mut guest, region, 0);
        assert_eq!(found, [0xff; 8], "region {region}");
    }
    assert!(!answers(&mut guest));
    guest.submit(&AllocPd::default());
    guest.device.client.reset().unwrap();
    assert!(guest.completion().is_none());
    assert!(!interrupt.take());
    assert_eq!(machine.state().protocol_errors, 0);

    // In its slot again, the device has lost its state. The VMM's mappings of memory and interrupts are unchanged.
    machine.function.plug();
    assert_eq!(guest.command(), 0);
    assert!(!answers(&mut guest));
    power_on_again(&mut guest);
    start(&mut guest);
    guest.submit(&AllocPd::default());
    interrupt.wait();
    assert!(guest.completion().is_some());
    let state = machine.state();
    assert_eq!((state.plugged, state.resources.pd), (true, 1));
}

/// A rule can unplug the device between two writes of one message.
#[test]
fn the_rest_of_a_message_has_no_effect_on_an_unplugged_device() {
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    machine.inject(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"unplug":true}}"#);
    let entry = guest.entry(&AllocPd::default().to_request());
    guest.put(&entry);
    let doorbell = RegionWrite {
        region: VFIO_PCI_BAR0_REGION_INDEX,
        offset: Register::AqProdDb as u64,
        data: &1_u32.to_le_bytes(),
    };
    let function_reset =
        RegionWrite { region: VFIO_PCI_CONFIG_REGION_INDEX, offset: 0x78, data: &0x8000_u16.to_le_bytes() };
    let client = &mut guest.device.client;
    client.region_write_multi(&[doorbell, function_reset]).unwrap();
    let state = machine.state();
    assert_eq!((state.plugged, state.function_resets), (false, 0));
}

#[test]
fn another_vmm_can_claim_an_unplugged_device() {
    let machine = Machine::start(None);
    let mut first = machine.started_guest();
    machine.function.unplug();
    let mut second = machine.guest();
    assert!(machine.state().plugged);
    start(&mut second);
    second.submit(&AllocPd::default());
    assert!(second.completion().is_some());

    // Requests of the first VMM still succeed, but have no effect.
    assert_eq!(first.command(), 0xffff);
    first.enable(MEMORY_AND_BUS_MASTER);
    first.device.client.reset().unwrap();
    first.submit(&AllocPd::default());
    assert!(first.completion().is_none());
    first.device.client.dma_unmap(BASE, RAM_SIZE).unwrap();
    first.device.client.shutdown().unwrap();
    drop(first);
    second.submit(&AllocPd::default());
    assert!(second.completion().is_some());
    assert_eq!(machine.state().resources.pd, 2);
}

#[test]
fn a_vmm_waits_for_a_device_in_use() {
    let machine = Machine::start(None);
    let mut first = machine.guest();
    reset(&mut first);
    let socket = machine.socket();
    let (waits, is_gone) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut second = connect(&socket);
            waits.store(true, Ordering::SeqCst);
            power_on(&mut second);
            assert!(is_gone.load(Ordering::SeqCst));
            reset(&mut second);
        });
        wait_until("second VMM", || waits.load(Ordering::SeqCst));
        for _ in 0..100 {
            assert!(first.status().ready);
        }
        is_gone.store(true, Ordering::SeqCst);
        first.device.client.shutdown().unwrap();
        drop(first);
    });
}

#[test]
fn send_queues_are_private_to_a_vmm() {
    let machine = Machine::start(None);
    let mut first = machine.guest();
    let old = send_queues(&mut first);
    copy_to(&old, b"secret");
    // The VMM can't shrink the memory, which the device reads.
    let region = first.device.client.region_info(LLQ).unwrap();
    region.file.unwrap().set_len(0).unwrap_err();
    first.device.client.shutdown().unwrap();

    let mut second = machine.guest();
    let new = send_queues(&mut second);
    assert_eq!(copy_of(&new), [0; 6]);
    // The first VMM still has its mapping, but of its own memory.
    copy_to(&old, b"attack");
    assert_eq!(copy_of(&new), [0; 6]);
    assert_eq!(region_read(&mut second, LLQ, OFFSET), [0; 6]);
    copy_to(&new, b"mine");
    assert_eq!(&region_read(&mut second, LLQ, OFFSET), b"mine\0\0");

    // A reset of the function clears the memory, also in existing mappings.
    second.device.client.reset().unwrap();
    assert_eq!(copy_of(&new), [0; 6]);
}

#[test]
fn a_vmm_that_truncates_its_memory_harms_only_itself() {
    let machine = Machine::start(None);
    let client = Client::connect(&machine.socket()).unwrap();
    let mut guest = Guest::of(client, Ram::with(RAM_SIZE, MemfdFlags::CLOEXEC));
    power_on(&mut guest);
    start(&mut guest);
    guest.submit(&AllocPd::default());
    assert!(guest.completion().is_some());
    guest.world.file().set_len(0).unwrap();
    // The device can't read the command, and has a fatal error.
    guest.write(Register::AqProdDb, 2);
    drop(guest);
    let mut guest = machine.guest();
    reset(&mut guest);
}

#[test]
fn silent_vmms_do_not_block_others() {
    let limits = Limits { start: Duration::from_millis(50), message: patience() };
    let machine = Machine::start_with(None, limits);
    let socket = machine.socket();
    // Some negotiate the version, others send nothing.
    let negotiated: Vec<_> = (0..4).map(|_| Client::connect(&socket)).collect();
    let connect = |_| UnixStream::connect(&socket).unwrap();
    let silent: Vec<_> = (0..2).map(connect).collect();
    // This client is served once the limit of the first ones has expired. It is retried if it exceeds the limit itself.
    wait_for("place", || Client::connect(&socket)?.reset());
    drop((negotiated, silent));
}

/// VMMs that wait for a device and send nothing more, or have disconnected, do not prevent another one from waiting.
#[test]
fn a_new_vmm_replaces_the_longest_waiting_one() {
    for stays in [true, false] {
        let machine = Machine::start(None);
        let mut first = machine.guest();
        let socket = machine.socket();
        let waiting: Vec<_> = (0..12)
            .map(|_| {
                let mut client = Client::connect(&socket).unwrap();
                let (command, flags) = (vfio_user::Command::DeviceReset, Flags::COMMAND);
                client.send(command, flags, &[], &[]).unwrap();
                stays.then_some(client)
            })
            .collect();
        assert!(first.status().ready);
        drop((first, waiting));
        reset(&mut machine.guest());
    }
}
