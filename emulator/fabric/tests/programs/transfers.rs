// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages between programs, and programs that are gone.

use std::{sync::Arc, time::Duration};

use efa_fabric::{JoinError, PortId, Settings};
use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_model::Profile;
use efa_testing::{
    net::{Arrivals, Net, Send, pattern},
    qp::status,
};

use super::{Programs, join, newcomer, try_join};

fn networks() -> [Settings; 2] {
    [
        Settings::default(),
        Settings {
            loss: 0.1,
            jitter_us: 50.0,
            ..Settings::default()
        },
    ]
}

/// Returns a network on which peers are not given up soon.
fn patient() -> Settings {
    Settings {
        silence_s: 600.0,
        ..Settings::default()
    }
}

#[test]
fn messages_writes_and_reads_cross() {
    for settings in networks() {
        let mut programs = Programs::new(QpType::Srd, &settings);
        let [from, to] = programs.regions(60, 77);
        let peer = programs.qps[1].clone();
        let bytes = pattern(200_000, 1);
        programs.nets[0].fill(&from, 0, &bytes);

        programs.receive(&to, 5000);
        let message = Send::message(&peer, &from, 5000);
        assert_eq!(programs.outcome(&message), CompStatus::Ok);
        assert_eq!(programs.wait(1).length, 5000);
        assert_eq!(programs.nets[1].content(&to, 0, 5000), bytes[..5000]);

        let write = Send::write(&peer, &from, &to, 200_000);
        assert_eq!(programs.outcome(&write), CompStatus::Ok);
        assert!(programs.nets[1].content(&to, 0, 200_000) == bytes);

        programs.nets[0].fill(&from, 0, &vec![0; 200_000]);
        let read = Send::read(&peer, &from, &to, 200_000);
        assert_eq!(programs.outcome(&read), CompStatus::Ok);
        assert!(programs.nets[0].content(&from, 0, 200_000) == bytes);

        // A read with an invalid key.
        let mut read = Send::read(&peer, &from, &to, 10);
        read.remote = Some((to.iova, 10, 99));
        assert_eq!(programs.outcome(&read), CompStatus::RemoteBadAddress);
        for net in &mut programs.nets {
            assert_eq!(net.protocol_errors(), 0);
        }
    }
}

#[test]
fn datagrams_cross() {
    let mut programs = Programs::new(QpType::Ud, &Settings::default());
    let [from, to] = programs.regions(2, 0);
    let bytes = pattern(3000, 4);
    programs.nets[0].fill(&from, 0, &bytes);
    programs.receive(&to, 4000);
    let send = Send::message(&programs.qps[1], &from, 3000);
    assert_eq!(programs.outcome(&send), CompStatus::Ok);
    assert_eq!(programs.wait(1).length, 3040);
    assert_eq!(programs.nets[1].content(&to, 40, 3000), bytes);
}

#[test]
fn oversized_datagrams_are_dropped() {
    const MTU: usize = 8928;
    let mut programs = Programs::new(QpType::Ud, &Settings::default());
    let [from, to] = programs.regions(4, 0);
    let send = Send::message(&programs.qps[1], &from, 10);
    programs.post(0, &send);
    let genuine = programs.sent(0).pop().unwrap();
    programs.receive(&to, 12_000);
    // They do not reach the device, which would drop them, too.
    let arrived = Arc::new(Arrivals::default());
    let fabric = &programs.nets[1].fabric;
    fabric.set_tap(Arc::clone(&arrived) as _);
    for (length, arrives) in [(MTU + 1, false), (12_000, false), (MTU, true)] {
        let mut value = serde_json::to_value(&genuine).unwrap();
        value["body"]["Datagram"]["payload"] = vec![9; length].into();
        programs.accept(1, serde_json::from_value(value).unwrap());
        let completion = programs.poll(1);
        assert_eq!(completion.is_some(), arrives, "{completion:?}");
        assert_eq!(arrived.take(), usize::from(arrives), "{length}");
    }
    let beyond = programs.nets[1].content(&to, 40 + MTU as u64, 100);
    assert_eq!(beyond, [0; 100]);
}

#[test]
fn a_program_that_is_gone_does_not_respond() {
    let (mut programs, [from, _]) = Programs::srd(&Settings::default());
    let mut send = Send::message(&programs.qps[1], &from, 10);
    programs.post(0, &send);
    // The peer never gets the packet.
    programs.leave(0);
    let address = programs.nets[1].address(PortId(0));
    let (net, qp) = (&mut programs.nets[0], &mut programs.qps[0]);
    assert_eq!(net.status(qp), CompStatus::LocalUnreachRemote);
    // Its address is not found any more.
    send.ah = Some(net.handle_of(qp, address));
    net.run_for(Duration::from_secs(10));
    net.post(qp, &send);
    assert_eq!(net.status(qp), CompStatus::LocalUnreachRemote);
}

#[test]
fn state_of_a_gone_program_is_dropped_even_if_a_join_fails() {
    for (has_its_address, has_answered) in [(false, true), (true, true), (false, false)] {
        let (mut programs, [from, to]) = Programs::srd(&patient());
        let write = Send::write(&programs.qps[1], &from, &to, 10);
        if has_answered {
            assert_eq!(programs.outcome(&write), CompStatus::Ok);
        }
        programs.post(0, &write);
        programs.nets[0].run();
        programs.leave(0);
        let gone = programs.nets[1].address(PortId(0));
        let (net, qp) = (&mut programs.nets[0], &mut programs.qps[0]);
        let mut addresses: Vec<_> = (0..=u8::MAX).map(|number| [number; 16]).collect();
        if has_its_address {
            addresses.push(gone);
        } else {
            addresses.push([
                99, 98, 97, 96, 95, 94, 93, 92, 91, 90, 89, 88, 87, 86, 85, 84,
            ]);
            net.run_for(Duration::from_secs(6));
        }
        assert_eq!(net.poll(qp), None);
        let joined = try_join(net, &newcomer(net, 9, &addresses), &Arc::default());
        assert_eq!(joined, Err(JoinError::TooMany));
        // All work requests to it end.
        let completion = net.poll(qp).expect("a completion");
        let expected = match has_answered {
            true => CompStatus::LocalUnrespRemote,
            false => CompStatus::LocalUnreachRemote,
        };
        assert_eq!(status(&completion), expected);
    }
}

/// A link is restored if both ends have kept their state. Otherwise, packets that have arrived would arrive twice. The receiver keeps
/// it for longer than the sender retransmits, and has another limit for peers of its own.
#[test]
fn a_link_is_restored_by_both_ends_or_by_none() {
    for forgets in [None, Some(0), Some(1)] {
        let (mut programs, [from, to]) = Programs::srd(&patient());
        programs.nets[1].fabric.set(Settings::default());
        for _ in 0..4 {
            programs.receive(&to, 100);
        }
        let send = Send::message(&programs.qps[1], &from, 10);
        programs.post(0, &send);
        let both = [programs.wait(0), programs.wait(1)];
        assert_eq!(both.map(|completion| completion.status), [0; 2]);
        // The acknowledgement of this message is lost.
        programs.post(0, &send);
        programs.carry(0);
        let status = programs.nets[1].status(&mut programs.qps[1]);
        assert_eq!(status, CompStatus::Ok);
        programs.reconnect(|nets| {
            for net in nets.iter_mut() {
                net.run_for(Duration::from_secs(100));
            }
            // The link is not restored in time, and another program joins.
            if let Some(index) = forgets {
                join(&nets[index], 9, &[[9; 16]]);
            }
        });
        let status = match forgets {
            None => CompStatus::Ok,
            Some(_) => CompStatus::LocalUnrespRemote,
        };
        assert_eq!(programs.wait(0).status, u8::from(status));
        programs.run();
        assert_eq!(programs.poll(1), None);
        // The programs exchange messages again.
        programs.post(0, &send);
        let both = [programs.wait(0), programs.wait(1)];
        assert_eq!(both.map(|completion| completion.status), [0; 2]);
    }
}

/// Another program may join between the two messages of a greeting.
#[test]
fn a_session_that_has_just_ended_is_refused() {
    let mut net = Net::of_program(&[Profile::Efa3], Settings::default(), 1, 1);
    let (link, _) = join(&net, 9, &[[9; 16]]);
    net.fabric.leave(net.now, link);
    net.now += Duration::from_secs(6);
    let newcomer = newcomer(&net, 9, &[[9; 16]]);
    join(&net, 8, &[[8; 16]]);
    let joined = try_join(&net, &newcomer, &Arc::default());
    assert_eq!(joined, Err(JoinError::TooLate));
    join(&net, 9, &[[9; 16]]);
}
