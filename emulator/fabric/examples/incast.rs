// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How long flows take that all go to one receiver, compared with what each would take with its fair share of the link.
//!
//! Time is that of the model, so the figures are those of the network and the transport, on whatever machine. Prints JSON:
//! a list with an object for each number of flows, with and without multipath.

#[path = "../tests/net/mod.rs"]
mod net;

use efa_fabric::Settings;
use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_model::Profile;
use net::{Net, Send};

/// Rate of each device's link, in Gbit/s.
const LINK_GBPS: f64 = 100.0;

/// Bytes that each flow sends.
const LENGTH: u32 = 1 << 20;

/// Bytes of a packet, and what it takes on the wire.
const PACKET: f64 = 8928.0;
const WIRE: f64 = 9028.0;

/// A network of which all paths together have twice the rate of a link.
fn settings(multipath: bool) -> Settings {
    Settings {
        paths: 8,
        multipath,
        delay_us: 5.0,
        link_gbps: LINK_GBPS,
        path_gbps: LINK_GBPS / 4.0,
        buffer_kib: 2048,
        ..Settings::default()
    }
}

/// Completion times of flows that start at once, in µs, in ascending order.
fn completion_times(flows: usize, multipath: bool, seed: u64) -> Vec<f64> {
    let mut net = Net::with_seed(&vec![Profile::Efa2; flows + 1], settings(multipath), seed);
    let pages = u64::from(LENGTH).div_ceil(4096);
    let mut senders = Vec::new();
    for port in 1..=flows {
        let mut from = net.narrow_qp(port, QpType::Srd);
        let mut to = net.narrow_qp(0, QpType::Srd);
        net.introduce(&mut from, &mut to);
        let (source, target) = (net.region(&from, pages, 0), net.region(&to, pages, 0));
        senders.push((from, Send::write(&to, &source, &target, LENGTH)));
    }
    let start = net.now;
    for (from, send) in &mut senders {
        net.post(from, send);
    }
    let mut times = Vec::new();
    while times.len() < flows {
        let due = net.run().expect("something is on its way");
        for (from, _) in &mut senders {
            if let Some(completion) = net.poll(from) {
                assert_eq!(completion.status, u8::from(CompStatus::Ok));
                times.push((net.now - start).as_secs_f64() * 1e6);
            }
        }
        net.now = net.now.max(due);
    }
    times
}

fn main() {
    const SEEDS: u64 = 3;
    let mut rows = Vec::new();
    for flows in [2, 4, 8, 16, 32, 48] {
        let ideal = f64::from(LENGTH) / PACKET * WIRE * 8.0 * flows as f64 / (LINK_GBPS * 1e3);
        for multipath in [true, false] {
            let mut times: Vec<_> = (1..=SEEDS)
                .flat_map(|seed| completion_times(flows, multipath, seed))
                .collect();
            times.sort_by(f64::total_cmp);
            rows.push(format!(
                "  {{\"flows\": {flows}, \"multipath\": {multipath}, \"ideal_us\": {ideal:.1}, \
                 \"median\": {:.3}, \"max\": {:.3}}}",
                times[times.len() / 2] / ideal,
                times[times.len() - 1] / ideal
            ));
        }
    }
    println!("[\n{}\n]", rows.join(",\n"));
}
