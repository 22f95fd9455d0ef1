// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Each message arrives once and whole, on networks of all kinds.

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Returns the number of packets that the first device has sent again.
fn retransmitted(peers: &mut Peers) -> u64 {
    let counters = peers.driver(PortId(0), |driver| driver.device.counters());
    counters.retrans_pkts
}

#[test]
fn each_message_arrives_once() {
    let realistic = ("realistic", Settings::named("realistic").unwrap());
    for (name, settings) in networks().into_iter().chain([realistic]) {
        let mut peers = Peers::of(settings.clone(), QpType::Srd, 1);
        let mut arrived = Vec::new();
        // In rounds of a quarter of the queue, so that a slot of memory is reused only when it is free.
        let round = u32::from(DEPTH) / 4;
        for number in 0..1008 {
            let slot = u64::from(number % round) * 32;
            peers.receive(&[(slot, 20), (slot + 20, 12)]);
            peers.net.fill(&peers.regions[0], slot, &pattern(32, number.into()));
            let mut send = peers.message(32);
            (send.buffers[0].0, send.immediate) = (send.buffers[0].0 + slot, Some(number));
            peers.post(&send);
            if number % round < round - 1 {
                continue;
            }
            for _ in 0..round {
                assert_eq!(peers.status(0), OK);
                let completion = peers.wait(1);
                let slot = u64::from(u32::from(completion.req_id & 0x7fff) / 2 % round) * 32;
                let expected = pattern(32, completion.imm.into());
                assert_eq!(peers.content(1, slot, 32), expected);
                arrived.push(completion.imm);
            }
        }
        assert_eq!((peers.poll(0), peers.poll(1)), (None, None));
        let distinct: BTreeSet<_> = arrived.iter().collect();
        assert_eq!((arrived.len(), distinct.len()), (1008, 1008), "{name}");
        let in_order = arrived.is_sorted();
        assert_eq!(in_order, name == "a network with delay only", "{name}");
        let lossy = settings.loss > 0.0 || settings.is_down(0);
        assert_eq!(retransmitted(&mut peers) > 0, lossy, "{name}");
        assert_eq!(peers.protocol_errors(), 0, "{name}");
    }
}

/// Asserts that a write with immediate data and a read arrive whole.
fn carries(settings: Settings, length: u32, name: &str) {
    let mut peers = Peers::of(settings, QpType::Srd, 256);
    let bytes = peers.content(0, 0, length as usize);
    peers.ready(1);
    let mut write = peers.write(length);
    write.immediate = Some(length);
    assert_eq!(peers.outcome(&write), OK, "{name}");
    assert_eq!(peers.wait(1).imm, length, "{name}");
    assert!(peers.content(1, 0, bytes.len()) == bytes, "{name}");
    peers.fill(0, &vec![0; bytes.len()]);
    assert_eq!(peers.outcome(&peers.read(length)), OK, "{name}");
    assert!(peers.content(0, 0, bytes.len()) == bytes, "{name}");
    assert_eq!((peers.poll(0), peers.poll(1)), (None, None), "{name}");
}

#[test]
fn large_writes_and_reads_arrive_whole() {
    for (name, settings) in networks() {
        carries(settings, 1 << 20, name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn any_network_carries_all(
        loss in 0.0..0.3,
        jitter_us in 0.0..500.0,
        delay_us in 0.0..100.0,
        paths in 1_u16..8,
        multipath: bool,
        link_gbps in prop_oneof![Just(0.0), 0.5..100.0],
        length in 0_u32..100_000,
    ) {
        let settings = Settings { loss, jitter_us, delay_us, paths, multipath, link_gbps, ..Settings::default() };
        carries(settings, length, "");
    }
}

#[test]
fn a_bit_that_the_network_flips_is_wrong() {
    let mut peers = Peers::new(network(r#"{"flip":1.0}"#));
    peers.ends(&peers.write(1000), OK);
    let (sent, got) = (peers.content(0, 0, 1000), peers.content(1, 0, 1000));
    let wrong = got.iter().zip(&sent).map(|(got, sent)| (got ^ sent).count_ones());
    assert_eq!(wrong.sum::<u32>(), 1);
}

#[test]
fn a_path_that_recovers_is_used_again() {
    let settings = |down| {
        let settings = format!(r#"{{"delay_us":20.0,"paths":2,"path":[{{"down":{down}}}]}}"#);
        network(&settings)
    };
    let mut peers = Peers::of(settings(true), QpType::Srd, 256);
    let write = peers.write(1 << 20);
    // The path is avoided: the next transfer uses it less often.
    let lost = [(); 2].map(|()| {
        peers.ends(&write, OK);
        peers.fabric.paths()[0].lost
    });
    assert!(lost[0] > 0 && lost[1] < 2 * lost[0], "{lost:?}");
    peers.fabric.set(settings(false));
    peers.run_for(SECOND);
    let before = peers.fabric.paths()[0].packets;
    peers.ends(&write, OK);
    assert!(peers.fabric.paths()[0].packets - before > 40);
}

/// A receiver keeps the state of a connection for longer than its sender retransmits. Otherwise, a retransmission after the loss of
/// acknowledgements would be delivered twice. A pause of the program does not count.
#[test]
fn a_message_whose_acknowledgements_are_lost_arrives_once() {
    for (silence_s, runs) in [(400.0, true), (2.0, false)] {
        let settings = Settings { silence_s, ..delay(10.0) };
        let mut peers = Peers::new(settings.clone());
        [32; 3].map(|length| peers.ready(length));
        let send = peers.message(32);
        peers.ends(&send, OK);
        let one_way = denying(&settings, &mut peers, 1, false);
        let both_ways = denying(&settings, &mut peers, 1, true);
        peers.fabric.set(one_way);
        peers.post(&send);
        assert_eq!([(); 2].map(|()| peers.status(1)), [OK; 2]);
        peers.fabric.set(both_ways);
        match runs {
            true => peers.run_for(100 * SECOND),
            false => peers.now += 100 * SECOND,
        }
        peers.fabric.set(settings);
        assert_eq!(peers.status(0), OK);
        assert_eq!((peers.poll(0), peers.poll(1)), (None, None));
    }
}

/// The first copy of a message finds no queue pair that receives, and its sender gets an error. A second copy, which is under way by
/// then, does not arrive at a queue pair that has the number now.
#[test]
fn a_message_that_was_refused_does_not_arrive() {
    for destroyed in [true, false] {
        let mut peers = Peers::new(network(r#"{"delay_us":1e6,"silence_s":100.0}"#));
        peers.set(PortId(1), r#"{"reuse_numbers":true}"#);
        peers.post(&peers.message(32));
        let number = peers.qps[1].number;
        match destroyed {
            true => peers.net.destroy(&peers.qps[1]),
            false => peers.modify(1, QpState::Reset),
        }
        peers.run_for(1001 * MS);
        match destroyed {
            true => peers.qps[1] = peers.net.sibling(&peers.qps[1], QpType::Srd),
            false => peers.start(1),
        }
        assert_eq!(peers.qps[1].number, number);
        peers.ready(32);
        assert_eq!(peers.status(0), CompStatus::RemoteBadDestQpn);
        peers.run_for(5 * SECOND);
        assert_eq!(peers.poll(1), None);
        assert!(retransmitted(&mut peers) > 0);
    }
}

/// Time in which the whole program does not run, for example after SIGSTOP, is no silence of its devices.
#[test]
fn messages_survive_a_pause_of_the_program() {
    const COUNT: usize = 40;
    let mut peers = Peers::new(delay(100.0));
    let second = peers.net.sibling(&peers.qps[0], QpType::Srd);
    let write = peers.write(64);
    let mut qps = [peers.qps[0].clone(), second];
    for qp in &mut qps {
        for _ in 0..COUNT {
            peers.net.put(qp, &write);
        }
        peers.net.ring_send(qp);
        peers.run_for(Duration::from_micros(1));
    }
    // All have arrived, and acknowledgements are under way, first those of the first queue pair.
    peers.run_for(Duration::from_micros(150));
    peers.now += 3 * SECOND;
    for qp in &mut qps {
        assert!((0..COUNT).all(|_| peers.net.status(qp) == OK));
    }
}

#[test]
fn without_multipath_a_connection_has_one_path() {
    let mut peers = Peers::of(network(r#"{"multipath":false}"#), QpType::Srd, 256);
    peers.ends(&peers.write(1 << 20), OK);
    let paths = peers.fabric.paths();
    assert_eq!(paths.iter().filter(|path| path.packets > 0).count(), 1);
    // The state of the idle connection is dropped eventually.
    peers.run_for(100 * SECOND);
    assert_eq!(peers.run(), None);
}

#[test]
fn long_round_trips_are_measured() {
    for delay_us in [15e3, 200e3] {
        let mut peers = Peers::new(delay(delay_us));
        let again = [(); 2].map(|()| {
            peers.ends(&peers.write(100), OK);
            retransmitted(&mut peers)
        });
        // Before the first measurement, the timeout is too short.
        assert!(again[0] > 0 && again[1] == again[0], "{again:?}");
    }
}

#[test]
fn queued_reads_do_not_expire() {
    // A read expires if its peer sends nothing for 10 s. All reads take 14 s, as would 128 of 16 MiB at 1.2 Gbit/s.
    let settings = network(r#"{"delay_us":20.0,"link_gbps":0.02}"#);
    let mut peers = Peers::of(settings, QpType::Srd, 128);
    let start = peers.now;
    for _ in 0..DEPTH {
        peers.put(&peers.read(512 << 10));
    }
    peers.ring();
    assert!((0..DEPTH).all(|_| peers.status(0) == OK));
    let time = peers.now - start;
    assert!(time > 13 * SECOND, "{time:?}");
    let counters = peers.driver(PortId(0), |driver| driver.device.counters());
    assert_eq!(counters.unresponsive_remote_events, 0);
}

/// A read that its peer has given up expires, although later reads of the queue pair are answered all the time.
#[test]
fn a_read_that_is_given_up_is_not_kept_alive_by_others() {
    let slow = network(r#"{"delay_us":1000.0,"link_gbps":0.02}"#);
    let mut peers = Peers::of(slow.clone(), QpType::Srd, 256);
    let dead = peers.post(&peers.read(1 << 20));
    peers.run_for(50 * MS);
    let silent = denying(&Settings::default(), &mut peers, 1, false);
    peers.fabric.set(silent);
    peers.run_for(6 * SECOND);
    assert_eq!(peers.poll(0), None);
    peers.fabric.set(slow);
    let mut ended = vec![];
    let ends = (0..30).find(|_| {
        let read = peers.post(&peers.read(8));
        peers.run_for(SECOND);
        ended = peers.polled(0);
        ended.retain(|it| *it != (read, OK));
        !ended.is_empty()
    });
    assert!(ends.is_some_and(|second| (4..15).contains(&second)), "after {ends:?} s");
    assert_eq!(ended, [(dead, CompStatus::LocalUnrespRemote)]);
}

#[test]
fn a_queue_pair_that_is_not_ready_does_not_block_others() {
    const STALLED: u16 = 48;
    let mut peers = Peers::new(network(r#"{"delay_us":20.0,"link_gbps":10.0}"#));
    let mut ready = peers.net.sibling(&peers.qps[1], QpType::Srd);
    let to_ready = Send::message(&ready, &peers.regions[0], 64);
    let place = (peers.regions[1].iova, 64, peers.regions[1].lkey);
    // Retries are unlimited.
    for _ in 0..STALLED {
        peers.post(&peers.message(64));
    }
    peers.run_for(100 * MS);
    for _ in 0..200 {
        peers.net.receive(&mut ready, &[place]);
        let sent = peers.post(&to_ready);
        // Without the stalled queue pair it takes 50 us.
        let ended = (0..20).find_map(|_| {
            peers.run_for(Duration::from_micros(10));
            peers.poll(0)
        });
        let ended = ended.map(|it| (it.req_id, it.status));
        assert_eq!(ended, Some((sent, 0)));
        assert_eq!(peers.net.status(&mut ready), OK);
    }
    // Nothing was lost.
    for _ in 0..STALLED {
        peers.ready(64);
    }
    assert!((0..STALLED).all(|_| [0, 1].map(|at| peers.status(at)) == [OK; 2]));
}

/// A receiver that is slower than its sender gets the oldest messages first, although it refuses them again and again.
#[test]
fn the_oldest_message_waits_no_longer_than_others() {
    const REFUSED: u32 = 8;
    let mut peers = Peers::new(delay(10.0));
    let mut received = BTreeSet::new();
    for number in 0..4 * REFUSED {
        let mut send = peers.message(8);
        send.immediate = Some(number);
        peers.post(&send);
        peers.run_for(MS);
        if number >= REFUSED {
            peers.ready(8);
            received.insert(peers.wait(1).imm);
        }
    }
    assert!((0..REFUSED).all(|number| received.contains(&number)), "{received:?}");
}
