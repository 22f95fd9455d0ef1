// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions of kernel clients: those registered by work requests, and those of bus addresses.

mod access;
mod invalidation;
mod registration;

use efa_fabric::Settings;
use efa_hw::{
    admin::{Status, mr::DeregMr},
    io::CompStatus,
};
use efa_model::{ResourceCounts, State};
use efa_testing::net::{Net, Qp, Region, Send, pattern};

const OK: CompStatus = CompStatus::Ok;
const KEY: CompStatus = CompStatus::LocalInvalidLkey;
const LENGTH: CompStatus = CompStatus::LocalBadLength;
const UNSUPPORTED: CompStatus = CompStatus::LocalUnsupportedOp;
const MALFORMED: CompStatus = CompStatus::LocalQpInternalError;
const ADDRESS: CompStatus = CompStatus::RemoteBadAddress;

fn resources(net: &mut Net, qp: &Qp) -> ResourceCounts {
    net.state(qp.port).resources
}

/// Returns two queue pairs, and a region for fast registration in the domain of the first one.
fn fast_pair(pages: u64) -> (Net, Qp, Qp, Region) {
    let (mut net, a, b) = Net::pair(Settings::default());
    let fast = net.fast_region(&a, pages, 0);
    (net, a, b, fast)
}

/// Returns a region with the same keys that starts at another address.
fn starting_at(region: &Region, iova: u64) -> Region {
    let mut other = region.clone();
    other.iova = iova;
    other
}

fn deregister(net: &mut Net, qp: &Qp, l_key: u32) -> Result<(), Status> {
    let result = net.driver(qp.port, |driver| driver.execute(&DeregMr { l_key }));
    result.map(|_| ())
}

/// Tries a peer's write to a region; returns whether it has succeeded.
fn is_writable(net: &mut Net, a: &Qp, b: &mut Qp, region: &Region) -> bool {
    let from = net.region(b, 1, 0);
    let bytes = pattern(16, from.lkey.into());
    net.fill(&from, 0, &bytes);
    let status = net.outcome(b, &Send::write(a, &from, region, 16));
    let written = net.content(region, 0, 16) == bytes;
    assert_eq!((status == OK, status == ADDRESS), (written, !written));
    written
}

/// Posts a work request, which must end with this status and change no region.
fn refused(net: &mut Net, a: &mut Qp, send: &Send, expected: CompStatus, what: &str) {
    let before = net.state(a.port);
    assert_eq!(net.outcome(a, send), expected, "{what}");
    let after = net.state(a.port);
    assert_eq!(after.resources, before.resources, "{what}");
    let changes = |state: &State| (state.fast_regs, state.fast_invs);
    assert_eq!(changes(&after), changes(&before), "{what}");
}
