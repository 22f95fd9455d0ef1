// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects: limits, numbers, dependencies, the state machine of queue pairs.

use std::collections::BTreeSet;

use efa_hw::{
    admin::{
        Command, Status,
        ah::{CreateAh, DestroyAh},
        cq::{CreateCq, DestroyCq},
        eq::{CreateEq, DestroyEq},
        mr::{AllocMr, DeregMr},
        pd::{AllocPd, DeallocPd},
        qp::{
            CreateQp, CreateQpResponse, DestroyQp, ModifyQp, ModifyQpMask, QpState, QpType, QueryQp,
        },
        uar::{AllocUar, DeallocUar},
    },
    regs::{EqDb, Register},
};
use efa_model::{Config, Device, Profile, ResourceCounts};
use efa_testing::{
    commands::{self, to_state as to},
    mock::Driver,
};

/// A driver with one of each object on which others depend.
struct Set {
    driver: Driver,
    pd: u16,
    uar: u16,
    eqn: u16,
    ring: u64,
}

impl Set {
    fn new(profile: Profile) -> Self {
        let mut driver = Driver::new(profile);
        let ring = driver.world.map(1);
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        let uar = driver.execute(&AllocUar {}).unwrap().uar;
        let mut set = Self {
            driver,
            pd,
            uar,
            eqn: 0,
            ring,
        };
        if profile != Profile::Efa0 {
            set.eqn = set.execute(&set.create_eq()).eqn;
        }
        set
    }

    fn execute<C: Command>(&mut self, command: &C) -> C::Response {
        self.driver.execute(command).unwrap()
    }

    fn create_eq(&self) -> CreateEq {
        commands::create_eq(self.ring)
    }

    fn create_cq(&self) -> CreateCq {
        commands::create_cq(self.uar, self.ring)
    }

    fn create_cq_with_events(&self, eqn: u16) -> CreateCq {
        let mut command = self.create_cq();
        command.caps_1.interrupt_mode_enabled = true;
        command.eqn = eqn;
        command
    }

    fn cq(&mut self) -> u16 {
        self.execute(&self.create_cq()).cq_idx
    }

    fn create_qp(&self, qp_type: QpType, cq: u16) -> CreateQp {
        CreateQp {
            qp_type: qp_type.into(),
            ..commands::create_qp(self.pd, self.uar, cq, self.ring)
        }
    }

    fn qp(&mut self, qp_type: QpType) -> u32 {
        let cq = self.cq();
        self.execute(&self.create_qp(qp_type, cq)).qp_handle
    }

    fn counts(&self) -> ResourceCounts {
        self.driver.device.state().resources
    }

    /// Asserts that a command fails and changes nothing.
    fn fails(&mut self, command: &impl Command, status: Status) {
        let before = self.counts();
        assert_eq!(self.driver.execute(command).err(), Some(status));
        assert_eq!(self.counts(), before);
    }

    /// Asserts that a command succeeds so many times, and that there is no room for more.
    fn fills(&mut self, command: &impl Command, times: usize) {
        for _ in 0..times {
            self.execute(command);
        }
        self.fails(command, Status::ResourceAllocationFailure);
    }

    /// Asserts that a command fails once it is changed, and changes nothing.
    fn refuses<C: Command>(&mut self, mut command: C, change: impl FnOnce(&mut C)) {
        change(&mut command);
        self.fails(&command, Status::IllegalParameter);
    }

    fn set(&mut self, overrides: &str) {
        self.driver
            .device
            .set(serde_json::from_str(overrides).unwrap());
    }
}

fn create_ah(pd: u16, peer: u8) -> CreateAh {
    CreateAh {
        dest_addr: [peer; 16],
        pd,
    }
}

fn modify_nothing(qp_handle: u32) -> ModifyQp {
    ModifyQp {
        qp_handle,
        ..ModifyQp::default()
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
