// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attributes that objects may have.

use super::*;

/// A fault of a command, and its description.
type Bad<C> = (&'static str, Change<C>);

impl Set {
    fn refuses_all<C: Command + Copy>(&mut self, good: C, all: &[Bad<C>]) {
        for (what, change) in all {
            let mut bad = good;
            change(&mut bad);
            assert_eq!(self.driver.execute(&bad).err(), Some(ILLEGAL), "{what}");
        }
    }
}

/// Addresses that are not those of a ring of entries of `size` bytes.
fn bad_addresses(ring: u64, size: u64) -> [u64; 4] {
    [0, ring + size / 2, 1 << 48, u64::MAX - size + 1]
}

#[test]
fn event_queues() {
    let mut set = Set::new(Profile::Efa2);
    let good = set.create_eq();
    let bad: [Bad<CreateEq>; 6] = [
        ("no entries", |it| it.depth = 0),
        ("65 entries", |it| it.depth = 65),
        ("too many entries", |it| it.depth = 2048),
        ("a missing vector", |it| it.msix_vector = 33),
        ("entries of 32 bytes", |it| it.caps.entry_size_words = 8),
        ("no events", |it| it.events.completion = false),
    ];
    set.refuses_all(good, &bad);
    for base_address in bad_addresses(set.ring, 16) {
        set.refuses(good, |it| it.base_address = base_address);
    }
    let arm = |eqn| EqDb { eqn, arm: true }.into_raw();
    for (eqn, errors) in [(set.eqn, 0), (9, 1)] {
        set.driver.write(Register::EqDb, arm(eqn));
        let state = set.driver.device.state();
        assert_eq!((state.armed_eqs, state.protocol_errors), (1, errors));
    }
    // Without event queues, completion queues without events work.
    let mut set = Set::new(Profile::Efa0);
    set.fails(&set.create_eq(), Status::UnsupportedOpcode);
    set.execute(&set.create_cq());
}

#[test]
fn completion_queues() {
    let mut set = Set::new(Profile::Efa2);
    let good = set.create_cq();
    for (words, set_src_addr) in [(0, false), (5, false), (16, false), (4, true)] {
        set.refuses(good, |it| {
            it.caps_2.cq_entry_size_words = words;
            it.caps_2.set_src_addr = set_src_addr;
        });
    }
    let bad: [Bad<CreateCq>; 7] = [
        ("no entries", |it| it.sub_cq_depth = 0),
        ("63 entries", |it| it.sub_cq_depth = 63),
        ("too many entries", |it| it.sub_cq_depth = 32769),
        ("no sub-queue", |it| it.num_sub_cqs = 0),
        ("two sub-queues", |it| it.num_sub_cqs = 2),
        ("a region", |it| it.l_key = 1),
        ("a virtual address", |it| it.caps_1.virt = true),
    ];
    set.refuses_all(good, &bad);
    for base_address in bad_addresses(set.ring, 32) {
        set.refuses(good, |it| it.base_address = base_address);
    }
    // Only a completion queue with events has a doorbell.
    for (command, db_valid) in [(good, false), (set.create_cq_with_events(), true)] {
        let response = set.execute(&command);
        assert_eq!(response.flags.db_valid, db_valid);
        assert_eq!(response.sub_cq_actual_depth, 64);
    }
    let mut entries_of_16_bytes = good;
    entries_of_16_bytes.caps_2.cq_entry_size_words = 4;
    entries_of_16_bytes.caps_2.set_src_addr = false;
    set.execute(&entries_of_16_bytes);
}

/// Depth and ring size of send queues, and of receive queues, that a device refuses. With more descriptors than 32768, a doorbell of
/// 16 bits could not count them.
const SEND_RINGS: &str =
    "0/64 64/0 64/4097 63/4032 64/8192 64/2048 8192/524288 4294967295/4294967295";
const RECEIVE_RINGS: &str = "64/0 64/1008 64/512 64/1025 32769/1048576 32768/1048576 64/2097152 1/16777216 4294967295/4294967295";

fn rings(text: &'static str) -> impl Iterator<Item = (u32, u32)> {
    let ring = |pair: &'static str| pair.split_once('/').unwrap();
    text.split(' ')
        .map(ring)
        .map(|(depth, size)| (depth.parse().unwrap(), size.parse().unwrap()))
}

#[test]
fn queue_pairs() {
    let mut set = Set::new(Profile::Efa2);
    let good = set.create_qp();
    set.set(r#"{"max_sl":7}"#);
    let bad: [Bad<CreateQp>; 6] = [
        ("no type", |it| it.qp_type = 0),
        ("an unknown type", |it| it.qp_type = 3),
        ("a virtual send queue", |it| it.flags.sq_virt = true),
        ("a virtual receive queue", |it| it.flags.rq_virt = true),
        ("a send queue in memory", |it| it.sq_base_addr = 4096),
        ("a service level too high", |it| it.sl = 8),
    ];
    set.refuses_all(good, &bad);
    for ring in rings(SEND_RINGS) {
        set.refuses(good, |it| {
            (it.send_queue_depth, it.send_queue_ring_size) = ring
        });
    }
    for ring in rings(RECEIVE_RINGS) {
        set.refuses(good, |it| {
            (it.recv_queue_depth, it.recv_queue_ring_size) = ring
        });
    }
    for address in bad_addresses(set.ring, 16) {
        set.refuses(good, |it| it.rq_base_addr = address);
    }
    // A queue pair that only sends, and one with two buffers per receive work request.
    for (depth, size, address) in [(0, 0, 0), (64, 128 * 16, good.rq_base_addr)] {
        let mut command = good;
        (command.recv_queue_depth, command.recv_queue_ring_size) = (depth, size);
        command.rq_base_addr = address;
        set.execute(&command);
    }
    set.set(r#"{"max_llq_size":2048}"#);
    set.fails(&good, ILLEGAL);
    set.set(r#"{"max_llq_size":4096}"#);
    set.execute(&good);
    // With a minimum depth of send queues, as by default, all queue pairs can send.
    for depth in [0, 16] {
        let mut small = good;
        (small.send_queue_depth, small.send_queue_ring_size) = (depth, depth * 64);
        set.set(r#"{"min_sq_depth":32}"#);
        set.fails(&small, ILLEGAL);
        set.set(r#"{"min_sq_depth":0}"#);
        set.execute(&small);
    }
}

#[test]
fn capabilities_of_queue_pairs() {
    for (profile, wide, unsolicited) in [
        (Profile::Efa1, false, false),
        (Profile::Efa2, false, true),
        (Profile::Efa3, true, true),
    ] {
        let mut set = Set::new(profile);
        let good = set.create_qp();
        let mut command = good;
        command.send_queue_ring_size = 64 * 128;
        assert_eq!(set.driver.execute(&command).is_ok(), wide, "{profile:?}");
        let mut command = good;
        command.flags.unsolicited_write_recv = true;
        let status = set.driver.execute(&command).err();
        let expected = (!unsolicited).then_some(Status::UnsupportedOpcode);
        assert_eq!(status, expected, "{profile:?}");
    }
}

/// The completion queue of a send queue with such ids must support them.
#[test]
fn request_ids_of_64_bits() {
    let mut set = Set::new(Profile::Efa2);
    let mut create_cq = set.create_cq();
    create_cq.caps_2.sq_comp_64_bit_req_id = true;
    let mut create_qp = set.create_qp();
    create_qp.flags.sq_64_bit_req_id = true;
    // On a device without this feature, these bits are reserved.
    set.fails(&create_cq, Status::MalformedRequest);
    set.fails(&create_qp, Status::MalformedRequest);

    set.set(r#"{"sq_64_bit_req_id":true}"#);
    let long = set.execute(&create_cq).cq_idx;
    set.fails(&create_qp, ILLEGAL);
    create_qp.send_cq_idx = long.into();
    set.execute(&create_qp);
    // Other queue pairs can use it, too.
    create_qp.flags.sq_64_bit_req_id = false;
    set.execute(&create_qp);
}

#[test]
fn modification_of_attributes() {
    let mut set = Set::new(Profile::Efa2);
    let create = set.create_qp();
    let qp_handle = set.execute(&create).qp_handle;
    let query = |set: &mut Set| {
        let query = set.execute(&QueryQp { qp_handle });
        let state = QpState::try_from(query.qp_state).unwrap();
        (state, query.qkey, query.sq_psn, query.rnr_retry)
    };
    set.execute(&to_state(qp_handle, QpState::Init));
    set.execute(&to_state(qp_handle, QpState::Rtr));
    let mut command = to_state(qp_handle, QpState::Rts);
    // All except `sq_drained_async_notify`.
    command.modify_mask = ModifyQpMask::from_raw(0b10_1111);
    (command.qkey, command.sq_psn, command.rnr_retry) = (0x1111_2222, 0x00ab_cdef, 5);
    command.cur_qp_state = QpState::Rtr.into();

    // A fault in one attribute leaves the others unchanged.
    let faults: [fn(&mut ModifyQp); 5] = [
        |it| it.cur_qp_state = QpState::Init.into(),
        |it| it.cur_qp_state = 99,
        |it| it.qp_state = 7,
        |it| it.rnr_retry = 8,
        |it| it.sq_psn = 1 << 24,
    ];
    for fault in faults {
        set.refuses(command, fault);
        assert_eq!(query(&mut set), (QpState::Rtr, 0, 0, 7));
    }
    set.execute(&command);
    assert_eq!(query(&mut set), (QpState::Rts, 0x1111_2222, 0x00ab_cdef, 5));
    // A driver also sends commands that modify nothing.
    set.execute(&ModifyQp {
        qp_handle,
        ..ModifyQp::default()
    });
    let mut notify = to_state(qp_handle, QpState::Sqd);
    notify.modify_mask.sq_drained_async_notify = true;
    notify.sq_drained_async_notify = true;
    set.execute(&notify);
    set.refuses(notify, |it| it.qp_state = QpState::Rts.into());
    set.execute(&to_state(qp_handle, QpState::Reset));
    assert_eq!(query(&mut set), (QpState::Reset, 0, 0, 7));

    // Retries are for reliable queue pairs, and not for all devices.
    let mut datagrams = create;
    datagrams.qp_type = QpType::Ud.into();
    let mut retries = ModifyQp::default();
    retries.modify_mask.rnr_retry = true;
    retries.qp_handle = set.execute(&datagrams).qp_handle;
    set.fails(&retries, ILLEGAL);
    retries.qp_handle = qp_handle;
    set.execute(&retries);
    set.set(r#"{"rnr_retry":false}"#);
    set.fails(&retries, Status::UnsupportedOpcode);
}
