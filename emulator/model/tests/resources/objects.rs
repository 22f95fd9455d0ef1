// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What all kinds of objects have in common, address handles, completion and event queues.

use std::collections::BTreeSet;

use efa_hw::{
    admin::{
        Status,
        ah::{CreateAh, DestroyAh},
        cq::DestroyCq,
        eq::DestroyEq,
        mr::{AllocMr, DeregMr},
        pd::{AllocPd, DeallocPd},
        qp::{DestroyQp, QpType, QueryQp},
        uar::{AllocUar, DeallocUar},
    },
    regs::{EqDb, Register},
};
use efa_model::{Profile, ResourceCounts};
use efa_testing::mock::Driver;

use super::{Set, modify_nothing};

fn create_ah(pd: u16, peer: u8) -> CreateAh {
    CreateAh {
        dest_addr: [peer; 16],
        pd,
    }
}

fn alloc_mr(pd: u16, max_pages: u32) -> AllocMr {
    AllocMr { pd, max_pages }
}

#[test]
fn limits() {
    let mut set = Set::new(Profile::Efa2);
    set.set(
        r#"{"max_pd":3,"max_uar":2,"max_eq":2,"max_ah":2,"max_cq":2,"max_qp":2,"max_mr":2,
            "max_mr_pages":100,"max_total_pages":150}"#,
    );
    set.fills(&AllocPd {}, 2);
    set.fills(&AllocUar {}, 1);
    set.fills(&set.create_eq(), 1);
    let cq = set.cq();
    set.fills(&set.create_cq(), 1);
    set.fills(&set.create_qp(QpType::Srd, cq), 2);
    let mut command = create_ah(set.pd, 1);
    set.execute(&command);
    command.dest_addr[0] = 2;
    set.execute(&command);
    command.dest_addr[0] = 3;
    let full = Status::ResourceAllocationFailure;
    set.fails(&command, full);
    let pd = set.pd;
    set.fails(&alloc_mr(pd, 101), full);
    let l_key = set.execute(&alloc_mr(pd, 100)).l_key;
    set.fails(&alloc_mr(pd, 100), full);
    set.execute(&alloc_mr(pd, 50));
    set.fails(&alloc_mr(pd, 1), full);
    set.execute(&DeregMr { l_key });
    set.fills(&alloc_mr(pd, 1), 1);

    // A lower limit also applies to existing objects.
    set.set(r#"{"max_pd":2}"#);
    set.execute(&DeallocPd { pd: 2 });
    set.fails(&AllocPd {}, full);

    // Without the limits there is room again.
    set.driver.device.clear();
    set.execute(&AllocPd {});
}

#[test]
fn numbers_are_reused_late() {
    let mut driver = Driver::new(Profile::Efa2);
    let limit = 256;
    let mut seen = BTreeSet::new();
    for _ in 0..limit {
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        assert!(pd != 0 && seen.insert(pd), "{pd} again");
        driver.execute(&DeallocPd { pd }).unwrap();
    }
    // The number that was freed first is reused first.
    for expected in seen.iter().take(10) {
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        assert_eq!(pd, *expected);
        driver.execute(&DeallocPd { pd }).unwrap();
    }
    for round in 0..3 {
        for _ in 0..limit {
            let pd = driver.execute(&AllocPd {}).unwrap().pd;
            assert!(seen.contains(&pd), "{pd} is new in round {round}");
        }
        assert!(driver.execute(&AllocPd {}).is_err());
        for &pd in &seen {
            driver.execute(&DeallocPd { pd }).unwrap();
        }
    }
}

#[test]
fn unknown_numbers() {
    let mut set = Set::new(Profile::Efa2);
    let cq = set.cq();
    let illegal = Status::IllegalParameter;
    for number in [0, 77, u16::MAX] {
        set.fails(&DeallocPd { pd: number }, illegal);
        set.fails(&DeallocUar { uar: number }, illegal);
        set.fails(&DestroyEq { eqn: number }, illegal);
        set.fails(&DestroyCq { cq_idx: number }, illegal);
        let (ah, pd) = (number, set.pd);
        set.fails(&DestroyAh { ah, pd }, illegal);
        for qp_handle in [u32::from(number), u32::from(number) | (1 << 16), u32::MAX] {
            set.fails(&DeregMr { l_key: qp_handle }, illegal);
            set.fails(&DestroyQp { qp_handle }, illegal);
            set.fails(&QueryQp { qp_handle }, illegal);
            set.fails(&modify_nothing(qp_handle), illegal);
        }
        let good = set.create_qp(QpType::Srd, cq);
        set.refuses(good, |it| it.pd = number);
        set.refuses(good, |it| it.uar = number);
        let cq_idx = number.into();
        set.refuses(good, |it| it.send_cq_idx = cq_idx);
        set.refuses(good, |it| it.recv_cq_idx = cq_idx | (1 << 16));
        let good = set.create_cq();
        set.refuses(good, |it| it.uar = number);
        set.fails(&set.create_cq_with_events(number), illegal);
        set.fails(&create_ah(number, 1), illegal);
        set.fails(&alloc_mr(number, 1), illegal);
    }
    // Freed numbers are invalid, too.
    let pd = set.execute(&AllocPd {}).pd;
    set.execute(&DeallocPd { pd });
    set.fails(&DeallocPd { pd }, illegal);
}

#[test]
fn objects_in_use_are_busy() {
    let mut set = Set::new(Profile::Efa2);
    let busy = Status::ResourceBusy;
    let (pd, uar, eqn) = (set.pd, set.uar, set.eqn);

    let cq_idx = set.execute(&set.create_cq_with_events(eqn)).cq_idx;
    set.fails(&DestroyEq { eqn }, busy);
    set.fails(&DeallocUar { uar }, busy);

    let create_qp = set.create_qp(QpType::Srd, cq_idx);
    let qp_handle = set.execute(&create_qp).qp_handle;
    set.fails(&DestroyCq { cq_idx }, busy);
    set.fails(&DeallocPd { pd }, busy);
    set.execute(&DestroyQp { qp_handle });
    set.fails(&DeallocUar { uar }, busy);
    set.execute(&DestroyCq { cq_idx });
    set.execute(&DestroyEq { eqn });
    set.execute(&DeallocUar { uar });

    let ah = set.execute(&create_ah(pd, 1)).ah;
    set.fails(&DeallocPd { pd }, busy);
    set.execute(&DestroyAh { ah, pd });
    let l_key = set.execute(&alloc_mr(pd, 1)).l_key;
    set.fails(&DeallocPd { pd }, busy);
    set.execute(&DeregMr { l_key });
    set.execute(&DeallocPd { pd });
    assert_eq!(set.counts(), ResourceCounts::default());
}

/// The completion queue of a send queue with such ids must support them.
#[test]
fn request_ids_of_64_bits() {
    let mut set = Set::new(Profile::Efa2);
    let mut create_cq = set.create_cq();
    create_cq.caps_2.sq_comp_64_bit_req_id = true;
    let short = set.cq();
    let mut create_qp = set.create_qp(QpType::Srd, short);
    create_qp.flags.sq_64_bit_req_id = true;
    // On a device without this feature, these bits are reserved.
    set.fails(&create_cq, Status::MalformedRequest);
    set.fails(&create_qp, Status::MalformedRequest);

    set.set(r#"{"sq_64_bit_req_id":true}"#);
    let long = set.execute(&create_cq).cq_idx;
    set.fails(&create_qp, Status::IllegalParameter);
    create_qp.send_cq_idx = long.into();
    set.execute(&create_qp);
    // Other queue pairs can use it, too.
    let create_qp = set.create_qp(QpType::Srd, long);
    set.execute(&create_qp);
}

#[test]
fn address_handles_are_per_peer_and_domain() {
    let mut set = Set::new(Profile::Efa2);
    let (pd, other_pd) = (set.pd, set.execute(&AllocPd {}).pd);
    let ah = set.execute(&create_ah(pd, 1)).ah;
    assert_eq!(set.execute(&create_ah(pd, 1)).ah, ah);
    assert_ne!(set.execute(&create_ah(pd, 2)).ah, ah);
    assert_ne!(set.execute(&create_ah(other_pd, 1)).ah, ah);
    assert_eq!(set.counts().ah, 3);

    set.fails(&DestroyAh { ah, pd: other_pd }, Status::IllegalParameter);
    set.execute(&DestroyAh { ah, pd });
    assert_eq!(set.counts().ah, 3);
    set.execute(&DestroyAh { ah, pd });
    assert_eq!(set.counts().ah, 2);
    set.fails(&DestroyAh { ah, pd }, Status::IllegalParameter);
    assert_ne!(set.execute(&create_ah(pd, 1)).ah, ah);

    set.fails(&create_ah(pd, 0), Status::IllegalParameter);
}

#[test]
fn address_handles_that_are_not_shared() {
    let mut set = Set::new(Profile::Efa2);
    set.set(r#"{"shared_ah":false}"#);
    let (pd, other_pd) = (set.pd, set.execute(&AllocPd {}).pd);
    let ah = set.execute(&create_ah(pd, 1)).ah;
    set.fails(&create_ah(pd, 1), Status::IllegalParameter);
    set.execute(&create_ah(other_pd, 1));

    set.execute(&DestroyAh { ah, pd });
    set.execute(&create_ah(pd, 1));
}

#[test]
fn event_queues() {
    let mut set = Set::new(Profile::Efa2);
    let good = set.create_eq();
    set.refuses(good, |it| it.depth = 0);
    set.refuses(good, |it| it.depth = 65);
    set.refuses(good, |it| it.depth = 2048);
    set.refuses(good, |it| it.msix_vector = 33);
    set.refuses(good, |it| it.caps.entry_size_words = 8);
    set.refuses(good, |it| it.events.completion = false);
    for base_address in [0, set.ring + 8, 1 << 48, u64::MAX - 15] {
        set.refuses(good, |it| it.base_address = base_address);
    }

    let arm = |eqn| EqDb { eqn, arm: true }.into_raw();
    set.driver.write(Register::EqDb, arm(set.eqn));
    assert_eq!(set.driver.device.state().armed_eqs, 1);
    assert_eq!(set.driver.device.state().protocol_errors, 0);
    set.driver.write(Register::EqDb, arm(9));
    assert_eq!(set.driver.device.state().protocol_errors, 1);
}

#[test]
fn device_without_event_queues() {
    let mut set = Set::new(Profile::Efa0);
    set.fails(&set.create_eq(), Status::UnsupportedOpcode);
    // Completion queues without events work.
    set.cq();
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
    for sub_cq_depth in [0, 63, 32769] {
        set.refuses(good, |it| it.sub_cq_depth = sub_cq_depth);
    }
    for num_sub_cqs in [0, 2] {
        set.refuses(good, |it| it.num_sub_cqs = num_sub_cqs);
    }
    for base_address in [0, set.ring + 16, (1 << 48) - 32, u64::MAX - 31] {
        set.refuses(good, |it| it.base_address = base_address);
    }
    set.refuses(good, |it| it.l_key = 1);
    set.refuses(good, |it| it.caps_1.virt = true);

    // Only a completion queue with events has a doorbell.
    let response = set.execute(&good);
    assert!(!response.flags.db_valid);
    assert_eq!(response.sub_cq_actual_depth, 64);
    let response = set.execute(&set.create_cq_with_events(set.eqn));
    assert!(response.flags.db_valid);
    let mut entries_of_16_bytes = good;
    entries_of_16_bytes.caps_2.cq_entry_size_words = 4;
    entries_of_16_bytes.caps_2.set_src_addr = false;
    set.execute(&entries_of_16_bytes);
}
