// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Data arrives unchanged at its destination, and the program gets its completions.

use std::time::Duration;

use efa_fabric::{PortId, Settings};
use efa_hw::{
    admin::{
        cq::CqCaps1,
        mr::RegMrPermissions,
        qp::{CreateQpFlags, QpState, QpType},
    },
    io::{Cdesc, CompStatus, CqDb, UNKNOWN_AH},
    regs::{EqDb, Register},
    stats::{BasicStats, MessagesStats, RdmaReadStats, RdmaWriteStats, Stats},
};
use efa_model::{Overrides, Profile};
use efa_testing::{
    cases::{self, Inside},
    commands::{create_eq, reg_mr},
    net::{ALL_PERMISSIONS, DEPTH, Net, PAGE, QKEY, Qp, Region, Send, pattern, req_id_ex},
};

/// Returns queue pairs of two devices that know each other, and a region of each.
fn set(qp_type: QpType, settings: Settings, pages: u64) -> (Net, Qp, Qp, Region, Region) {
    let mut net = Net::new(&[Profile::Efa3; 2], settings);
    let (mut a, mut b) = (net.qp(0, qp_type), net.qp(1, qp_type));
    net.introduce(&mut a, &mut b);
    let (from, to) = (net.region(&a, pages, 0), net.region(&b, pages, 0));
    (net, a, b, from, to)
}

fn statistics<S: Stats>(net: &mut Net, port: PortId) -> S {
    net.driver(port, |driver| driver.statistics().unwrap())
}

/// Returns the number of packets that the network has carried.
fn carried(net: &Net) -> u64 {
    net.fabric.paths().iter().map(|path| path.packets).sum()
}

#[test]
fn all_cases() {
    cases::all(&mut Inside::new(Settings::default(), 128));
}

#[test]
fn all_cases_on_a_network_that_loses() {
    let settings = Settings {
        loss: 0.05,
        ..Settings::default()
    };
    cases::all(&mut Inside::new(settings, 64));
}

#[test]
fn request_ids_of_64_bits() {
    let mut net = Net::new(&[Profile::Efa3; 2], Settings::default());
    let overrides = Overrides {
        sq_64_bit_req_id: Some(true),
        ..Overrides::default()
    };
    net.driver(PortId(0), |driver| driver.device.set(overrides));
    let flags = CreateQpFlags {
        sq_64_bit_req_id: true,
        ..CreateQpFlags::default()
    };
    let mut a = net.qp_with(0, QpType::Srd, flags, CqCaps1::default(), 64);
    let mut b = net.qp(1, QpType::Srd);
    net.introduce(&mut a, &mut b);
    let (from, to) = (net.region(&a, 1, 0), net.region(&b, 1, 0));
    let is_whole = |completion: &Cdesc, status: CompStatus, req_id| {
        let expected = Cdesc {
            req_id,
            status: status.into(),
            flags: completion.flags,
            qp_num: completion.qp_num,
            ..Cdesc::default()
        };
        assert_eq!(*completion, expected.with_req_id_ex(req_id_ex(req_id)));
    };

    for (length, status) in [(8, CompStatus::Ok), (8928 * 2, CompStatus::LocalBadLength)] {
        net.receive(&mut b, &[(to.iova, 8, to.lkey)]);
        let sent = net.post(&mut a, &Send::message(&b, &from, length));
        is_whole(&net.wait(&mut a), status, sent);
    }
    net.modify(&mut a, QpState::Err);
    let sent = net.post(&mut a, &Send::message(&b, &from, 8));
    is_whole(&net.wait(&mut a), CompStatus::Flushed, sent);

    // A completion of a receive has its usual format.
    let received = net.wait(&mut b);
    assert_eq!((received.length, received.ah), (8, b.ah));
}

/// Either both queue pairs have unsolicited receives, or none.
#[test]
fn unsolicited_writes_with_immediate_data() {
    for has in [[true, true], [false, true], [true, false]] {
        let mut net = Net::new(&[Profile::Efa3; 2], Settings::default());
        let [mut a, mut b] = [0, 1].map(|port| {
            let flags = CreateQpFlags {
                unsolicited_write_recv: has[port],
                ..CreateQpFlags::default()
            };
            net.qp_with(port, QpType::Srd, flags, CqCaps1::default(), 64)
        });
        net.introduce(&mut a, &mut b);
        let (from, to) = (net.region(&a, 1, 0), net.region(&b, 1, 0));
        net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
        let mut write = Send::write(&b, &from, &to, 100);
        write.immediate = Some(7);
        net.post(&mut a, &write);
        let status = net.status(&mut a);
        if has == [true, true] {
            let completion = net.wait(&mut b);
            assert_eq!((status, completion.status), (CompStatus::Ok, 0));
            assert_eq!((completion.imm, completion.length), (7, 100));
            assert!(completion.flags.unsolicited);
        } else {
            assert_eq!(status, CompStatus::RemoteFeatureMismatch, "{has:?}");
            assert_eq!(net.poll(&mut b), None, "{has:?}");
        }
    }
}

/// All pages of the regions are one, which shows the bytes that were written last. If not all regions of a packet permit relaxed
/// ordering, the order is that of the addresses.
#[test]
fn relaxed_ordering() {
    const ALL: u32 = 2 * PAGE as u32;
    let data = pattern(ALL as usize, 5);
    for (case, header) in (0..8).map(|case| (case, case / 4 * 40)) {
        let qp_type = [QpType::Srd, QpType::Ud][case / 4];
        let relaxed = [case & 1 != 0, case & 2 != 0];
        let (mut net, mut a, mut b, from, _) = set(qp_type, Settings::default(), 2);
        net.fill(&from, 0, &data);
        let overrides = Overrides {
            relaxed_ordering: Some(true),
            ..Overrides::default()
        };
        net.set(b.port, overrides);
        let pages = net.world(b.port, |world| vec![world.map(1); 2]);
        let [mut to, second] = relaxed.map(|relaxed_ordering| {
            let mut command = reg_mr(b.pd, 0, ALL.into());
            command.permissions = RegMrPermissions {
                relaxed_ordering,
                ..ALL_PERMISSIONS
            };
            net.driver(b.port, |driver| Region::new(driver, pages.clone(), command))
        });
        to.port = b.port;
        let check = |net: &mut Net, header, is_relaxed| {
            let page = PAGE as usize;
            let mut expected = data[page - header..2 * page - header].to_vec();
            if is_relaxed {
                expected[page - 256..].copy_from_slice(&data[page - 256 - header..page - header]);
            }
            assert!(net.content(&to, 0, page) == expected, "{case} {is_relaxed}");
            net.fill(&to, 0, &vec![0; page]);
        };

        net.receive(&mut b, &[(0, 4096, to.lkey), (PAGE, 4096, second.lkey)]);
        let message = Send::message(&b, &from, ALL - header as u32);
        assert_eq!(net.outcome(&mut a, &message), CompStatus::Ok);
        assert_eq!(net.wait(&mut b).status, 0);
        check(&mut net, header, relaxed == [true, true]);
        if qp_type == QpType::Srd {
            let write = Send::write(&b, &from, &to, ALL);
            assert_eq!(net.outcome(&mut a, &write), CompStatus::Ok);
            check(&mut net, 0, relaxed[0]);
            let read = Send::read(&a, &to, &from, ALL);
            assert_eq!(net.outcome(&mut b, &read), CompStatus::Ok);
            check(&mut net, 0, relaxed[0]);
        }
    }
}

#[test]
fn datagrams_leave_room_for_a_header() {
    let (mut net, mut a, mut b, from, to) = set(QpType::Ud, Settings::default(), 3);
    let bytes = pattern(5000, 8);
    net.fill(&from, 0, &bytes);
    net.receive(&mut b, &[(to.iova, 5040, to.lkey)]);
    net.post(&mut a, &Send::message(&b, &from, 5000));
    assert_eq!(net.wait(&mut a).status, 0);
    let completion = net.wait(&mut b);
    assert_eq!((completion.status, completion.length), (0, 5040));
    assert_eq!((completion.ah, completion.src_qp_num), (b.ah, a.number));
    assert_eq!(net.content(&to, 0, 40), [0; 40]);
    assert_eq!(net.content(&to, 40, 5000), bytes);
}

#[test]
fn datagrams_that_cannot_be_delivered_are_dropped() {
    let (mut net, mut a, mut b, from, to) = set(QpType::Ud, Settings::default(), 1);
    // No receive work request, then the wrong Q_Key, then the wrong queue pair.
    let mut send = Send::message(&b, &from, 10);
    net.post(&mut a, &send);
    net.run();
    net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
    send.qkey = Some(QKEY + 1);
    net.post(&mut a, &send);
    send.qkey = None;
    send.peer_qp = 200;
    net.post(&mut a, &send);
    for _ in 0..3 {
        assert_eq!(net.wait(&mut a).status, 0);
    }
    assert_eq!(net.poll(&mut b), None);
    let stats: BasicStats = statistics(&mut net, b.port);
    assert_eq!((stats.rx_drops, stats.qkey_viol, stats.rx_pkts), (3, 1, 0));
}

#[test]
fn datagrams_in_flight_are_bounded_however_short() {
    // Limit on datagrams in flight: 8 MiB, of which each takes 512 bytes besides its payload.
    const MOST: u64 = (8 << 20) / 512;
    let settings = Settings {
        delay_us: 5e6,
        ..Settings::default()
    };
    for length in [0, 1] {
        let (mut net, mut a, mut b, from, to) = set(QpType::Ud, settings.clone(), 1);
        net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
        let send = Send::message(&b, &from, length);
        let round = u64::from(DEPTH);
        for _ in 0..MOST / round + 10 {
            for _ in 0..DEPTH {
                net.put(&mut a, &send);
            }
            net.ring_send(&a);
            net.run();
            // Lost datagrams complete with success, too.
            for _ in 0..DEPTH {
                assert_eq!(net.poll(&mut a).unwrap().status, 0);
            }
        }
        let most = carried(&net);
        assert!((MOST - 100..=MOST).contains(&most), "{most}");
        // Delivered datagrams make room for others.
        net.run_for(Duration::from_secs(6));
        assert_eq!(u32::from(net.wait(&mut b).length), 40 + length);
        net.post(&mut a, &send);
        net.run();
        assert_eq!(carried(&net), most + 1);
    }
}

#[test]
fn completions_name_unknown_peers_by_address() {
    let mut net = Net::new(&[Profile::Efa3; 2], Settings::default());
    let (mut a, mut b) = (net.qp(0, QpType::Srd), net.qp(1, QpType::Srd));
    a.ah = net.handle(&a, b.port);
    let (from, to) = (net.region(&a, 1, 0), net.region(&b, 1, 0));
    net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
    net.post(&mut a, &Send::message(&b, &from, 10));
    let completion = net.wait(&mut b);
    assert_eq!(completion.ah, UNKNOWN_AH);
    assert_eq!(completion.extension, net.address(a.port));
}

#[test]
fn a_device_sends_to_itself() {
    let mut net = Net::new(&[Profile::Efa2], Settings::default());
    let [mut a, mut b] = [(); 2].map(|()| net.narrow_qp(0, QpType::Srd));
    net.introduce(&mut a, &mut b);
    let (from, to) = (net.region(&a, 20, 0), net.region(&b, 20, 0));
    let bytes = pattern(80_000, 2);
    net.fill(&from, 0, &bytes);
    net.post(&mut a, &Send::write(&b, &from, &to, 80_000));
    assert_eq!(net.wait(&mut a).status, 0);
    assert_eq!(net.content(&to, 0, 80_000), bytes);
}

#[test]
fn queues_wrap() {
    let (mut net, mut a, mut b, from, to) = set(QpType::Srd, Settings::default(), 1);
    for round in 0..10 * DEPTH {
        let bytes = pattern(16, round.into());
        net.fill(&from, 0, &bytes);
        net.receive(
            &mut b,
            &[(to.iova, 10, to.lkey), (to.iova + 10, 10, to.lkey)],
        );
        net.post(&mut a, &Send::message(&b, &from, 16));
        assert_eq!(net.wait(&mut a).req_id, round);
        assert_eq!(net.wait(&mut b).status, 0);
        assert_eq!(net.content(&to, 0, 16), bytes);
    }
    assert_eq!(net.protocol_errors(), 0);
}

/// Creates a queue pair whose completions raise events.
fn with_events(net: &mut Net, port: usize) -> Qp {
    net.driver(PortId(port), |driver| {
        let create = create_eq(driver.world.map(1));
        let eqn = driver.execute(&create).unwrap().eqn;
        assert_eq!(eqn, 1);
        driver.write(Register::EqDb, EqDb { eqn, arm: true }.into_raw());
        driver.world.take_interrupts();
    });
    let caps_1 = CqCaps1 {
        interrupt_mode_enabled: true,
        ..CqCaps1::default()
    };
    net.qp_with(port, QpType::Srd, CreateQpFlags::default(), caps_1, 64)
}

#[test]
fn an_armed_queue_raises_one_event() {
    let mut net = Net::new(&[Profile::Efa3; 2], Settings::default());
    let mut a = net.qp(0, QpType::Srd);
    let mut b = with_events(&mut net, 1);
    net.introduce(&mut a, &mut b);
    let (from, to) = (net.region(&a, 1, 0), net.region(&b, 1, 0));
    let interrupts = |net: &mut Net| {
        net.driver(PortId(1), |driver| {
            let eq = EqDb { eqn: 1, arm: true };
            let raised = driver.world.take_interrupts();
            driver.write(Register::EqDb, eq.into_raw());
            raised.iter().filter(|vector| **vector == 1).count()
                + driver.world.take_interrupts().len()
        })
    };
    let exchange = |net: &mut Net, a: &mut Qp, b: &mut Qp| {
        net.receive(b, &[(to.iova, 100, to.lkey)]);
        net.post(a, &Send::message(b, &from, 10));
        assert_eq!(net.wait(a).status, 0);
    };
    let doorbell = net.driver(b.port, |driver| {
        // They follow the doorbells of all queue pairs, of which there can be 256.
        let _ = driver;
        u64::from(b.cq.uar - 1) * uar_size() + (512 + u64::from(b.cq.idx) - 1) * 8
    });
    let arm = |net: &mut Net, consumed: u16| {
        let value = CqDb {
            consumer_index: consumed,
            cmd_sn: 0,
            arm: true,
        };
        net.doorbell(PortId(1), doorbell, value.into_raw());
    };
    // Not armed: no interrupt.
    exchange(&mut net, &mut a, &mut b);
    assert_eq!(interrupts(&mut net), 0);
    // Armed with an unconsumed completion: an interrupt at once.
    arm(&mut net, 0);
    assert_eq!(interrupts(&mut net), 1);
    // Armed without an unconsumed completion: one interrupt, with the next completion.
    net.wait(&mut b);
    arm(&mut net, 1);
    assert_eq!(interrupts(&mut net), 0);
    exchange(&mut net, &mut a, &mut b);
    assert_eq!(interrupts(&mut net), 1);
    // Armed with an unconsumed completion that has raised an event: an interrupt only with the next completion.
    arm(&mut net, 1);
    assert_eq!(interrupts(&mut net), 0);
    exchange(&mut net, &mut a, &mut b);
    assert_eq!(interrupts(&mut net), 1);
    // Armed with an unconsumed completion that has raised no event: an interrupt at once.
    exchange(&mut net, &mut a, &mut b);
    arm(&mut net, 1);
    assert_eq!(interrupts(&mut net), 1);
    assert_eq!(net.protocol_errors(), 0);
    // More unconsumed completions than entries, by the consumer index.
    let overflows = |net: &mut Net| {
        net.driver(PortId(1), |driver| {
            let errors = driver.device.state().program_errors;
            (errors.cq_overflows, driver.world.trace.pop())
        })
    };
    for _ in 4..2 * DEPTH + 1 {
        exchange(&mut net, &mut a, &mut b);
    }
    arm(&mut net, 1);
    assert_eq!(overflows(&mut net).0, 0);
    exchange(&mut net, &mut a, &mut b);
    arm(&mut net, 1);
    let line = "program error: cq 1 has 128 entries and overflows: 129 completions, by the consumer index of its doorbell";
    assert_eq!(overflows(&mut net), (1, Some(line.to_owned())));
}

/// Returns the bytes of a profile's doorbells in a user access region: two for each queue pair, one for each completion queue.
fn uar_size() -> u64 {
    let driver = efa_testing::mock::Driver::new(Profile::Efa3);
    let attributes: efa_hw::features::QueueAttr1 = { driver }.feature().unwrap();
    let doorbells = 2 * u64::from(attributes.max_qp) + u64::from(attributes.max_cq);
    (doorbells * 8).next_multiple_of(PAGE)
}

#[test]
fn statistics_count() {
    let (mut net, mut a, mut b, from, to) = set(QpType::Srd, Settings::default(), 10);
    net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
    net.post(&mut a, &Send::message(&b, &from, 60));
    net.post(&mut a, &Send::write(&b, &from, &to, 20_000));
    net.post(&mut a, &Send::read(&b, &from, &to, 30_000));
    for _ in 0..3 {
        assert_eq!(net.wait(&mut a).status, 0);
    }
    let basic: BasicStats = statistics(&mut net, a.port);
    let messages: MessagesStats = statistics(&mut net, a.port);
    let reads: RdmaReadStats = statistics(&mut net, a.port);
    let writes: RdmaWriteStats = statistics(&mut net, a.port);
    assert_eq!((basic.tx_bytes, basic.rx_bytes), (20_060, 30_000));
    // One message, three packets of the write, one read request.
    assert_eq!((basic.tx_pkts, basic.rx_pkts), (5, 4));
    assert_eq!((messages.send_wrs, messages.send_bytes), (1, 60));
    assert_eq!((reads.read_wrs, reads.read_bytes), (1, 30_000));
    assert_eq!((writes.write_wrs, writes.write_bytes), (1, 20_000));
    let basic: BasicStats = statistics(&mut net, b.port);
    let messages: MessagesStats = statistics(&mut net, b.port);
    let reads: RdmaReadStats = statistics(&mut net, b.port);
    let writes: RdmaWriteStats = statistics(&mut net, b.port);
    assert_eq!((basic.tx_bytes, basic.rx_bytes), (30_000, 20_060));
    assert_eq!((messages.recv_wrs, messages.recv_bytes), (1, 60));
    assert_eq!(reads.read_resp_bytes, 30_000);
    assert_eq!(writes.write_recv_bytes, 20_000);
}

#[test]
fn packets_are_batched_where_none_can_be_late_or_lost() {
    const PACKETS: u32 = 200;
    let kinds = [
        ("{}", 2),
        (r#"{"path":[{}]}"#, 2),
        (r#"{"delay_us":1.0}"#, PACKETS),
        (r#"{"jitter_us":1.0}"#, PACKETS),
        (r#"{"loss":1e-9}"#, PACKETS),
        (r#"{"flip":1e-9}"#, PACKETS),
        (r#"{"link_gbps":1e3}"#, PACKETS),
        (r#"{"path":[{"delay_us":1.0}]}"#, PACKETS),
        (r#"{"path":[{"loss":1e-9}]}"#, PACKETS),
    ];
    for (settings, acknowledgements) in kinds {
        let network = serde_json::from_str(settings).unwrap();
        let (mut net, mut a, b, from, to) = set(QpType::Srd, network, 500);
        let mtu = net.driver(a.port, |driver| driver.device.mtu());
        net.post(&mut a, &Send::write(&b, &from, &to, PACKETS * mtu));
        assert_eq!(net.wait(&mut a).status, 0);
        let expected = u64::from(PACKETS + acknowledgements);
        assert_eq!(carried(&net), expected, "{settings}");
        for (port, sent) in [(a.port, true), (b.port, false)] {
            let stats: BasicStats = statistics(&mut net, port);
            let packets = if sent { stats.tx_pkts } else { stats.rx_pkts };
            assert_eq!(packets, u64::from(PACKETS), "{settings}");
        }
    }
}
