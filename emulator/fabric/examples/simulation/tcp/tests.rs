// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Flows, with and without losses.

use super::*;
use crate::traffic::completion_times;

fn network(buffer_kib: u32) -> Settings {
    Settings {
        paths: 2,
        delay_us: 5.0,
        link_gbps: 100.0,
        path_gbps: 100.0,
        buffer_kib,
        ..Settings::default()
    }
}

/// Returns the completion times of flows to one host, and the numbers of timeouts and retransmissions.
fn incast(buffer_kib: u32, flows: usize, length: u32) -> (Vec<Duration>, u64, u64) {
    let flows: Vec<_> = (1..=flows)
        .map(|from| Flow::once(from, 0, length))
        .collect();
    let mut tcp = Tcp::new(&network(buffer_kib), 1, flows.len() + 1, &flows);
    let arrived = tcp.run(Duration::from_secs(100));
    let bytes: u64 = arrived.iter().map(|arrived| arrived.bytes).sum();
    assert_eq!(bytes, flows.len() as u64 * u64::from(length));
    let times = completion_times(&flows, &arrived);
    (times, tcp.timeouts, tcp.retransmissions)
}

#[test]
fn one_flow_starts_slowly_and_fills_the_link() {
    let (times, timeouts, again) = incast(2048, 1, 10 << 20);
    let ideal = f64::from(10 << 20) / 8928.0 * 9028.0 * 8.0 / 100e9;
    let ratio = times[0].as_secs_f64() / ideal;
    assert!((1.0..1.05).contains(&ratio), "{ratio}");
    assert_eq!((timeouts, again), (0, 0));
    // A window of 10 packets, then one of 20, and the rest.
    let (times, ..) = incast(2048, 1, 40 * MSS);
    let round_trip = Duration::from_micros(12);
    assert!(
        (2 * round_trip..4 * round_trip).contains(&times[0]),
        "{times:?}"
    );
}

#[test]
fn a_loss_before_other_packets_needs_no_timeout() {
    let (times, timeouts, again) = incast(600, 2, 8 << 20);
    assert_eq!(timeouts, 0);
    assert!(again > 0);
    assert!(
        times[0].max(times[1]) < Duration::from_millis(3),
        "{times:?}"
    );
}

#[test]
fn a_loss_at_the_end_takes_a_timeout() {
    let (times, timeouts, _) = incast(200, 16, 10 * MSS);
    assert!(timeouts > 0);
    let last = times.iter().max().unwrap();
    assert!((MIN_TIMEOUT..4 * MIN_TIMEOUT).contains(last), "{last:?}");
}
