// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory regions: those of commands with their lists of pages, those registered by work requests, and those of bus addresses.

mod access;
mod invalidation;
mod regions;
mod registration;

use super::*;

const KEY: CompStatus = CompStatus::LocalInvalidLkey;
const UNSUPPORTED: CompStatus = CompStatus::LocalUnsupportedOp;
const ADDRESS: CompStatus = CompStatus::RemoteBadAddress;

/// The device of a kernel client, whose queue pair registers the second region by work requests. A peer accesses that from the first.
const KERNEL: PortId = PortId(1);

/// Returns peers, the second of which has a region for fast registration of so many pages, which starts at an offset in the first.
fn fast(pages: u64, offset: u64) -> Peers {
    let mut peers = Peers::of(Settings::default(), QpType::Srd, pages);
    let first = peers.regions[1].lkey;
    peers.deregister(KERNEL, first).unwrap();
    peers.regions[1] = peers.net.fast_region(&peers.qps[1], pages, offset);
    peers
}

/// Posts a work request of the kernel client; returns its status.
fn outcome(peers: &mut Peers, send: &Send) -> CompStatus {
    peers.net.outcome(&mut peers.qps[1], send)
}

/// Returns the registration of all pages of the kernel client's region, in the work request or in a list.
fn registration(peers: &mut Peers) -> FastMrRegReq {
    let region = &peers.regions[1];
    match region.pages.len() {
        1 => region.inline(),
        _ => peers.net.listed(region),
    }
}

/// Registers the kernel client's region.
#[track_caller]
fn register(peers: &mut Peers) {
    let request = registration(peers);
    assert_eq!(outcome(peers, &Send::register(&request)), OK);
}

#[track_caller]
fn invalidate(peers: &mut Peers) {
    let send = Send::invalidate(peers.regions[1].lkey);
    assert_eq!(outcome(peers, &send), OK);
}

fn resources(peers: &mut Peers) -> ResourceCounts {
    peers.state(KERNEL).resources
}

/// Tries a peer's write to the kernel client's region; returns whether it has succeeded.
#[track_caller]
fn is_writable(peers: &mut Peers) -> bool {
    let bytes = pattern(16, peers.qps[0].sent.into());
    peers.fill(0, &bytes);
    let status = peers.outcome(&peers.write(16));
    let written = peers.content(1, 0, 16) == bytes;
    assert_eq!((status == OK, status == ADDRESS), (written, !written));
    written
}

/// Posts a work request of the kernel client, which must end with this status and change no region.
#[track_caller]
fn refused(peers: &mut Peers, send: &Send, expected: CompStatus, what: &str) {
    let all = |state: State| (state.resources, state.fast_regs, state.fast_invs);
    let before = all(peers.state(KERNEL));
    assert_eq!(outcome(peers, send), expected, "{what}");
    assert_eq!(all(peers.state(KERNEL)), before, "{what}");
}
