// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands.

use efa_hw::{
    admin::{
        Command, Status,
        cq::DestroyCq,
        event_counter::{CreateEventCounter, DestroyEventCounter, ModifyOp},
        qp::{DestroyQp, QpState},
        uar::DeallocUar,
    },
    features::{DeviceAttr, QueueAttr2},
    io::CompStatus,
    regs::ResetReason,
};
use efa_model::{Profile, ResourceCounts};
use efa_testing::mock::Driver;

use super::{
    ALL, BUSY, ILLEGAL, MOST, RECV_COMP, RECV_ERR, SEND_COMP, SEND_ERR, Set, attachment, change,
    detachment, enable,
};

#[test]
fn attributes() {
    for profile in [Profile::Efa0, Profile::Efa1, Profile::Efa2, Profile::Efa3] {
        let mut driver = Driver::new(profile);
        let device: DeviceAttr = driver.feature().unwrap();
        assert!(!device.device_caps.event_counters);
    }
    let mut driver = Driver::new(Profile::Efa3);
    let limits = |queues: QueueAttr2| {
        (
            queues.max_event_counters,
            queues.event_counter_max_val,
            queues.supported_event_counter_qp_events.into_raw(),
        )
    };
    assert_eq!(limits(driver.feature().unwrap()), (0, 0, 0));
    enable(&mut driver);
    let device: DeviceAttr = driver.feature().unwrap();
    assert!(device.device_caps.event_counters);
    assert_eq!(limits(driver.feature().unwrap()), (8, MOST, ALL));
    let overrides = r#"{"event_counter_max_val":18446744073709551615}"#;
    driver.device.set(serde_json::from_str(overrides).unwrap());
    assert_eq!(limits(driver.feature().unwrap()), (8, u64::MAX, ALL));
}

#[test]
fn a_device_without() {
    let mut set = Set::new();
    let (cntr_handle, _) = set.counter();
    set.set(r#"{"event_counters":false}"#);
    let (uar, qp_handle) = (set.qp.cq.uar, set.qp_handle());
    let unsupported = Status::UnsupportedOpcode;
    set.fails(&CreateEventCounter { uar, paddr: 0x1000 }, unsupported);
    set.fails(&DestroyEventCounter { cntr_handle }, unsupported);
    set.fails(&change(cntr_handle, 0, 0), unsupported);
    set.fails(&attachment(cntr_handle, qp_handle, 0), unsupported);
    set.fails(&detachment(cntr_handle, qp_handle, 0), unsupported);
    assert_eq!(set.protocol_errors(), 0);
}

#[test]
fn creation() {
    let mut set = Set::new();
    let page = set.driver.world.map(1);
    set.driver.world.write(page, &[0x55; 16]);
    let first = set.create(page).unwrap();
    assert_eq!(set.counts().event_counter, 1);
    // The device does not write the value before it changes.
    assert_eq!(set.value(page), 0x5555_5555_5555_5555);
    set.modify(first, ModifyOp::Add, 1).unwrap();
    assert_eq!(
        (set.value(page), set.value(page + 8)),
        (1, 0x5555_5555_5555_5555)
    );

    // Invalid addresses.
    let uar = set.qp.cq.uar;
    for paddr in [0, page + 4, page + 1, 1 << 48, u64::MAX - 7] {
        set.fails(&CreateEventCounter { uar, paddr }, ILLEGAL);
    }
    set.create((1 << 48) - 8).unwrap();
    // User access regions that do not exist.
    let paddr = page + 8;
    for uar in [0, uar + 1, u16::MAX] {
        set.fails(&CreateEventCounter { uar, paddr }, ILLEGAL);
    }
    // More counters than the limit.
    for _ in 2..8 {
        set.create(paddr).unwrap();
    }
    let full = Status::ResourceAllocationFailure;
    set.fails(&CreateEventCounter { uar, paddr: page }, full);
    assert_eq!(set.counts().event_counter, 8);
    // Freed numbers are reused as late as possible.
    set.destroy(first).unwrap();
    set.destroy(first + 1).unwrap();
    assert_eq!(set.create(page), Ok(first));
    assert_eq!(set.protocol_errors(), 0);
}

#[test]
fn unknown_numbers() {
    let mut set = Set::new();
    let (handle, _) = set.counter();
    let qp_handle = set.qp_handle();
    for cntr_handle in [0, handle + 1, handle | 0x1_0000, u32::MAX] {
        set.fails(&DestroyEventCounter { cntr_handle }, ILLEGAL);
        set.fails(&change(cntr_handle, 0, 0), ILLEGAL);
        assert_eq!(set.attach(cntr_handle, SEND_COMP), Err(ILLEGAL));
        assert_eq!(set.attach(cntr_handle, 0), Err(ILLEGAL));
        assert_eq!(set.detach(cntr_handle, 0), Err(ILLEGAL));
    }
    for qp_handle in [0, qp_handle + 1, qp_handle | 0x1_0000, u32::MAX] {
        for events in [SEND_COMP, 0] {
            set.fails(&attachment(handle, qp_handle, events), ILLEGAL);
        }
        set.fails(&detachment(handle, qp_handle, 0), ILLEGAL);
    }
    let mut attach = attachment(handle, qp_handle, SEND_COMP);
    for attach_type in [1, 255] {
        attach.attach_type = attach_type;
        set.fails(&attach, ILLEGAL);
    }
    for operation in [2, 255] {
        set.fails(&change(handle, operation, 0), ILLEGAL);
    }
    // Nothing was attached.
    set.destroy(handle).unwrap();
    assert_eq!(set.protocol_errors(), 0);
}

#[test]
fn reserved_bits() {
    let mut set = Set::new();
    let (cntr_handle, _) = set.counter();
    let command = attachment(cntr_handle, set.qp_handle(), 0);
    for (offset, bit) in [(13, 4), (15, 0x80), (5, 1), (16, 1), (59, 0x80)] {
        let mut request = command.to_request();
        request.payload[offset] = bit;
        let (status, _) = set.driver.execute_request(&request);
        assert_eq!(status, u8::from(Status::MalformedRequest));
    }
}

#[test]
fn changes() {
    let mut set = Set::new();
    let (handle, paddr) = set.counter();
    for (operation, value, expected) in [
        (ModifyOp::Set, 7, 7),
        (ModifyOp::Add, 5, 12),
        (ModifyOp::Add, 0, 12),
        (ModifyOp::Set, MOST, MOST),
        (ModifyOp::Add, 1, 0),
        (ModifyOp::Add, MOST, MOST),
        (ModifyOp::Add, MOST, MOST - 1),
        (ModifyOp::Set, 3, 3),
        (ModifyOp::Add, 10 * (MOST + 1), 3),
        // 2^64 is 16 more than a multiple of the number of values.
        (ModifyOp::Add, u64::MAX, 18),
        (ModifyOp::Set, 0, 0),
    ] {
        set.modify(handle, operation, value).unwrap();
        assert_eq!(set.value(paddr), expected, "{operation} {value}");
    }
    set.modify(handle, ModifyOp::Set, 5).unwrap();
    for value in [MOST + 1, u64::MAX] {
        assert_eq!(set.modify(handle, ModifyOp::Set, value), Err(ILLEGAL));
    }
    assert_eq!(set.value(paddr), 5);

    set.set(r#"{"event_counter_max_val":18446744073709551615}"#);
    set.modify(handle, ModifyOp::Set, u64::MAX).unwrap();
    assert_eq!(set.value(paddr), u64::MAX);
    set.modify(handle, ModifyOp::Add, 3).unwrap();
    assert_eq!(set.value(paddr), 2);
    assert_eq!(set.protocol_errors(), 0);
}

#[test]
fn unmapped_memory() {
    let (mut set, handle, paddr) = Set::counting(ALL);
    set.modify(handle, ModifyOp::Set, 5).unwrap();
    set.driver.world.unmap(paddr & !4095);
    let unknown = Err(Status::UnknownError);
    assert_eq!(set.modify(handle, ModifyOp::Set, 9), unknown);
    assert_eq!(set.protocol_errors(), 1);
    // Each event is one protocol error, is counted, and has a completion.
    set.start_and_post();
    assert_eq!(set.protocol_errors(), 4);
    for index in 0..3 {
        let entry: [u8; 32] = set.driver.world.read(set.qp.cq.base + index * 32);
        assert_eq!(entry[2], u8::from(CompStatus::LocalInvalidAh));
    }
    // A device without bus mastering is no fault of the driver.
    set.driver.world.dma_is_off = true;
    set.ring(0, 4);
    set.driver.world.dma_is_off = false;
    assert_eq!(set.protocol_errors(), 4);
    assert_eq!(set.detach(handle, ALL), Ok(()));
    set.destroy(handle).unwrap();
}

#[test]
fn attachments() {
    let mut set = Set::new();
    let ((first, _), (second, _)) = (set.counter(), set.counter());
    set.attach(first, SEND_COMP | RECV_COMP).unwrap();
    // Each event has one counter; a command that fails attaches nothing.
    assert_eq!(set.attach(first, SEND_COMP), Err(BUSY));
    assert_eq!(set.attach(second, SEND_COMP | SEND_ERR), Err(BUSY));
    set.attach(second, SEND_ERR).unwrap();
    // Attaching or detaching no events succeeds.
    set.attach(first, 0).unwrap();
    set.detach(first, 0).unwrap();
    // An attached counter can't be destroyed.
    let busy = DestroyEventCounter { cntr_handle: first };
    set.fails(&busy, BUSY);
    // Events that are not attached, or are attached to another counter.
    for events in [RECV_ERR, SEND_ERR, SEND_COMP | RECV_ERR, ALL] {
        assert_eq!(set.detach(first, events), Err(ILLEGAL));
    }
    set.detach(first, SEND_COMP).unwrap();
    assert_eq!(set.detach(first, SEND_COMP), Err(ILLEGAL));
    set.fails(&busy, BUSY);
    set.attach(second, SEND_COMP).unwrap();
    set.detach(first, RECV_COMP).unwrap();
    set.destroy(first).unwrap();
    // The same events of another queue pair.
    let other = set.create_qp();
    let before = std::mem::replace(&mut set.qp, other);
    set.attach(second, SEND_COMP | SEND_ERR).unwrap();
    // The destruction of a queue pair detaches its counters.
    let qp_handle = std::mem::replace(&mut set.qp, before).number.into();
    set.driver.execute(&DestroyQp { qp_handle }).unwrap();
    assert_eq!(set.destroy(second), Err(BUSY));
    let qp_handle = set.qp_handle();
    set.driver.execute(&DestroyQp { qp_handle }).unwrap();
    set.destroy(second).unwrap();
    assert_eq!(set.protocol_errors(), 0);
}

/// Counters can be attached in states in which no event occurs.
#[test]
fn states_in_which_counters_can_be_attached() {
    let mut set = Set::new();
    let (handle, _) = set.counter();
    for (state, allowed) in [
        (QpState::Init, true),
        (QpState::Rtr, false),
        (QpState::Rts, false),
        (QpState::Sqd, false),
        (QpState::Err, false),
        (QpState::Reset, true),
    ] {
        set.state(state);
        let expected = if allowed { Ok(()) } else { Err(ILLEGAL) };
        assert_eq!(set.attach(handle, SEND_COMP), expected, "{state}");
        if allowed {
            set.detach(handle, SEND_COMP).unwrap();
        }
    }
}

#[test]
fn uar_is_busy_while_used() {
    let mut set = Set::new();
    let (first, _) = set.counter();
    let (uar, cq_idx, qp_handle) = (set.qp.cq.uar, set.qp.cq.idx, set.qp_handle());
    set.driver.execute(&DestroyQp { qp_handle }).unwrap();
    set.driver.execute(&DestroyCq { cq_idx }).unwrap();
    set.fails(&DeallocUar { uar }, BUSY);
    set.destroy(first).unwrap();
    set.driver.execute(&DeallocUar { uar }).unwrap();
}

#[test]
fn a_reset_ends_all() {
    let (mut set, handle, paddr) = Set::counting(ALL);
    set.start();
    set.driver.reset(ResetReason::Normal);
    set.driver.set_up();
    assert_eq!(set.counts(), ResourceCounts::default());
    set.driver.world.write(paddr, &[0x55; 8]);
    let mut set = Set::of(set.driver);
    // The old handle is stale after the reset, and the new counter has another one.
    let (new, _) = set.counter();
    assert_ne!(new, handle);
    assert_eq!(set.modify(handle, ModifyOp::Set, 1), Err(ILLEGAL));
    assert_eq!(set.protocol_errors(), 1);
    set.start_and_post();
    assert_eq!(set.value(paddr), 0x5555_5555_5555_5555);
    // A reset of the function ends objects, too.
    set.driver.device.reset(&mut set.driver.world);
    assert_eq!(set.counts(), ResourceCounts::default());
}
