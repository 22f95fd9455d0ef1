// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages between programs, and programs that are gone.

use super::*;

/// Returns a network on which peers are not given up soon.
fn patient() -> Settings {
    network(r#"{"silence_s":600.0}"#)
}

#[test]
fn all_cases() {
    for settings in ["{}", r#"{"loss":0.1,"jitter_us":50.0}"#] {
        let mut programs = Programs::new(QpType::Srd, &network(settings), 250);
        cases::all(&mut programs);
        let errors = programs.nets.iter_mut().map(Net::protocol_errors);
        assert!(errors.eq([0, 0]));
    }
}

/// Datagrams that are too long do not reach the device, which would drop them, too.
#[test]
fn datagrams_cross() {
    const MTU: usize = 8928;
    let mut programs = Programs::new(QpType::Ud, &Settings::default(), 4);
    let [send, ..] = programs.sends(0, 3000);
    programs.fill(0, &pattern(3000, 4));
    programs.post(0, &send);
    let genuine = programs.sent(0).pop().unwrap();
    let arrived = Arc::new(Arrivals::default());
    programs.nets[1].fabric.set_tap(Arc::clone(&arrived) as _);
    [12_000; 2].map(|length| programs.ready(length));
    for (length, arrives) in [(MTU + 1, false), (12_000, false), (MTU, true)] {
        let mut value = serde_json::to_value(&genuine).unwrap();
        value["body"]["Datagram"]["payload"] = vec![9; length].into();
        programs.accept_json(1, value);
        let completion = programs.poll(1);
        assert_eq!(completion.is_some(), arrives, "{completion:?}");
        assert_eq!(arrived.take(), usize::from(arrives), "{length}");
    }
    assert_eq!(programs.content(1, 40 + MTU as u64, 100), [0; 100]);
    programs.accept(1, genuine);
    let completion = programs.wait(1);
    let ends = (programs.qps[1].ah, programs.qps[0].number);
    assert_eq!((completion.ah, completion.src_qp_num), ends);
    assert_eq!((completion.status, completion.length), (0, 3040));
    let expected = [vec![0; 40], pattern(3000, 4)].concat();
    assert_eq!(programs.content(1, 0, 3040), expected);
}

#[test]
fn a_program_that_is_gone_does_not_respond() {
    let mut programs = Programs::srd(&Settings::default());
    let [mut send, ..] = programs.sends(0, 10);
    programs.post(0, &send);
    // The peer never gets the packet.
    programs.leave(0);
    let address = programs.nets[1].address(PortId(0));
    let (net, qp) = (&mut programs.nets[0], &mut programs.qps[0]);
    assert_eq!(net.status(qp), CompStatus::LocalUnreachRemote);
    // Its address is not found any more.
    send.ah = Some(net.handle_of(qp, address));
    net.run_for(Duration::from_secs(10));
    assert_eq!(net.outcome(qp, &send), CompStatus::LocalUnreachRemote);
}

#[test]
fn state_of_a_gone_program_is_dropped_even_if_a_join_fails() {
    for (has_its_address, has_answered) in [(false, true), (true, true), (false, false)] {
        let mut programs = Programs::srd(&patient());
        let [_, write, _] = programs.sends(0, 10);
        if has_answered {
            assert_eq!(programs.outcome(&write), OK);
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
            addresses.push(std::array::from_fn(|index| 99 - index as u8));
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
    for (forgets, expected) in
        [(None, OK), (Some(0), CompStatus::LocalUnrespRemote), (Some(1), CompStatus::LocalUnrespRemote)]
    {
        let mut programs = Programs::srd(&patient());
        programs.nets[1].fabric.set(Settings::default());
        [100; 4].map(|length| programs.ready(length));
        let [send, ..] = programs.sends(0, 10);
        let exchanges = |programs: &mut Programs| {
            programs.post(0, &send);
            let both = [programs.wait(0), programs.wait(1)];
            assert_eq!(both.map(|completion| completion.status), [0; 2]);
        };
        exchanges(&mut programs);
        // The acknowledgement of this message is lost.
        programs.post(0, &send);
        programs.carry(0);
        let (net, qp) = (&mut programs.nets[1], &mut programs.qps[1]);
        assert_eq!(net.status(qp), OK);
        programs.reconnect(|nets| {
            for net in nets.iter_mut() {
                net.run_for(Duration::from_secs(100));
            }
            // The link is not restored in time, and another program joins.
            if let Some(index) = forgets {
                join(&nets[index], 9, &[[9; 16]]);
            }
        });
        assert_eq!(status(&programs.wait(0)), expected);
        programs.run();
        assert_eq!(programs.poll(1), None);
        exchanges(&mut programs);
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
