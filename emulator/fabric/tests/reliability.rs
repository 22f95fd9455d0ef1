// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Each message arrives once and whole, on networks of all kinds.

use std::{collections::BTreeSet, time::Duration};

use efa_fabric::{Denied, PathSettings, Settings};
use efa_hw::{
    admin::qp::{QpState, QpType},
    io::CompStatus,
    stats::NetworkStats,
};
use efa_model::Overrides;
use efa_testing::net::{DEPTH, Net, Qp, Send, networks, pattern};
use proptest::prelude::*;

#[test]
fn each_message_arrives_once() {
    for (name, settings) in networks() {
        let (mut net, mut a, mut b) = Net::pair(settings.clone());
        let arrived = exchange_in_rounds(&mut net, &mut a, &mut b, 1000);
        let distinct: BTreeSet<_> = arrived.iter().collect();
        assert_eq!((arrived.len(), distinct.len()), (1000, 1000), "{name}");
        let in_order = arrived.is_sorted();
        assert_eq!(in_order, name == "a network with delay only", "{name}");
        let stats: NetworkStats = net.driver(a.port, |driver| driver.statistics().unwrap());
        let lossy = settings.loss > 0.0 || !settings.path.is_empty();
        assert_eq!(stats.retrans_pkts > 0, lossy, "{name}: {stats:?}");
        assert_eq!(net.protocol_errors(), 0, "{name}");
    }
}

/// Exchanges messages in rounds of a quarter of the queue, so that a slot of memory is reused only when it is free.
fn exchange_in_rounds(net: &mut Net, a: &mut Qp, b: &mut Qp, count: u32) -> Vec<u32> {
    let (from, to) = (net.region(a, 1, 0), net.region(b, 1, 0));
    let round = u32::from(DEPTH) / 4;
    let mut arrived = Vec::new();
    for first in (0..count).step_by(round as usize) {
        let numbers = first..(first + round).min(count);
        for number in numbers.clone() {
            let slot = u64::from(number % round) * 32;
            net.receive(b, &[(to.iova + slot, 32, to.lkey)]);
            net.fill(&from, slot, &pattern(32, number.into()));
            let mut send = Send::message(b, &from, 32);
            send.buffers[0].0 += slot;
            send.immediate = Some(number);
            net.post(a, &send);
        }
        for _ in numbers.clone() {
            assert_eq!(net.status(a), CompStatus::Ok);
        }
        for _ in numbers {
            let completion = net.wait(b);
            let slot = u64::from(u32::from(completion.req_id & 0x7fff) % round) * 32;
            assert_eq!(
                net.content(&to, slot, 32),
                pattern(32, completion.imm.into())
            );
            arrived.push(completion.imm);
        }
    }
    assert_eq!((net.poll(a), net.poll(b)), (None, None));
    arrived
}

#[test]
fn large_writes_and_reads_arrive_whole() {
    const LENGTH: u32 = 1 << 20;
    for (name, settings) in networks() {
        let (mut net, mut a, mut b) = Net::pair(settings);
        let (from, to) = (net.region(&a, 256, 0), net.region(&b, 256, 0));
        let back = net.region(&a, 256, 0);
        let bytes = pattern(LENGTH as usize, 77);
        net.fill(&from, 0, &bytes);
        net.receive(&mut b, &[(to.iova, 1, to.lkey)]);
        let mut write = Send::write(&b, &from, &to, LENGTH);
        write.immediate = Some(1);
        net.post(&mut a, &write);
        assert_eq!(net.status(&mut a), CompStatus::Ok, "{name}");
        assert_eq!(net.status(&mut b), CompStatus::Ok, "{name}");
        assert!(net.content(&to, 0, LENGTH as usize) == bytes, "{name}");
        net.post(&mut a, &Send::read(&b, &back, &to, LENGTH));
        assert_eq!(net.status(&mut a), CompStatus::Ok, "{name}");
        assert!(net.content(&back, 0, LENGTH as usize) == bytes, "{name}");
        assert_eq!((net.poll(&mut a), net.poll(&mut b)), (None, None), "{name}");
    }
}

#[test]
fn a_bit_that_the_network_flips_is_wrong() {
    let settings = Settings {
        flip: 1.0,
        ..Settings::default()
    };
    let (mut net, mut a, b) = Net::pair(settings);
    let (from, to) = (net.region(&a, 1, 0), net.region(&b, 1, 0));
    let bytes = pattern(1000, 4);
    net.fill(&from, 0, &bytes);
    net.post(&mut a, &Send::write(&b, &from, &to, 1000));
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    let wrong: u32 = net
        .content(&to, 0, 1000)
        .iter()
        .zip(&bytes)
        .map(|(got, sent)| (got ^ sent).count_ones())
        .sum();
    assert_eq!(wrong, 1);
}

#[test]
fn a_path_that_recovers_is_used_again() {
    let down = |down| Settings {
        delay_us: 20.0,
        paths: 2,
        path: vec![PathSettings {
            down,
            ..PathSettings::default()
        }],
        ..Settings::default()
    };
    let (mut net, mut a, b) = Net::pair(down(true));
    let (from, to) = (net.region(&a, 256, 0), net.region(&b, 256, 0));
    let write = Send::write(&b, &from, &to, 1 << 20);
    net.post(&mut a, &write);
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    let lost = net.fabric.paths()[0].lost;
    assert!(lost > 0);
    // The path is avoided: the next transfer uses it less often.
    net.post(&mut a, &write);
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    let lost_again = net.fabric.paths()[0].lost - lost;
    assert!(lost_again < lost, "{lost_again} of {lost}");
    net.fabric.set(down(false));
    net.run_for(Duration::from_secs(1));
    let before = net.fabric.paths()[0].packets;
    net.post(&mut a, &write);
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    assert!(net.fabric.paths()[0].packets - before > 40);
}

/// A receiver keeps the state of a connection for longer than its sender retransmits. Otherwise, a retransmission after the loss of
/// acknowledgements would be delivered twice. A pause of the program does not count.
#[test]
fn a_message_whose_acknowledgements_are_lost_arrives_once() {
    const OUTAGE: Duration = Duration::from_secs(100);
    lose_acknowledgements(400.0, |net| net.run_for(OUTAGE));
    lose_acknowledgements(2.0, |net| net.now += OUTAGE);
}

fn lose_acknowledgements(silence_s: f64, outage: impl FnOnce(&mut Net)) {
    let settings = |deny| Settings {
        silence_s,
        deny,
        delay_us: 10.0,
        ..Settings::default()
    };
    let (mut net, mut a, mut b) = Net::pair(settings(Vec::new()));
    let (source, sink) = (net.region(&a, 1, 0), net.region(&b, 1, 0));
    for _ in 0..3 {
        net.receive(&mut b, &[(sink.iova, 32, sink.lkey)]);
    }
    let send = Send::message(&b, &source, 32);
    net.post(&mut a, &send);
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    assert_eq!(net.status(&mut b), CompStatus::Ok);

    let [to, from] = [a.port, b.port].map(|port| net.address(port).into());
    let denied = |both| vec![Denied { from, to, both }];
    net.fabric.set(settings(denied(false)));
    net.post(&mut a, &send);
    assert_eq!(net.status(&mut b), CompStatus::Ok);
    net.fabric.set(settings(denied(true)));
    outage(&mut net);
    net.fabric.set(settings(Vec::new()));
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    assert_eq!((net.poll(&mut a), net.poll(&mut b)), (None, None));
}

/// The first copy of a message finds no queue pair that receives, and its sender gets an error. A second copy, which is under way by
/// then, does not arrive at a queue pair that has the number now.
#[test]
fn a_message_that_was_refused_does_not_arrive() {
    type Change = fn(&mut Net, &mut Qp);
    let changes: [[Change; 2]; 2] = [
        [
            |net, qp| net.destroy(qp),
            |net, qp| *qp = net.sibling(qp, QpType::Srd),
        ],
        [
            |net, qp| net.modify(qp, QpState::Reset),
            |net, qp| net.driver(qp.port, |driver| qp.start(driver)),
        ],
    ];
    for [end, begin] in changes {
        let (mut net, mut a, mut b) = Net::pair(Settings {
            delay_us: 1e6,
            silence_s: 100.0,
            ..Settings::default()
        });
        let (from, to) = (net.region(&a, 1, 0), net.region(&b, 1, 0));
        let reuse = Overrides {
            reuse_numbers: Some(true),
            ..Overrides::default()
        };
        net.set(b.port, reuse);
        net.post(&mut a, &Send::message(&b, &from, 32));
        let number = b.number;
        end(&mut net, &mut b);
        net.run_for(Duration::from_millis(1001));
        begin(&mut net, &mut b);
        assert_eq!(b.number, number);
        net.receive(&mut b, &[(to.iova, 32, to.lkey)]);
        assert_eq!(net.status(&mut a), CompStatus::RemoteBadDestQpn);
        net.run_for(Duration::from_secs(5));
        assert_eq!(net.poll(&mut b), None);
        let counters = net.driver(a.port, |driver| driver.device.counters());
        assert!(counters.retrans_pkts > 0);
    }
}

/// Time in which the whole program does not run, for example after SIGSTOP, is no silence of its devices.
#[test]
fn messages_survive_a_pause_of_the_program() {
    const COUNT: usize = 40;
    let (mut net, first, b) = Net::pair(Settings {
        delay_us: 100.0,
        ..Settings::default()
    });
    let (from, to) = (net.region(&first, 1, 0), net.region(&b, 1, 0));
    let second = net.sibling(&first, QpType::Srd);
    let mut qps = [first, second];
    for qp in &mut qps {
        for _ in 0..COUNT {
            net.put(qp, &Send::write(&b, &from, &to, 64));
        }
        net.ring_send(qp);
        net.run_for(Duration::from_micros(1));
    }
    // All have arrived, and acknowledgements are under way, first those of the first queue pair.
    net.run_for(Duration::from_micros(150));
    net.now += Duration::from_secs(3);
    for qp in &mut qps {
        for _ in 0..COUNT {
            assert_eq!(net.status(qp), CompStatus::Ok);
        }
    }
}

#[test]
fn without_multipath_a_connection_has_one_path() {
    let settings = Settings {
        multipath: false,
        ..Settings::default()
    };
    let (mut net, mut a, b) = Net::pair(settings);
    let (from, to) = (net.region(&a, 256, 0), net.region(&b, 256, 0));
    net.post(&mut a, &Send::write(&b, &from, &to, 1 << 20));
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    let used = net
        .fabric
        .paths()
        .iter()
        .filter(|path| path.packets > 0)
        .count();
    assert_eq!(used, 1);
}

#[test]
fn long_round_trips_are_measured() {
    for delay_us in [15e3, 200e3] {
        let slow = Settings {
            delay_us,
            ..Settings::default()
        };
        let (mut net, mut a, b) = Net::pair(slow);
        let (from, to) = (net.region(&a, 1, 0), net.region(&b, 1, 0));
        let mut again = [0; 2];
        for again in &mut again {
            net.post(&mut a, &Send::write(&b, &from, &to, 100));
            assert_eq!(net.status(&mut a), CompStatus::Ok);
            let counters = net.driver(a.port, |driver| driver.device.counters());
            *again = counters.retrans_pkts;
        }
        // Before the first measurement, the timeout is too short.
        assert!(again[0] > 0 && again[1] == again[0], "{again:?}");
    }
}

#[test]
fn queued_reads_do_not_expire() {
    const LENGTH: u32 = 512 << 10;
    // A read expires if its peer sends nothing for 10 s. All reads take 14 s, as would 128 of 16 MiB at 1.2 Gbit/s.
    let settings = Settings {
        delay_us: 20.0,
        link_gbps: 0.02,
        ..Settings::default()
    };
    let (mut net, mut a, b) = Net::pair(settings);
    let (to, from) = (net.region(&a, 128, 0), net.region(&b, 128, 0));
    let start = net.now;
    for _ in 0..DEPTH {
        net.put(&mut a, &Send::read(&b, &to, &from, LENGTH));
    }
    net.ring_send(&a);
    for _ in 0..DEPTH {
        assert_eq!(net.status(&mut a), CompStatus::Ok);
    }
    let time = net.now - start;
    assert!(time > Duration::from_secs(13), "{time:?}");
    let counters = net.driver(a.port, |driver| driver.device.counters());
    assert_eq!(counters.unresponsive_remote_events, 0);
}

/// A read that its peer has given up expires, although later reads of the queue pair are answered all the time.
#[test]
fn a_read_that_is_given_up_is_not_kept_alive_by_others() {
    const LENGTH: u32 = 1 << 20;
    let slow = Settings {
        delay_us: 1000.0,
        link_gbps: 0.02,
        ..Settings::default()
    };
    let (mut net, mut a, b) = Net::pair(slow.clone());
    let [to, from] = [&a, &b].map(|qp| net.region(qp, u64::from(LENGTH) / 4096, 0));
    let dead = net.post(&mut a, &Send::read(&b, &to, &from, LENGTH));
    net.run_for(Duration::from_millis(50));
    let [reader, responder] = [&a, &b].map(|qp| net.address(qp.port));
    net.fabric.set(Settings {
        deny: vec![Denied {
            from: responder.into(),
            to: reader.into(),
            both: false,
        }],
        ..Settings::default()
    });
    net.run_for(Duration::from_secs(6));
    assert_eq!(net.poll(&mut a), None);
    net.fabric.set(slow);
    for second in 0..30 {
        let read = net.post(&mut a, &Send::read(&b, &to, &from, 8));
        net.run_for(Duration::from_secs(1));
        while let Some(completion) = net.poll(&mut a) {
            if completion.req_id == dead {
                assert_eq!(completion.status, u8::from(CompStatus::LocalUnrespRemote));
                assert!((4..15).contains(&second), "after {second} s");
                return;
            }
            let ended = (completion.req_id, completion.status);
            assert_eq!(ended, (read, u8::from(CompStatus::Ok)));
        }
    }
    panic!("the read has not ended");
}

#[test]
fn a_queue_pair_that_is_not_ready_does_not_block_others() {
    const STALLED: u16 = 48;
    let settings = Settings {
        delay_us: 20.0,
        link_gbps: 10.0,
        ..Settings::default()
    };
    let (mut net, mut a, mut stalled) = Net::pair(settings);
    let mut ready = net.sibling(&stalled, QpType::Srd);
    // Retries are unlimited.
    net.set_rnr_retry(&a, 7);
    let (from, to) = (net.region(&a, 1, 0), net.region(&stalled, 1, 0));
    for _ in 0..STALLED {
        net.post(&mut a, &Send::message(&stalled, &from, 64));
    }
    net.run_for(Duration::from_millis(100));
    for _ in 0..200 {
        net.receive(&mut ready, &[(to.iova, 64, to.lkey)]);
        let (start, sent) = (net.now, net.post(&mut a, &Send::message(&ready, &from, 64)));
        let completion = loop {
            net.run_for(Duration::from_micros(10));
            if let Some(completion) = net.poll(&mut a) {
                break completion;
            }
            // Without the stalled queue pair it takes 50 us.
            let time = net.now - start;
            assert!(time < Duration::from_micros(200), "{time:?}");
        };
        assert_eq!((completion.req_id, completion.status), (sent, 0));
        assert_eq!(net.status(&mut ready), CompStatus::Ok);
    }
    // Nothing was lost.
    for _ in 0..STALLED {
        net.receive(&mut stalled, &[(to.iova, 64, to.lkey)]);
    }
    for _ in 0..STALLED {
        assert_eq!(net.status(&mut a), CompStatus::Ok);
        assert_eq!(net.status(&mut stalled), CompStatus::Ok);
    }
}

/// A receiver that is slower than its sender gets the oldest messages first, although it refuses them again and again.
#[test]
fn the_oldest_message_waits_no_longer_than_others() {
    const REFUSED: u32 = 8;
    let (mut net, mut a, mut b) = Net::pair(Settings {
        delay_us: 10.0,
        ..Settings::default()
    });
    let (from, to) = (net.region(&a, 1, 0), net.region(&b, 1, 0));
    let mut received = BTreeSet::new();
    for number in 0..4 * REFUSED {
        let send = Send {
            immediate: Some(number),
            ..Send::message(&b, &from, 8)
        };
        net.post(&mut a, &send);
        net.run_for(Duration::from_millis(1));
        if number >= REFUSED {
            net.receive(&mut b, &[(to.iova, 8, to.lkey)]);
            received.insert(net.wait(&mut b).imm);
        }
    }
    assert!(
        (0..REFUSED).all(|number| received.contains(&number)),
        "{received:?}"
    );
}

#[test]
fn an_idle_network_has_no_timers() {
    let (mut net, mut a, b) = Net::pair(Settings::default());
    let (from, to) = (net.region(&a, 256, 0), net.region(&b, 256, 0));
    net.post(&mut a, &Send::write(&b, &from, &to, 1 << 20));
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    // The state of the idle connection is dropped eventually.
    net.run_for(Duration::from_secs(100));
    assert_eq!(net.run(), None);
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
        let settings = Settings {
            loss, jitter_us, delay_us, paths, multipath, link_gbps,
            ..Settings::default()
        };
        let (mut net, mut a, mut b) = Net::pair(settings);
        let (from, to) = (net.region(&a, 50, 0), net.region(&b, 50, 0));
        let bytes = pattern(length as usize, length.into());
        net.fill(&from, 0, &bytes);
        net.receive(&mut b, &[(to.iova, 1, to.lkey)]);
        let mut write = Send::write(&b, &from, &to, length);
        write.immediate = Some(length);
        net.post(&mut a, &write);
        prop_assert_eq!(net.status(&mut a), CompStatus::Ok);
        prop_assert_eq!(net.wait(&mut b).imm, length);
        prop_assert!(net.content(&to, 0, length as usize) == bytes);
        prop_assert_eq!((net.poll(&mut a), net.poll(&mut b)), (None, None));
    }
}

#[test]
fn a_realistic_network_reorders_and_loses_nothing() {
    let (mut net, mut a, mut b) = Net::pair(Settings::named("realistic").unwrap());
    let (from, to) = (net.region(&a, 1, 0), net.region(&b, 1, 0));
    let numbers: Vec<_> = (0..60).collect();
    for number in &numbers {
        net.receive(&mut b, &[(to.iova, 64, to.lkey)]);
        let send = Send {
            immediate: Some(*number),
            ..Send::message(&b, &from, 64)
        };
        net.put(&mut a, &send);
    }
    net.ring_send(&a);
    let mut received: Vec<_> = numbers.iter().map(|_| net.wait(&mut b).imm).collect();
    assert_ne!(received, numbers);
    received.sort_unstable();
    assert_eq!(received, numbers);
    let counters = net.driver(a.port, |driver| driver.device.counters());
    assert_eq!(counters.retrans_pkts, 0);
}
