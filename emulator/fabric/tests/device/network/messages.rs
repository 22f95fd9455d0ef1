// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Data arrives unchanged at its destination, and the program gets its completions.

use super::*;

/// Returns the number of packets that the network has carried.
fn carried(net: &Net) -> u64 {
    net.fabric.paths().iter().map(|path| path.packets).sum()
}

fn statistics<S: Stats>(net: &mut Net, port: usize) -> S {
    net.driver(PortId(port), |driver| driver.statistics().unwrap())
}

#[test]
fn all_cases() {
    // Regions begin within pages.
    let regions = [(250, 123), (250, 4000)];
    for (settings, wqe_size) in [("{}", 128), (r#"{"loss":0.05}"#, 64)] {
        let shapes = [Shape::new(QpType::Srd, wqe_size); 2];
        cases::all(&mut Peers::with(network(settings), shapes, regions));
    }
}

#[test]
fn request_ids_of_64_bits() {
    let mut net = Net::new(&[Profile::Efa3; 2], Settings::default());
    net.set(PortId(0), r#"{"sq_64_bit_req_id":true}"#);
    let mut shapes = [Shape::new(QpType::Srd, 64); 2];
    shapes[0].flags.sq_64_bit_req_id = true;
    let mut peers = Peers::on(net, shapes, [(1, 0); 2]);
    peers.ready(8);
    for (length, error, status) in
        [(8, false, CompStatus::Ok), (8928 * 2, false, CompStatus::LocalBadLength), (8, true, CompStatus::Flushed)]
    {
        if error {
            peers.modify(0, QpState::Err);
        }
        let req_id = peers.post(&peers.message(length));
        let found = peers.wait(0);
        let mut expected = Cdesc::default();
        (expected.req_id, expected.status) = (req_id, status.into());
        (expected.flags, expected.qp_num) = (found.flags, found.qp_num);
        assert_eq!(found, expected.with_req_id_ex(req_id_ex(req_id)));
    }
    // A completion of a receive has its usual format.
    let received = peers.wait(1);
    assert_eq!((received.length, received.ah), (8, peers.qps[1].ah));
}

/// Either both queue pairs have unsolicited receives, or none.
#[test]
fn unsolicited_writes_with_immediate_data() {
    for has in [[true, true], [false, true], [true, false]] {
        let shapes = has.map(|has| {
            let mut shape = Shape::new(QpType::Srd, 64);
            shape.flags.unsolicited_write_recv = has;
            shape
        });
        let mut peers = Peers::with(Settings::default(), shapes, [(1, 0); 2]);
        peers.ready(100);
        let mut write = peers.write(100);
        write.immediate = Some(7);
        if has == [true, true] {
            peers.ends(&write, CompStatus::Ok);
            let completion = peers.wait(1);
            assert_eq!((completion.status, completion.length), (0, 100));
            assert_eq!(completion.imm, 7);
            assert!(completion.flags.unsolicited);
        } else {
            peers.ends(&write, CompStatus::RemoteFeatureMismatch);
            assert_eq!(peers.poll(1), None, "{has:?}");
        }
    }
}

/// All pages of the regions are one, which shows the bytes that were written last. If not all regions of a packet permit relaxed
/// ordering, the order is that of the addresses.
#[test]
fn relaxed_ordering() {
    const ALL: u32 = 2 * PAGE as u32;
    for (case, header) in (0..8).map(|case| (case, case / 4 * 40)) {
        let qp_type = [QpType::Srd, QpType::Ud][case / 4];
        let relaxed = [case & 1 != 0, case & 2 != 0];
        let mut peers = Peers::of(Settings::default(), qp_type, 2);
        let data = peers.content(0, 0, ALL as usize);
        peers.set(PortId(1), r#"{"relaxed_ordering":true}"#);
        let device: DeviceAttr = peers.driver(PortId(1), |driver| driver.feature().unwrap());
        assert!(device.device_caps.relaxed_ordering);
        let pages = peers.world(PortId(1), |world| vec![world.map(1); 2]);
        let [to, second] = relaxed.map(|relaxed_ordering| {
            let mut command = reg_mr(peers.qps[1].pd, 0, ALL.into());
            command.permissions = RegMrPermissions { relaxed_ordering, ..ALL_PERMISSIONS };
            peers.driver(PortId(1), |driver| Region::new(driver, pages.clone(), command))
        });
        peers.regions[1] = to;
        let check = |peers: &mut Peers, header, is_relaxed| {
            let page = PAGE as usize;
            let mut expected = data[page - header..2 * page - header].to_vec();
            if is_relaxed {
                expected[page - 256..].copy_from_slice(&data[page - 256 - header..page - header]);
            }
            assert!(peers.content(1, 0, page) == expected, "{case} {is_relaxed}");
            peers.net.fill(&peers.regions[1], 0, &vec![0; page]);
        };
        let keys = [peers.regions[1].lkey, second.lkey];
        let places = [(0, 4096, keys[0]), (PAGE, 4096, keys[1])];
        peers.net.receive(&mut peers.qps[1], &places);
        let Peers { qps, regions, .. } = &peers;
        let back = Send::read(&qps[0], &regions[1], &regions[0], ALL);
        peers.ends(&peers.message(ALL - header as u32), CompStatus::Ok);
        assert_eq!(peers.status(1), CompStatus::Ok);
        check(&mut peers, header, relaxed == [true, true]);
        if qp_type == QpType::Srd {
            peers.ends(&peers.write(ALL), CompStatus::Ok);
            check(&mut peers, 0, relaxed[0]);
            assert_eq!(peers.net.outcome(&mut peers.qps[1], &back), CompStatus::Ok);
            check(&mut peers, 0, relaxed[0]);
        }
    }
}

#[test]
fn datagrams_that_cannot_be_delivered_are_dropped() {
    let mut peers = Peers::of(Settings::default(), QpType::Ud, 1);
    // No receive work request, then the wrong Q_Key, then the wrong queue pair.
    let send = peers.message(10);
    peers.ends(&send, CompStatus::Ok);
    peers.ready(100);
    let (mut wrong_key, mut wrong_number) = (send.clone(), send);
    (wrong_key.qkey, wrong_number.peer_qp) = (Some(QKEY + 1), 200);
    peers.ends(&wrong_key, CompStatus::Ok);
    peers.ends(&wrong_number, CompStatus::Ok);
    assert_eq!(peers.poll(1), None);
    let stats: BasicStats = statistics(&mut peers, 1);
    assert_eq!((stats.rx_drops, stats.qkey_viol, stats.rx_pkts), (3, 1, 0));
}

#[test]
fn datagrams_in_flight_are_bounded_however_short() {
    // Limit on datagrams in flight: 8 MiB, of which each takes 512 bytes besides its payload.
    const MOST: u64 = (8 << 20) / 512;
    for length in [0, 1] {
        let mut peers = Peers::of(delay(5e6), QpType::Ud, 1);
        peers.ready(100);
        let send = peers.message(length);
        for _ in 0..MOST / u64::from(DEPTH) + 10 {
            for _ in 0..DEPTH {
                peers.put(&send);
            }
            peers.ring();
            peers.run();
            // Lost datagrams complete with success, too.
            let ended = peers.polled(0);
            assert!(ended.len() == usize::from(DEPTH) && ended.iter().all(|it| it.1 == CompStatus::Ok));
        }
        let most = carried(&peers);
        assert!((MOST - 100..=MOST).contains(&most), "{most}");
        // Delivered datagrams make room for others.
        peers.run_for(Duration::from_secs(6));
        assert_eq!(u32::from(peers.wait(1).length), 40 + length);
        peers.post(&send);
        peers.run();
        assert_eq!(carried(&peers), most + 1);
    }
}

#[test]
fn completions_name_unknown_peers_by_address() {
    let mut peers = Peers::new(Settings::default());
    peers.net.destroy_handle(&peers.qps[1]);
    peers.ready(100);
    peers.post(&peers.message(10));
    let completion = peers.wait(1);
    assert_eq!(completion.ah, UNKNOWN_AH);
    assert_eq!(completion.extension, peers.address(PortId(0)));
}

#[test]
fn a_device_sends_to_itself() {
    let mut net = Net::new(&[Profile::Efa2], Settings::default());
    let qps = net.pair([0, 0], [Shape::new(QpType::Srd, 64); 2]);
    let regions = [0, 1].map(|at: usize| net.region(&qps[at], 20, 0));
    let mut peers = Peers { net, qps, regions };
    let bytes = pattern(80_000, 2);
    peers.fill(0, &bytes);
    peers.ends(&peers.write(80_000), CompStatus::Ok);
    assert_eq!(peers.content(1, 0, 80_000), bytes);
}

/// Events of a completion queue: a program arms it with the number of completions that it has consumed.
#[test]
fn an_armed_queue_raises_one_event() {
    let mut net = Net::new(&[Profile::Efa3; 2], Settings::default());
    let mut shapes = [Shape::new(QpType::Srd, 64); 2];
    shapes[1].caps_1.interrupt_mode_enabled = true;
    // Returns the number of interrupts of the event queue since the last call, and arms it.
    let interrupts = |net: &mut Net| {
        net.driver(PortId(1), |driver| {
            let before = driver.world.take_interrupts();
            let doorbell = EqDb { eqn: 1, arm: true };
            driver.write(Register::EqDb, doorbell.into_raw());
            let raised = [before, driver.world.take_interrupts()].concat();
            raised.iter().filter(|vector| **vector == 1).count()
        })
    };
    let attributes = net.driver(PortId(1), |driver| {
        let create = create_eq(driver.world.map(1));
        assert_eq!(driver.execute(&create).unwrap().eqn, 1);
        driver.feature::<QueueAttr1>().unwrap()
    });
    interrupts(&mut net);
    let mut peers = Peers::on(net, shapes, [(1, 0); 2]);
    // Doorbells of completion queues follow two for each of all queue pairs, in the pages of a user access region.
    let [qps, cqs] = [attributes.max_qp, attributes.max_cq].map(u64::from);
    let size = ((2 * qps + cqs) * 8).next_multiple_of(PAGE);
    let Cq { uar, idx, .. } = peers.qps[1].cq;
    let doorbell = u64::from(uar - 1) * size + (2 * qps + u64::from(idx) - 1) * 8;
    let arm = |peers: &mut Peers, consumer_index: u16| {
        let value = CqDb { consumer_index, cmd_sn: 0, arm: true };
        peers.doorbell(PortId(1), doorbell, value.into_raw());
    };
    let exchange = |peers: &mut Peers| {
        peers.ready(100);
        peers.ends(&peers.message(10), CompStatus::Ok);
    };
    for (what, exchanges_before, arms, exchanges_after, raised) in [
        ("not armed", 1, None, 0, 0),
        ("armed with an unconsumed completion", 0, Some(0), 0, 1),
        ("armed without an unconsumed completion", 0, Some(1), 0, 0),
        ("with the next completion", 0, None, 1, 1),
        ("armed with an announced completion", 0, Some(1), 0, 0),
        ("with the next completion again", 0, None, 1, 1),
        ("armed with one that is not announced", 1, Some(1), 0, 1),
    ] {
        (0..exchanges_before).for_each(|_| exchange(&mut peers));
        arms.into_iter().for_each(|consumed| arm(&mut peers, consumed));
        (0..exchanges_after).for_each(|_| exchange(&mut peers));
        assert_eq!(interrupts(&mut peers), raised, "{what}");
    }
    assert_eq!(peers.protocol_errors(), 0);
    // More unconsumed completions than entries, by the consumer index.
    (4..2 * DEPTH + 1).for_each(|_| exchange(&mut peers));
    for overflows in [0, 1] {
        arm(&mut peers, 1);
        let errors = peers.state(PortId(1)).program_errors;
        assert_eq!(errors.cq_overflows, overflows);
        exchange(&mut peers);
    }
    let line =
        "program error: cq 1 has 128 entries and overflows: 129 completions, by the consumer index of its doorbell";
    assert!(peers.world(PortId(1), |world| world.traced(&[line])));
}

#[test]
fn statistics_count() {
    let mut peers = Peers::of(Settings::default(), QpType::Srd, 10);
    peers.ready(100);
    for send in [peers.message(60), peers.write(20_000), peers.read(30_000)] {
        peers.ends(&send, CompStatus::Ok);
    }
    // One message, three packets of the write, one read request; and the read's four packets.
    for (port, [sent, received]) in [[20_060, 30_000], [30_000, 20_060]].into_iter().enumerate() {
        let basic: BasicStats = statistics(&mut peers, port);
        assert_eq!((basic.tx_bytes, basic.rx_bytes), (sent, received));
        let packets = [5, 4];
        assert_eq!(basic.tx_pkts, packets[port]);
        assert_eq!(basic.rx_pkts, packets[1 - port]);
    }
    let messages = [0, 1].map(|port| statistics::<MessagesStats>(&mut peers, port));
    assert_eq!((messages[0].send_wrs, messages[0].send_bytes), (1, 60));
    assert_eq!((messages[1].recv_wrs, messages[1].recv_bytes), (1, 60));
    let reads = [0, 1].map(|port| statistics::<RdmaReadStats>(&mut peers, port));
    assert_eq!((reads[0].read_wrs, reads[0].read_bytes), (1, 30_000));
    assert_eq!(reads[1].read_resp_bytes, 30_000);
    let writes = [0, 1].map(|port| statistics::<RdmaWriteStats>(&mut peers, port));
    assert_eq!((writes[0].write_wrs, writes[0].write_bytes), (1, 20_000));
    assert_eq!(writes[1].write_recv_bytes, 20_000);
}

#[test]
fn packets_are_batched_where_none_can_be_late_or_lost() {
    const PACKETS: u32 = 200;
    for (settings, acknowledgements) in [
        ("{}", 2),
        (r#"{"path":[{}]}"#, 2),
        (r#"{"delay_us":1.0}"#, PACKETS),
        (r#"{"jitter_us":1.0}"#, PACKETS),
        (r#"{"loss":1e-9}"#, PACKETS),
        (r#"{"flip":1e-9}"#, PACKETS),
        (r#"{"link_gbps":1e3}"#, PACKETS),
        (r#"{"path":[{"delay_us":1.0}]}"#, PACKETS),
        (r#"{"path":[{"loss":1e-9}]}"#, PACKETS),
    ] {
        let mut peers = Peers::of(network(settings), QpType::Srd, 500);
        let mtu = peers.driver(PortId(0), |driver| driver.device.mtu());
        peers.ends(&peers.write(PACKETS * mtu), CompStatus::Ok);
        let carried = carried(&peers) as u32;
        assert_eq!(carried, PACKETS + acknowledgements, "{settings}");
        let [a, b] = [0, 1].map(|port| statistics::<BasicStats>(&mut peers, port));
        let packets = [a.tx_pkts, b.rx_pkts].map(|count| count as u32);
        assert_eq!(packets, [PACKETS; 2], "{settings}");
    }
}
