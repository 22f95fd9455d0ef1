// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device and its interrupts, from reset to removal.

use efa_hw::{
    admin::{
        AcqHeader, Response, Status,
        pd::{AllocPd, AllocPdResponse, DeallocPd},
    },
    regs::Register,
};
use efa_model::{Device, Host};
use efa_testing::{
    bus::Memory,
    driver::DEPTH,
    machine::{BASE, MEMORY_AND_BUS_MASTER},
    wait::wait_until,
};
use efa_vfio::Bar;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_NORESIZE, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX,
};

use super::{
    Interrupt, LLQ, Machine, OFFSET, RAM_SIZE, VECTORS, answers, copy_of, copy_to, power_on_again, region_read,
    region_write, reset, send_queues, set_vector, start,
};

#[test]
fn a_driver_resets_the_device_and_allocates() {
    let machine = Machine::start(None);
    let mut guest = machine.guest();
    let interrupt = Interrupt::of(&mut guest);
    start(&mut guest);

    let id = guest.submit(&AllocPd::default());
    interrupt.wait();
    let (_, _, completion) = guest.completion().expect("an interrupt, but no completion");
    let header = AcqHeader::of(&completion);
    assert_eq!((header.command_id.id, header.status), (id, Status::Success.into()));
    let pd = AllocPdResponse::from_entry(&completion).pd;
    let state = machine.state();
    assert_eq!(state.resources.pd, 1);

    set_vector(&mut guest, 0, &[]);
    guest.submit(&DeallocPd { pd });
    wait_until("completion", || guest.completion().is_some());
    assert!(!interrupt.take(), "an interrupt of a disabled vector");
    let state = machine.state();
    assert_eq!((state.resources.pd, state.protocol_errors), (0, 0));
    assert_eq!(state.resets, ["NORMAL"]);
    let trace: Vec<_> = machine.trace.try_iter().collect();
    assert!(trace.iter().any(|line| line.contains("ALLOC_PD")), "{trace:#?}");
}

#[test]
fn events_arrive_without_a_message_of_the_vmm() {
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    // Completed later, by the timer: the client sends nothing meanwhile.
    machine.inject(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"delay_ms":50}}"#);
    let interrupt = Interrupt::of(&mut guest);
    guest.submit(&AllocPd::default());
    interrupt.wait();
    assert!(guest.completion().is_some());
}

#[test]
fn a_function_that_is_no_bus_master_does_not_answer() {
    let machine = Machine::start(None);
    let mut guest = machine.guest();
    assert!(answers(&mut guest));
    guest.enable(0);
    assert!(!answers(&mut guest));
    guest.enable(MEMORY_AND_BUS_MASTER);
    assert!(answers(&mut guest));
}

#[test]
fn memory_that_is_not_mapped_is_not_written() {
    let machine = Machine::start(None);
    let mut guest = machine.guest();
    guest.device.client.dma_unmap(BASE, RAM_SIZE).unwrap();
    assert!(!answers(&mut guest));
    guest.share_memory();
    assert!(answers(&mut guest));
}

#[test]
fn registers_are_not_read_by_mmio() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    for region in [VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX] {
        let value = region_read(&mut guest, region, Register::DevSts as u64);
        assert_eq!(value, [0xff; 4]);
    }
}

#[test]
fn send_queues_are_shared_memory() {
    let machine = Machine::start(None);
    let mut guest = machine.guest();
    let memory = send_queues(&mut guest);
    copy_to(&memory, b"hello");
    assert_eq!(&region_read(&mut guest, LLQ, OFFSET), b"hello");
    region_write(&mut guest, LLQ, OFFSET, b"J");
    assert_eq!(&copy_of(&memory), b"Jello");
}

#[test]
fn a_missing_bar_has_no_region() {
    for (bar, index) in [(Bar::Registers, 0), (Bar::Llq, 2), (Bar::Doorbells, 4)] {
        let machine = Machine::start(Some(bar));
        let mut guest = machine.connect();
        for region in [0, 2, 4] {
            let size = guest.device.client.region_info(region).unwrap().size;
            assert_eq!(size == 0, region == index, "BAR {region} without {bar:?}");
        }
    }
}

#[test]
fn a_function_reset_keeps_the_mappings_of_the_vmm() {
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    guest.submit(&AllocPd::default());
    guest.device.client.reset().unwrap();
    assert_eq!(machine.state().resources.pd, 0);
    assert!(!answers(&mut guest), "the function is still a bus master");
    assert_eq!(guest.command(), 0);
    guest.enable(MEMORY_AND_BUS_MASTER);
    guest.set_response_address();
    assert!(guest.status().ready);
}

#[test]
fn a_function_reset_ends_all_work_of_the_device() {
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    machine.inject(r#"{"when":{"opcode":"ALLOC_PD"},"then":{"hold":"pd"}}"#);
    for _ in 0..3 {
        guest.submit(&AllocPd::default());
    }
    region_write(&mut guest, LLQ, OFFSET, b"secret");
    guest.device.client.reset().unwrap();
    // The commands do not complete, even if the driver enables bus mastering again.
    guest.enable(MEMORY_AND_BUS_MASTER);
    const RING: usize = 64 * DEPTH as usize;
    guest.world.store(guest.acq.base, &[0; RING]);
    // Commands that had survived the reset would complete now.
    machine.function.with(|device, _, _| device.clear());
    assert_eq!(guest.world.entry(guest.acq.base), [0; RING]);
    assert_eq!(region_read(&mut guest, LLQ, OFFSET), [0; 6]);
    let state = machine.state();
    assert_eq!((state.admin.in_flight, state.function_resets), (0, 1));
    assert!(machine.trace.try_iter().any(|line| line == "function reset"));
}

#[test]
fn a_function_without_power_loses_its_state() {
    const POWER_CONTROL: u64 = 0x44;
    let machine = Machine::start(None);
    let mut guest = machine.started_guest();
    guest.submit(&AllocPd::default());
    guest.completion().unwrap();
    let interrupt = Interrupt::of(&mut guest);
    let config = VFIO_PCI_CONFIG_REGION_INDEX;
    region_write(&mut guest, config, POWER_CONTROL, &[3]);
    // In D3hot, only the configuration space is accessible.
    assert_eq!(guest.command(), MEMORY_AND_BUS_MASTER);
    assert!(!answers(&mut guest));
    guest.submit(&AllocPd::default());
    let fatal = |device: &mut Device, host: &mut dyn Host, now| device.post_event(host, now, 1, 0);
    machine.function.with(fatal);
    assert!(guest.completion().is_none());
    assert!(!interrupt.take());

    region_write(&mut guest, config, POWER_CONTROL, &[0]);
    assert_eq!(guest.command(), 0);
    let state = machine.state();
    assert_eq!((state.resources.pd, state.fatal_error), (0, false));
    assert_eq!(state.protocol_errors, 0);
    power_on_again(&mut guest);
    reset(&mut guest);
}

/// QEMU disables all vectors to enable one more of a device that can't change their number.
#[test]
fn vectors_are_enabled_one_by_one() {
    let machine = Machine::start(None);
    let mut guest = machine.connect();
    let irq = guest.device.client.irq_info(VFIO_PCI_MSIX_IRQ_INDEX).unwrap();
    assert_eq!((irq.flags & VFIO_IRQ_INFO_NORESIZE, irq.count), (0, VECTORS.into()));
}
