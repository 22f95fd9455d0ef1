// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs: creation, states, attributes, and places of their queues.

use std::collections::BTreeSet;

use efa_hw::admin::{
    Status,
    cq::DestroyCq,
    pd::{AllocPd, DeallocPd},
    qp::{CreateQp, CreateQpResponse, DestroyQp, ModifyQp, ModifyQpMask, QpState, QpType, QueryQp},
    uar::AllocUar,
};
use efa_model::{Config, Device, Profile};
use efa_testing::commands::to_state as to;

use super::{Set, modify_nothing};

#[test]
fn queue_pair_with_two_completion_queues() {
    let mut set = Set::new(Profile::Efa2);
    let (send, recv) = (set.cq(), set.cq());
    let mut command = set.create_qp(QpType::Ud, send);
    command.recv_cq_idx = recv.into();
    let qp_handle = set.execute(&command).qp_handle;
    for cq_idx in [send, recv] {
        set.fails(&DestroyCq { cq_idx }, Status::ResourceBusy);
    }
    set.execute(&DestroyQp { qp_handle });
    for cq_idx in [send, recv] {
        set.execute(&DestroyCq { cq_idx });
    }
}

#[test]
fn numbers_come_back_at_once() {
    let mut set = Set::new(Profile::Efa2);
    set.set(r#"{"reuse_numbers":true}"#);
    let cq = set.cq();
    let command = set.create_qp(QpType::Srd, cq);
    let [first, second] = [(); 2].map(|()| set.execute(&command).qp_handle);
    for qp_handle in [first, second, first] {
        set.execute(&DestroyQp { qp_handle });
        assert_eq!(set.execute(&command).qp_handle, qp_handle);
    }
    let [pd, _] = [(); 2].map(|()| set.execute(&AllocPd::default()).pd);
    set.execute(&DeallocPd { pd });
    assert_eq!(set.execute(&AllocPd::default()).pd, pd);
}

#[test]
fn queue_pairs() {
    let mut set = Set::new(Profile::Efa2);
    let illegal = Status::IllegalParameter;
    let cq = set.cq();
    let good = set.create_qp(QpType::Srd, cq);
    for qp_type in [0, 3] {
        set.refuses(good, |it| it.qp_type = qp_type);
    }
    set.refuses(good, |it| it.flags.sq_virt = true);
    set.refuses(good, |it| it.flags.rq_virt = true);
    set.refuses(good, |it| it.sq_base_addr = 4096);
    set.set(r#"{"max_sl":7}"#);
    set.refuses(good, |it| it.sl = 8);
    for (send_queue_depth, send_queue_ring_size) in [
        (0, 64),
        (64, 0),
        (64, 64 * 64 + 1),
        (63, 63 * 64),
        (64, 64 * 128),
        (64, 64 * 32),
        (8192, 8192 * 64),
        (u32::MAX, u32::MAX),
    ] {
        set.refuses(good, |it| {
            it.send_queue_depth = send_queue_depth;
            it.send_queue_ring_size = send_queue_ring_size;
        });
    }
    for (recv_queue_depth, recv_queue_ring_size) in [
        (64, 0),
        (64, 63 * 16),
        (64, 32 * 16),
        (64, 64 * 16 + 1),
        (32769, 65536 * 16),
        // More descriptors than the depth, which a doorbell of 16 bits could not count.
        (32768, 65536 * 16),
        (64, 131_072 * 16),
        (1, 1 << 24),
        (u32::MAX, u32::MAX),
    ] {
        set.refuses(good, |it| {
            it.recv_queue_depth = recv_queue_depth;
            it.recv_queue_ring_size = recv_queue_ring_size;
        });
    }
    for rq_base_addr in [0, set.ring + 8, 1 << 48] {
        set.refuses(good, |it| it.rq_base_addr = rq_base_addr);
    }

    // A queue pair that only sends, and one with two buffers per receive work request.
    set.execute(&CreateQp {
        recv_queue_depth: 0,
        recv_queue_ring_size: 0,
        rq_base_addr: 0,
        ..good
    });
    set.execute(&CreateQp {
        recv_queue_ring_size: 128 * 16,
        ..good
    });
    set.set(r#"{"max_llq_size":2048}"#);
    set.fails(&good, illegal);
    set.set(r#"{"max_llq_size":4096}"#);
    set.execute(&good);
    // With a minimum depth of send queues, as by default, all queue pairs can send.
    for send_queue_depth in [0, 16] {
        let small = CreateQp {
            send_queue_depth,
            send_queue_ring_size: send_queue_depth * 64,
            ..good
        };
        set.set(r#"{"min_sq_depth":32}"#);
        set.fails(&small, illegal);
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
        let cq = set.cq();
        let good = set.create_qp(QpType::Srd, cq);
        let mut command = good;
        command.send_queue_ring_size = 64 * 128;
        assert_eq!(set.driver.execute(&command).is_ok(), wide, "{profile:?}");
        let mut command = good;
        command.flags.unsolicited_write_recv = true;
        if unsolicited {
            set.execute(&command);
        } else {
            set.fails(&command, Status::UnsupportedOpcode);
        }
    }
}

#[test]
fn states() {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

    // Paths to each state that the driver can reach, and the states that can follow.
    let table: [(&[QpState], &[QpState]); 6] = [
        (&[], &[Reset, Init]),
        (&[Init], &[Reset, Init, Rtr, Err]),
        (&[Init, Rtr], &[Reset, Rts, Err]),
        (&[Init, Rtr, Rts], &[Reset, Rts, Sqd, Err]),
        (&[Init, Rtr, Rts, Sqd], &[Reset, Rts, Sqd, Err]),
        (&[Init, Err], &[Reset, Err]),
    ];
    let illegal = Some(Status::IllegalParameter);
    for qp_type in [QpType::Ud, QpType::Srd] {
        let mut set = Set::new(Profile::Efa2);
        let qp_handle = set.qp(qp_type);
        for (path, valid) in table {
            for &target in QpState::ALL {
                set.execute(&to(qp_handle, Reset));
                for &state in path {
                    set.execute(&to(qp_handle, state));
                }
                let from = path.last().copied().unwrap_or(Reset);
                let result = set.driver.execute(&to(qp_handle, target));
                let reached = if valid.contains(&target) {
                    assert!(result.is_ok(), "{from} to {target}");
                    target
                } else {
                    assert_eq!(result.err(), illegal, "{from} to {target}");
                    from
                };
                assert_ne!(reached, Sqe);
                let query = set.execute(&QueryQp { qp_handle });
                assert_eq!(query.qp_state, u32::from(reached));
            }
        }
    }
}

#[test]
fn modification_of_attributes() {
    let mut set = Set::new(Profile::Efa2);
    let illegal = Status::IllegalParameter;
    let qp_handle = set.qp(QpType::Srd);
    set.execute(&to(qp_handle, QpState::Init));
    set.execute(&to(qp_handle, QpState::Rtr));
    let mut command = to(qp_handle, QpState::Rts);
    command.modify_mask = ModifyQpMask {
        qp_state: true,
        cur_qp_state: true,
        qkey: true,
        sq_psn: true,
        sq_drained_async_notify: false,
        rnr_retry: true,
    };
    command.qkey = 0x1111_2222;
    command.sq_psn = 0x00ab_cdef;
    command.rnr_retry = 5;

    // A fault in one attribute leaves the others unchanged.
    command.cur_qp_state = QpState::Rtr.into();
    let faults: [fn(&mut ModifyQp); 5] = [
        |it| it.cur_qp_state = QpState::Init.into(),
        |it| it.cur_qp_state = 99,
        |it| it.qp_state = 7,
        |it| it.rnr_retry = 8,
        |it| it.sq_psn = 1 << 24,
    ];
    for fault in faults {
        set.refuses(command, fault);
        let query = set.execute(&QueryQp { qp_handle });
        assert_eq!(
            (query.qp_state, query.qkey, query.sq_psn),
            (QpState::Rtr.into(), 0, 0)
        );
    }

    set.execute(&command);
    let query = set.execute(&QueryQp { qp_handle });
    assert_eq!(query.qp_state, u32::from(QpState::Rts));
    assert_eq!(
        (query.qkey, query.sq_psn, query.rnr_retry),
        (0x1111_2222, 0x00ab_cdef, 5)
    );

    // A driver also sends commands that modify nothing.
    set.execute(&modify_nothing(qp_handle));
    let mut notify = to(qp_handle, QpState::Sqd);
    notify.modify_mask.sq_drained_async_notify = true;
    notify.sq_drained_async_notify = true;
    set.execute(&notify);
    notify.qp_state = QpState::Rts.into();
    set.fails(&notify, illegal);

    set.execute(&to(qp_handle, QpState::Reset));
    let query = set.execute(&QueryQp { qp_handle });
    assert_eq!((query.qkey, query.sq_psn, query.rnr_retry), (0, 0, 7));
}

#[test]
fn retries_are_for_reliable_queue_pairs() {
    let mut set = Set::new(Profile::Efa2);
    let mut command = ModifyQp {
        modify_mask: ModifyQpMask {
            rnr_retry: true,
            ..Default::default()
        },
        qp_handle: set.qp(QpType::Ud),
        ..Default::default()
    };
    set.fails(&command, Status::IllegalParameter);
    command.qp_handle = set.qp(QpType::Srd);
    set.execute(&command);
    set.set(r#"{"rnr_retry":false}"#);
    set.fails(&command, Status::UnsupportedOpcode);
}

/// Places in the BARs do not overlap, and user access regions do not share pages of doorbells.
#[test]
fn places_in_bars() {
    let mut set = Set::new(Profile::Efa3);
    let uars = [set.uar, set.execute(&AllocUar {}).uar];
    let (llq_size, page) = (4096 * 64, 4096);
    let memory = set.driver.device.memory_bar_size();
    let doorbells = set.driver.device.doorbell_bar_size();
    assert!(memory.is_power_of_two() && doorbells.is_power_of_two());

    let (mut places, mut rings) = (BTreeSet::new(), BTreeSet::new());
    let mut pages = [BTreeSet::new(), BTreeSet::new()];
    for number in 0..256 {
        let uar = number % 2;
        let mut command = set.create_cq_with_events(set.eqn);
        command.uar = uars[uar];
        let cq = set.execute(&command);
        let mut command = set.create_qp(QpType::Srd, cq.cq_idx);
        command.uar = uars[uar];
        command.send_queue_depth = 2048;
        command.send_queue_ring_size = 2048 * 128;
        let qp = set.execute(&command);
        for offset in [cq.db_offset, qp.sq_db_offset, qp.rq_db_offset] {
            assert!(u64::from(offset) < doorbells && offset % 4 == 0);
            assert!(places.insert(offset), "two doorbells at {offset:#x}");
            pages[uar].insert(offset / page);
        }
        let ring = qp.llq_descriptors_offset;
        assert!(u64::from(ring) + llq_size <= memory && ring % page == 0);
        rings.insert(ring);
    }
    assert!(pages[0].is_disjoint(&pages[1]));
    assert_eq!(rings.len(), 256);
    let rings: Vec<_> = rings.into_iter().map(u64::from).collect();
    assert!(rings.windows(2).all(|pair| pair[1] - pair[0] >= llq_size));
}

/// BARs are limited to the range of 32-bit offsets, even with larger attributes.
#[test]
fn bar_sizes_are_limited_by_32_bit_offsets() {
    let sizes = |overrides: &str| {
        let mut config = Config::new(Profile::Efa3, 0);
        config.overrides = serde_json::from_str(overrides).unwrap();
        let device = Device::new(config);
        (device.memory_bar_size(), device.doorbell_bar_size())
    };
    let objects = r#""max_qp":16000,"max_cq":16000"#;
    let small = format!(r#"{{{objects},"max_uar":16,"max_llq_size":4096}}"#);
    assert_eq!(sizes(&small), (1 << 26, 1 << 23));
    let large = format!(r#"{{{objects},"max_uar":65535,"max_llq_size":1048576}}"#);
    assert_eq!(sizes(&large), (1 << 31, 1 << 31));
}

/// Queue pair numbers stay different in as many low bits as a table of all queue pairs needs.
#[test]
fn queue_pair_numbers() {
    let mut set = Set::new(Profile::Efa2);
    let cq = set.cq();
    let command = set.create_qp(QpType::Srd, cq);
    let mut live: Vec<CreateQpResponse> = Vec::new();
    for round in 0..1000_usize {
        if live.len() == 256 || round % 3 == 2 {
            let index = round * 7 % live.len();
            let qp_handle = live.swap_remove(index).qp_handle;
            set.execute(&DestroyQp { qp_handle });
        } else {
            live.push(set.execute(&command));
        }
        let numbers: BTreeSet<_> = live.iter().map(|qp| qp.qp_num % 256).collect();
        assert_eq!(numbers.len(), live.len());
    }
}
