// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Each message arrives once: many messages on a network with all faults.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use efa_fabric::{PathSettings, Settings};
use efa_hw::{io::CompStatus, stats::NetworkStats};
use efa_testing::{
    net::Peers,
    qp::{DEPTH, Send, status},
    region::ALL_PERMISSIONS,
};
use serde_json::{Value, json};

use crate::{cpu_seconds, peak_mib};

/// Number of paths. Each dies once, and at that time, all lose each packet for a while.
const DEATHS: u32 = 8;

/// Sends `messages` messages. Packets are lost, duplicated and reordered. Paths die. Panics if a message arrives twice.
pub(crate) fn once(messages: u32) -> Value {
    let begun = Instant::now();
    let mut settings = Settings {
        paths: DEATHS as u16,
        delay_us: 5.0,
        jitter_us: 20.0,
        loss: 0.01,
        duplicate: 0.01,
        ..Settings::default()
    };
    let Peers { mut net, qps: [mut from, mut to], .. } = Peers::new(settings.clone());
    for port in [from.port, to.port] {
        net.world(port, |world| world.is_blank = true);
    }
    let region = net.physical_region(&to, 1 << 40, 64, ALL_PERMISSIONS);
    let buffer = [(region.iova, 64, region.lkey)];
    let (mut posted, mut completed, mut receives) = (0, 0, 0);
    // All lower numbers have arrived, and these.
    let (mut floor, mut above) = (0, BTreeSet::new());
    let mut dead: u32 = 0;
    while floor < messages {
        if dead < DEATHS && posted >= messages / DEATHS * dead {
            settings.path = vec![PathSettings::default(); DEATHS as usize];
            settings.path[dead as usize].down = true;
            dead += 1;
            let mut outage = settings.clone();
            outage.loss = 1.0;
            net.fabric.set(outage);
            net.run_for(Duration::from_millis(300));
            net.fabric.set(settings.clone());
        }
        net.driver(to.port, |driver| {
            while receives < DEPTH {
                to.put_receives(&driver.world, &buffer);
                receives += 1;
            }
            to.ring_receive(driver);
        });
        while posted < messages && posted - completed < u32::from(DEPTH) {
            let send = Send { immediate: Some(posted), peer_qp: to.number, ..Send::default() };
            net.put(&mut from, &send);
            posted += 1;
        }
        net.ring_send(&from);
        net.run_for(Duration::from_micros(50));
        while let Some(completion) = net.poll(&mut from) {
            assert_eq!(status(&completion), CompStatus::Ok);
            completed += 1;
        }
        while let Some(completion) = net.poll(&mut to) {
            let number = completion.imm;
            let is_new = (floor..messages).contains(&number) && above.insert(number);
            assert!(is_new, "message {number} arrived twice");
            receives -= 1;
            while above.remove(&floor) {
                floor += 1;
            }
        }
    }
    // Late packets.
    net.run_for(Duration::from_secs(1));
    assert!(net.poll(&mut to).is_none(), "a message arrived twice");
    let paths = net.fabric.paths();
    let stats: NetworkStats = net.driver(from.port, |driver| driver.statistics().unwrap());
    let seconds = begun.elapsed().as_secs_f64();
    json!({
        "messages": messages,
        "packets": paths.iter().map(|path| path.packets).sum::<u64>(),
        "lost": paths.iter().map(|path| path.lost).sum::<u64>(),
        "sent_again": stats.retrans_pkts,
        "deaths": dead,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds(),
        "messages_per_second": (f64::from(messages) / seconds).round(),
        "peak_mib": peak_mib(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_duplicates_packets() {
        let mut peers = Peers::new(Settings { delay_us: 5.0, duplicate: 1.0, ..Settings::default() });
        let write = Send::write(&peers.qps[1], &peers.regions[0], &peers.regions[1], 100);
        let Peers { net, qps, .. } = &mut peers;
        assert_eq!(net.outcome(&mut qps[0], &write), CompStatus::Ok);
        // Two packets, and an acknowledgement of each.
        let packets = net.fabric.paths().into_iter().map(|path| path.packets);
        assert_eq!(packets.sum::<u64>(), 4);
    }

    #[test]
    fn each_message_arrives_once() {
        let results = once(2000);
        assert_eq!(results["deaths"], DEATHS);
        assert!(results["lost"].as_u64() > Some(100), "{results}");
    }
}
