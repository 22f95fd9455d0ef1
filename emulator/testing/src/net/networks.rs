// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Networks on which tests run.

use efa_fabric::{PathSettings, Settings};

/// Returns networks with their names: with delay only, loss, reordering, both, a path that is down, and slow links.
pub fn networks() -> [(&'static str, Settings); 6] {
    let slow = Settings {
        delay_us: 20.0,
        ..Settings::default()
    };
    let down = PathSettings {
        down: true,
        ..PathSettings::default()
    };
    [
        ("a good one", slow.clone()),
        (
            "one that loses",
            Settings {
                loss: 0.1,
                ..slow.clone()
            },
        ),
        (
            "one that reorders",
            Settings {
                jitter_us: 200.0,
                ..slow.clone()
            },
        ),
        (
            "one that does both",
            Settings {
                loss: 0.05,
                jitter_us: 500.0,
                ..slow.clone()
            },
        ),
        (
            "one with a path that is down",
            Settings {
                path: vec![down],
                ..slow.clone()
            },
        ),
        (
            "one with slow links and short buffers",
            Settings {
                link_gbps: 1.0,
                path_gbps: 0.5,
                buffer_kib: 40,
                loss: 0.01,
                jitter_us: 50.0,
                ..slow
            },
        ),
    ]
}
