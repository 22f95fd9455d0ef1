// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What attackers of a network reach, and what no attack may change: memory of guests, and the data exchange of their devices.

use crate::prelude::*;

/// Bytes that devices exchange after an attack.
const LENGTH: u32 = 10_000;

/// Returns a network without faults, or one with all of them.
pub(super) fn settings(is_faulty: bool) -> Settings {
    match is_faulty {
        true => network(r#"{"loss":0.2,"delay_us":10,"jitter_us":30,"path":[{"down":true}]}"#),
        false => Settings::default(),
    }
}

/// Queue pairs of two devices with their memory.
pub(super) struct Victims {
    pub(super) net: Net,
    /// For each kind, one of each device, which have address handles of each other.
    pub(super) qps: Vec<Qp>,
    /// For each queue pair, a region that peers may read and write.
    pub(super) regions: Vec<Region>,
    /// For each queue pair, memory that is mapped for its device, but not writable in any region.
    pub(super) precious: Vec<Region>,
}

impl Victims {
    pub(super) fn new(settings: Settings, kinds: &[QpType]) -> Self {
        let mut net = Net::new(&[Profile::Efa3; 2], settings);
        let mut qps = Vec::new();
        for kind in kinds {
            qps.extend(net.pair([0, 1], [Shape::new(*kind, 128); 2]));
        }
        let regions = qps.iter().map(|qp| net.region(qp, 5, 100)).collect();
        let read_only = RegMrPermissions { remote_read_enable: true, ..RegMrPermissions::default() };
        let precious = qps.iter().enumerate().map(|(index, qp)| {
            let region = net.region_with(qp, 2, 0, read_only);
            net.fill(&region, 0, &initial(index));
            region
        });
        Self { precious: precious.collect(), net, qps, regions }
    }

    /// Panics if precious memory has changed, or unless the devices still exchange data over a network without faults.
    pub(super) fn check(&mut self) {
        let net = &mut self.net;
        for (index, region) in self.precious.iter().enumerate() {
            let content = net.content(region, 0, region.length());
            assert!(content == initial(index), "{region:?} has changed");
        }
        net.fabric.set(Settings::default());
        let [mut a, b] = net.pair([0, 1], [Shape::new(QpType::Srd, 128); 2]);
        let (from, to) = (net.region(&a, 4, 0), net.region(&b, 4, 0));
        let bytes = pattern(LENGTH as usize, 3);
        net.fill(&from, 0, &bytes);
        net.post(&mut a, &Send::write(&b, &from, &to, LENGTH));
        assert_eq!(net.wait(&mut a).status, 0);
        assert!(net.content(&to, 0, LENGTH as usize) == bytes);
    }
}

/// The bytes of the precious memory of a queue pair.
fn initial(index: usize) -> Vec<u8> {
    pattern(2 * PAGE as usize, index as u64 + 1)
}
