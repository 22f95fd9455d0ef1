// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets that no honest program sends.

use std::net::IpAddr;

use super::*;

/// Connections of another program that its limit of 64 MiB allows: each takes 672 bytes.
const CONNECTIONS: usize = (64 << 20) / 672;

/// Addresses of devices of another program.
const OTHERS: [[u8; 16]; 3] = [[7; 16], [8; 16], [9; 16]];

/// Returns the address of a host of programs.
fn host(number: u8) -> Option<IpAddr> {
    Some([192, 0, 2, number].into())
}

#[test]
fn frames_with_a_forged_source_are_dropped() {
    let mut programs = Programs::srd(&Settings::default());
    programs.fill(0, &[7; 10]);
    let [_, write, _] = programs.sends(0, 10);
    programs.post(0, &write);
    let frames = programs.sent(0);
    assert_eq!(frames.len(), 1);
    let net = &programs.nets[1];
    let (other, _) = join(net, 9, &[[9; 16]]);
    for frame in frames {
        net.fabric.accept(net.now, other, frame, 1000);
    }
    assert_eq!(programs.content(1, 0, 10), [0; 10]);
}

/// Returns a program's frame as another program would send it for its own device.
fn forged(frame: &Frame, address: [u8; 16]) -> Value {
    let mut value = serde_json::to_value(frame).unwrap();
    let address = serde_json::to_value(address).unwrap();
    if let Some(peer) = value.pointer_mut("/body/Data/header/peer") {
        *peer = address.clone();
    }
    value["from"] = address;
    value
}

#[test]
fn forged_acknowledgements_and_responses_are_dropped() {
    let mut programs = Programs::srd(&Settings::default());
    programs.fill(1, &[7; 100]);
    let (other, _) = join(&programs.nets[0], 9, &[OTHERS[0]]);
    let ([_, write, _], [_, _, read]) = (programs.sends(0, 10), programs.sends(0, 100));
    for send in [write, read] {
        programs.post(0, &send);
        let mut completion = None;
        // The other program sends copies of all of the peer's frames first. The peer's own frames follow.
        while completion.is_none() {
            programs.carry(0);
            let frames = programs.sent(1);
            assert!(!frames.is_empty(), "the peer sends nothing");
            let net = &programs.nets[0];
            for frame in &frames {
                let forged = serde_json::from_value(forged(frame, OTHERS[0])).unwrap();
                net.fabric.accept(net.now, other, forged, 1000);
            }
            assert_eq!(programs.poll(0), None);
            programs.pass(1, frames);
            completion = programs.poll(0);
        }
        assert_eq!(completion.unwrap().status, 0);
    }
    assert_eq!(programs.content(0, 10, 90), [7; 90]);
}

#[test]
fn a_response_is_no_longer_than_its_read() {
    const LENGTH: usize = 100;
    let mut programs = Programs::srd(&Settings::default());
    programs.fill(1, &[7; LENGTH]);
    let [_, _, read] = programs.sends(0, LENGTH as u32);
    programs.post(0, &read);
    programs.carry(0);
    let answered = programs.sent(1);
    let is_response = |frame: &&Frame| frame.payload() == LENGTH;
    let response = answered.iter().find(is_response).expect("a response");
    for (offset, length) in
        [(1, LENGTH), (LENGTH, LENGTH), (u32::MAX as usize - 5, LENGTH), (0, LENGTH + 1), (0, 2 * LENGTH)]
    {
        let mut value = serde_json::to_value(response).unwrap();
        let data = &mut value["body"]["Data"];
        data["data"]["offset"] = offset.into();
        data["data"]["length"] = length.into();
        data["payload"] = vec![9; length].into();
        programs.accept_json(0, value);
        assert_eq!(programs.poll(0), None);
    }
    programs.pass(1, answered);
    assert_eq!(programs.poll(0).unwrap().status, 0);
    assert_eq!(programs.content(0, 0, LENGTH), [7; LENGTH]);
}

/// Returns a function that forges parts of a program's message as another program's, by connection and packet number. Each
/// connection is that of another queue pair. The floor of the parts is 0: they report no earlier packet as concluded.
fn parts(frame: &Frame, address: [u8; 16]) -> impl Fn(u64, u64) -> Frame + use<> {
    const PLACES: [&str; 3] = ["111111111", "222222222", "65535"];
    let mut value = forged(frame, address);
    value["body"]["Data"]["header"]["peer_qp"] = u16::MAX.into();
    let data = value.pointer_mut("/body/Data/data").unwrap();
    data["connection"] = PLACES[0].parse::<u64>().unwrap().into();
    data["psn"] = PLACES[1].parse::<u64>().unwrap().into();
    data["floor"] = 0.into();
    let text = value.to_string();
    move |connection, psn| {
        let [connection, psn] = [connection, psn].map(|number| number.to_string());
        let numbers = [&connection, &psn, &connection];
        let places = PLACES.into_iter().zip(numbers);
        let text = places.fold(text.clone(), |text, (place, number)| text.replace(place, number));
        serde_json::from_str(&text).unwrap()
    }
}

#[test]
fn queued_acknowledgements_of_another_program_are_bounded() {
    // Limit of 8 MiB for all its devices, of which each acknowledgement takes 256 bytes.
    const MOST: usize = (8 << 20) / 256;
    let mut programs = Programs::srd(&Settings::default());
    let [send, ..] = programs.sends(1, 10);
    programs.post(1, &send);
    // The peer responds that it is not ready.
    programs.carry(1);
    let genuine = programs.sent(0).pop().unwrap();
    assert_eq!(genuine.payload(), 0);
    let net = &mut programs.nets[1];
    let arrived = Arc::new(Arrivals::default());
    net.fabric.set_tap(Arc::clone(&arrived) as _);
    let (other, _) = join(net, 9, &OTHERS);
    for address in OTHERS {
        let text = forged(&genuine, address).to_string();
        for _ in 0..MOST / 3 + 10 {
            let frame = serde_json::from_str(&text).unwrap();
            // A budget of 0: the packet stays queued.
            net.fabric.accept(net.now, other, frame, 0);
        }
    }
    net.run();
    assert_eq!(arrived.take(), MOST);
}

#[test]
fn responses_to_missing_reads_leave_no_state() {
    let mut programs = Programs::srd(&Settings::default());
    let [_, _, read] = programs.sends(1, 10);
    programs.post(1, &read);
    programs.carry(1);
    let answers = programs.sent(0);
    let response = answers.iter().find(|frame| frame.payload() == 10).unwrap();
    let net = &mut programs.nets[1];
    let (other, wire) = join(net, 9, &OTHERS);
    for address in OTHERS {
        let part = parts(response, address);
        for connection in 0..(CONNECTIONS / 3 + 1000) as u64 {
            net.fabric.accept(net.now, other, part(connection, 7), 1000);
            assert!(!wire.take().is_empty(), "{connection}");
        }
    }
}

#[test]
fn state_of_another_program_is_bounded() {
    let mut programs = Programs::srd(&Settings::default());
    let [_, write, _] = programs.sends(0, 10);
    programs.post(0, &write);
    let genuine = programs.sent(0).pop().unwrap();
    let net = &mut programs.nets[1];
    let (other, wire) = join(net, 9, &OTHERS);
    for address in OTHERS {
        net.handle_of(&programs.qps[1], address);
    }
    let parts = OTHERS.map(|address| parts(&genuine, address));
    let is_answered = |net: &Net, device: usize, connection: u64, psn: u64| {
        let frame = parts[device](connection, psn);
        net.fabric.accept(net.now, other, frame, 1000);
        !wire.take().is_empty()
    };
    let all = (0..OTHERS.len()).flat_map(|device| (0..40_000).map(move |it| (device, it)));
    let answered = all.filter(|(device, connection)| is_answered(net, *device, *connection, 0));
    assert_eq!(answered.count(), CONNECTIONS);
    // The remaining room is less than another connection takes.
    let gap = (2..100).take_while(|psn| is_answered(net, 1, 0, *psn));
    assert!(gap.count() < 672 / 40);
    // Packets in order need no further room. Others are treated as lost.
    let in_order = [2, 1, 2].map(|psn| is_answered(net, 0, 0, psn));
    assert_eq!(in_order, [false, true, true]);
    // Other programs have room of their own.
    programs.accept(1, genuine);
    assert_eq!(programs.wait(0).status, 0);
    // Idle connections are dropped eventually.
    let net = &mut programs.nets[1];
    net.run_for(Duration::from_secs(70));
    assert!(is_answered(net, 2, 40_000, 0));
}

/// Programs of a host that join and leave take all ports of that host, until these have rested. Those of other hosts can join.
#[test]
fn ports_that_have_rested_are_used_again() {
    const DEVICES: usize = 256;
    let mut net = Net::of_program(&[Profile::Efa3], Settings::default(), 1, 1);
    let addresses: Vec<_> = (0..=u8::MAX).map(|number| [number; 16]).collect();
    let mut program = 0;
    for _ in 0..3 {
        for number in 1..=5 {
            let mut joined = 0;
            loop {
                program += 1;
                let mut newcomer = newcomer(&net, program, &addresses);
                newcomer.host = host(number);
                match try_join(&net, &newcomer, &Arc::default()) {
                    Ok(link) => net.fabric.leave(net.now, link),
                    Err(error) => break assert_eq!(error, JoinError::TooMany),
                }
                joined += DEVICES;
            }
            assert_eq!(joined, if number == 5 { 0 } else { 1024 });
        }
        net.now += Duration::from_secs(61);
    }
}

/// Programs of one host leave links to those of others, and to programs that this one has connected to.
#[test]
fn links_of_a_host_are_limited() {
    let net = Net::of_program(&[Profile::Efa3], Settings::default(), 1, 1);
    let mut addresses = (0..=u8::MAX).map(|number| [[number; 16]]);
    let mut join = |host| {
        let address = addresses.next().unwrap();
        let mut newcomer = newcomer(&net, address[0][0].into(), &address);
        newcomer.host = host;
        try_join(&net, &newcomer, &Arc::default()).is_ok()
    };
    for (host, links) in [(host(1), 8), (host(2), 8), (None, 64 - 16)] {
        let joined = (0..100).take_while(|_| join(host)).count();
        assert_eq!(joined, links, "{host:?}");
    }
}
