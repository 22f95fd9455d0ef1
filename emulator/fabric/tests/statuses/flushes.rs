// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs and regions that end before their work requests.

use std::time::Duration;

use efa_fabric::Settings;
use efa_hw::{
    admin::qp::{QpState, QpType},
    io::CompStatus,
};
use efa_model::Overrides;
use efa_testing::net::{Net, Send};

use super::{assert_untouched, deregister, set};

#[test]
fn queue_pairs_in_error_flush() {
    let (mut net, mut a, mut b, from, to) = set();
    net.receive(&mut b, &[(to.iova, 8, to.lkey), (to.iova, 8, to.lkey)]);
    net.receive(&mut b, &[(to.iova, 8, to.lkey)]);
    net.set_rnr_retry(&a, 7);
    let mut c = net.qp(1, QpType::Srd);
    net.introduce(&mut a, &mut c);
    for _ in 0..3 {
        net.post(&mut a, &Send::message(&c, &from, 8));
    }
    net.run();
    assert_eq!(net.poll(&mut a), None);
    net.modify(&mut a, QpState::Err);
    net.modify(&mut b, QpState::Err);
    for expected in 0..3 {
        let completion = net.wait(&mut a);
        assert_eq!(completion.status, u8::from(CompStatus::Flushed));
        assert_eq!(completion.req_id, expected);
    }
    for _ in 0..2 {
        assert_eq!(net.status(&mut b), CompStatus::Flushed);
    }
    // Later work requests are flushed, too.
    net.post(&mut a, &Send::message(&c, &from, 8));
    assert_eq!(net.status(&mut a), CompStatus::Flushed);
    net.receive(&mut b, &[(to.iova, 8, to.lkey)]);
    assert_eq!(net.status(&mut b), CompStatus::Flushed);
    // The receiver is ready now, but no message arrives.
    net.receive(&mut c, &[(to.iova, 8, to.lkey)]);
    net.run_for(Duration::from_secs(1));
    assert_eq!((net.poll(&mut a), net.poll(&mut c)), (None, None));
    assert_untouched(&mut net, &from, &to);
}

#[test]
fn a_queue_pair_that_is_destroyed_is_flushed() {
    for flush in [true, false] {
        let (mut net, mut a, b, from, to) = set();
        let overrides = Overrides {
            flush_on_destroy: Some(flush),
            ..Overrides::default()
        };
        net.set(a.port, overrides);
        net.set_rnr_retry(&a, 7);
        for _ in 0..2 {
            net.post(&mut a, &Send::message(&b, &from, 8));
            net.run();
        }
        let received = net.receive(&mut a, &[(from.iova, 8, from.lkey)]);
        net.destroy(&a);
        // The completions precede that of the command.
        let expected = [0, 1, received].map(|id| (id, CompStatus::Flushed.into()));
        let flushed: Vec<_> = std::iter::from_fn(|| net.poll(&mut a)).collect();
        let flushed = flushed.iter().map(|cdesc| (cdesc.req_id, cdesc.status));
        let expected = expected.into_iter().filter(|_| flush);
        assert!(flushed.eq(expected));
        net.run_for(Duration::from_secs(1));
        assert_eq!(net.poll(&mut a), None);
        assert_untouched(&mut net, &from, &to);
    }
}

#[test]
fn a_reset_queue_pair_starts_anew() {
    let (mut net, mut a, mut b, from, to) = set();
    net.set_rnr_retry(&a, 7);
    net.post(&mut a, &Send::message(&b, &from, 8));
    net.run();
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
        net.modify(&mut a, state);
    }
    net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
    net.run_for(Duration::from_secs(1));
    // Earlier work requests are discarded.
    assert_eq!((net.poll(&mut a), net.poll(&mut b)), (None, None));
    assert_eq!(net.post(&mut a, &Send::message(&b, &from, 50)), 0);
    assert_eq!(net.status(&mut a), CompStatus::Ok);
    assert_eq!(net.wait(&mut b).length, 50);
}

#[test]
fn a_drained_send_queue_holds_posted_work_requests() {
    let (mut net, mut a, mut b, from, to) = set();
    net.receive(&mut b, &[(to.iova, 100, to.lkey)]);
    net.modify(&mut a, QpState::Sqd);
    net.post(&mut a, &Send::message(&b, &from, 50));
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.poll(&mut a), None);
    net.modify(&mut a, QpState::Rts);
    assert_eq!(net.status(&mut a), CompStatus::Ok);
}

#[test]
fn regions_of_running_transfers_can_be_deregistered() {
    // Memory of neither side is used after the device has completed its deregistration.
    for remote in [false, true] {
        let settings = Settings {
            delay_us: 50.0,
            ..Settings::default()
        };
        let (mut net, mut a, b) = Net::pair(settings);
        let (from, to) = (net.region(&a, 600, 0), net.region(&b, 600, 0));
        net.fill(&from, 0, &vec![0xaa; 600 * 4096]);
        net.post(&mut a, &Send::write(&b, &from, &to, 600 * 4096));
        net.run_for(Duration::from_micros(120));
        let (port, l_key, expected) = if remote {
            (b.port, to.lkey, CompStatus::RemoteBadAddress)
        } else {
            (a.port, from.lkey, CompStatus::LocalInvalidLkey)
        };
        deregister(&mut net, port, l_key);
        let before = net.content(&to, 0, 600 * 4096);
        assert_eq!(net.status(&mut a), expected);
        assert_eq!(net.content(&to, 0, 600 * 4096), before);
    }
}

#[test]
fn memory_that_is_not_mapped_any_more() {
    let (mut net, mut a, b, from, to) = set();
    net.unmap(&to);
    net.post(&mut a, &Send::write(&b, &from, &to, 100));
    assert_eq!(net.status(&mut a), CompStatus::RemoteBadAddress);
    let other = net.region(&b, 1, 0);
    net.unmap(&from);
    net.post(&mut a, &Send::write(&b, &from, &other, 100));
    assert_eq!(net.status(&mut a), CompStatus::LocalInvalidLkey);
}
