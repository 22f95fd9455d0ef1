// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! State that no attack may change: memory of guests, and the data exchange of their devices.

use efa_fabric::Settings;
use efa_hw::admin::{mr::RegMrPermissions, qp::QpType};

use crate::net::{Net, PAGE, Qp, Region, Send, pattern};

/// Bytes that devices exchange after an attack.
const LENGTH: u32 = 10_000;

/// Memory for each of several queue pairs, which is mapped for its device, but not writable in any region.
pub(super) struct Precious(Vec<(Region, Vec<u8>)>);

impl Precious {
    pub(super) fn new(net: &mut Net, qps: &[Qp]) -> Self {
        let read_only = RegMrPermissions {
            remote_read_enable: true,
            ..RegMrPermissions::default()
        };
        let mut all = Vec::new();
        for (index, qp) in qps.iter().enumerate() {
            let region = net.region_with(qp, 2, 0, read_only);
            let bytes = pattern(2 * PAGE as usize, index as u64 + 1);
            net.fill(&region, 0, &bytes);
            all.push((region, bytes));
        }
        Self(all)
    }

    /// Returns the memory of the queue pair with this index.
    pub(super) fn region(&self, index: usize) -> &Region {
        &self.0[index].0
    }

    /// Panics if any of this memory has changed.
    pub(super) fn check(&self, net: &mut Net) {
        for (region, bytes) in &self.0 {
            assert!(
                net.content(region, 0, bytes.len()) == *bytes,
                "memory of {region:?} has changed"
            );
        }
    }
}

/// Panics unless two devices still exchange data, over a network without faults.
pub(super) fn check_exchange(net: &mut Net) {
    let (mut a, mut b) = (net.qp(0, QpType::Srd), net.qp(1, QpType::Srd));
    net.fabric.set(Settings::default());
    net.introduce(&mut a, &mut b);
    let (from, to) = (net.region(&a, 4, 0), net.region(&b, 4, 0));
    let bytes = pattern(LENGTH as usize, 3);
    net.fill(&from, 0, &bytes);
    net.post(&mut a, &Send::write(&b, &from, &to, LENGTH));
    assert_eq!(net.wait(&mut a).status, 0);
    assert!(net.content(&to, 0, LENGTH as usize) == bytes);
}
