// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Networks on which tests run, and the number of packets that arrive at devices.

use std::sync::atomic::{AtomicUsize, Ordering};

use efa_fabric::{PortId, Record, Settings, Tap};

/// Returns settings, given as JSON.
pub fn network(settings: &str) -> Settings {
    serde_json::from_str(settings).expect(settings)
}

/// Returns a network with a delay in microseconds.
pub fn delay(delay_us: f64) -> Settings {
    Settings { delay_us, ..Settings::default() }
}

/// Returns networks with their names: with delay only, losses in bursts, reordering, both and duplicates, a path that is down, and slow links.
pub fn networks() -> [(&'static str, Settings); 6] {
    [
        ("a network with delay only", ""),
        ("a network with bursts of losses", r#","loss":0.1,"burst":4.0"#),
        ("a network with reordering", r#","jitter_us":200.0,"path":[{"swing_us":100.0,"swing_ms":5.0}]"#),
        ("a network with loss and reordering", r#","loss":0.05,"duplicate":0.1,"jitter_us":500.0"#),
        ("a network with a path that is down", r#","path":[{"down":true}]"#),
        (
            "a network with slow links and short buffers",
            r#","link_gbps":1.0,"path_gbps":0.5,"buffer_kib":40,"loss":0.01,"jitter_us":50.0"#,
        ),
    ]
    .map(|(name, more)| (name, network(&format!(r#"{{"delay_us":20.0{more}}}"#))))
}

/// Counts packets that arrive at devices.
#[derive(Debug, Default)]
pub struct Arrivals(AtomicUsize);

impl Arrivals {
    /// Returns the number of packets since the last call.
    pub fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Tap for Arrivals {
    fn snap(&self) -> u32 {
        0
    }

    fn show(&self, _: PortId, has_left: bool, _: Record) {
        self.0.fetch_add(usize::from(!has_left), Ordering::Relaxed);
    }
}
