// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Networks on which tests run.

use efa_fabric::{PathSettings, Settings};

/// Returns networks with their names: with delay only, loss, reordering, both and duplicates, a path that is down, and slow links.
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
        ("a network with delay only", slow.clone()),
        (
            "a network with loss",
            Settings {
                loss: 0.1,
                ..slow.clone()
            },
        ),
        (
            "a network with reordering",
            Settings {
                jitter_us: 200.0,
                ..slow.clone()
            },
        ),
        (
            "a network with loss and reordering",
            Settings {
                loss: 0.05,
                duplicate: 0.1,
                jitter_us: 500.0,
                ..slow.clone()
            },
        ),
        (
            "a network with a path that is down",
            Settings {
                path: vec![down],
                ..slow.clone()
            },
        ),
        (
            "a network with slow links and short buffers",
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
