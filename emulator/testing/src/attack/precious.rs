// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What no attack may change: memory of guests, and that their devices work with each other.

use efa_fabric::Settings;
use efa_hw::admin::{mr::RegMrPermissions, qp::QpType};

use crate::net::{Net, PAGE, Qp, Region, Send, pattern};

/// Bytes of the message that devices exchange in the end.
const LENGTH: u32 = 10_000;

/// For each of several queue pairs memory that is mapped for its device, but in no region that anybody may write.
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

    /// That of the queue pair with this index.
    pub(super) fn region(&self, index: usize) -> &Region {
        &self.0[index].0
    }

    /// Panics if any of it has changed.
    pub(super) fn check(&self, net: &mut Net) {
        for (region, bytes) in &self.0 {
            assert!(
                net.content(region, 0, bytes.len()) == *bytes,
                "memory of {region:?} has changed"
            );
        }
    }
}

/// Panics unless two devices still exchange data, on a network that is good again.
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
