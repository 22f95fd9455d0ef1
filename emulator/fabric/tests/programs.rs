// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices of two programs on one network.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use efa_fabric::{Frame, JoinError, Link, LinkId, Newcomer, PortId, Record, Settings, Tap};
use efa_hw::{
    admin::qp::QpType,
    io::{Cdesc, CompStatus},
};
use efa_model::Profile;
use efa_testing::{
    net::{Net, Qp, Region, Send, pattern},
    qp::status,
};

/// Connections of another program that its limit of 64 MiB allows: each takes 656 bytes.
const CONNECTIONS: usize = (64 << 20) / 656;

/// Packets in flight to another program.
#[derive(Default)]
struct Wire(Mutex<Vec<Frame>>);

impl Link for Wire {
    fn send(&self, frame: Frame) {
        self.0.lock().unwrap().push(frame);
    }
}

impl Wire {
    fn take(&self) -> Vec<Frame> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Returns another program that has been offered a session, and offers none.
fn newcomer<'a>(net: &Net, program: u64, addresses: &'a [[u8; 16]]) -> Newcomer<'a> {
    Newcomer {
        program,
        addresses,
        session: net.fabric.session(program, addresses),
        offered: 0,
    }
}

/// Lets another program join.
fn try_join(net: &Net, newcomer: &Newcomer<'_>, wire: &Arc<Wire>) -> Result<LinkId, JoinError> {
    let way: Arc<dyn Link> = Arc::clone(wire) as _;
    net.fabric.join(net.now, newcomer, &way)
}

/// Joins another program to the network; returns its link and the packets that are sent over it.
fn join(net: &Net, program: u64, addresses: &[[u8; 16]]) -> (LinkId, Arc<Wire>) {
    let wire = Arc::default();
    let link = try_join(net, &newcomer(net, program, addresses), &wire);
    (link.unwrap(), wire)
}

/// Joins two programs with one device each.
fn join_each_other(nets: &mut [Net; 2]) -> [(LinkId, Arc<Wire>); 2] {
    let addresses = [1, 0].map(|other: usize| [nets[other].address(PortId(0))]);
    let newcomers =
        [0, 1].map(|index: usize| newcomer(&nets[index], 1 - index as u64, &addresses[index]));
    [0, 1].map(|index: usize| {
        let newcomer = Newcomer {
            offered: newcomers[1 - index].session.number,
            ..newcomers[index]
        };
        let wire = Arc::default();
        let link = try_join(&nets[index], &newcomer, &wire);
        (link.unwrap(), wire)
    })
}

/// Two programs with a device and a queue pair each.
struct Programs {
    nets: [Net; 2],
    qps: [Qp; 2],
    links: [(LinkId, Arc<Wire>); 2],
}

impl Programs {
    fn new(qp_type: QpType, settings: &Settings) -> Self {
        let mut nets = [1, 2]
            .map(|program| Net::of_program(&[Profile::Efa3], settings.clone(), program, program));
        let addresses = [0, 1].map(|index: usize| nets[index].address(PortId(0)));
        let mut qps = [0, 1].map(|index: usize| nets[index].qp(0, qp_type));
        for index in 0..2 {
            qps[index].ah = nets[index].handle_of(&qps[index], addresses[1 - index]);
        }
        let links = join_each_other(&mut nets);
        Self { nets, qps, links }
    }

    /// Returns programs with SRD queue pairs, and a region of each.
    fn srd(settings: &Settings) -> (Self, [Region; 2]) {
        let mut programs = Self::new(QpType::Srd, settings);
        let regions = programs.regions(1, 0);
        (programs, regions)
    }

    /// Registers a region of each program.
    fn regions(&mut self, pages: u64, offset: u64) -> [Region; 2] {
        [0, 1].map(|index: usize| self.nets[index].region(&self.qps[index], pages, offset))
    }

    /// Posts a receive work request of the second program.
    fn receive(&mut self, region: &Region, length: u16) {
        self.nets[1].receive(&mut self.qps[1], &[(region.iova, length, region.lkey)]);
    }

    fn post(&mut self, index: usize, send: &Send) {
        self.nets[index].post(&mut self.qps[index], send);
    }

    /// Posts a work request of the first program; returns its status.
    fn outcome(&mut self, send: &Send) -> CompStatus {
        self.post(0, send);
        status(&self.wait(0))
    }

    /// Runs one program; returns the packets that it sends.
    fn sent(&mut self, index: usize) -> Vec<Frame> {
        self.nets[index].run();
        self.links[index].1.take()
    }

    /// Passes a packet of the other program to a program.
    fn accept(&self, index: usize, frame: Frame) {
        let net = &self.nets[index];
        net.fabric.accept(net.now, self.links[index].0, frame, 1000);
    }

    /// Runs one program, and passes the packets that it sends to the other one.
    fn carry(&mut self, from: usize) {
        for frame in self.sent(from) {
            self.accept(1 - from, frame);
        }
    }

    /// Runs one program; returns its next completion, if there is one.
    fn poll(&mut self, index: usize) -> Option<Cdesc> {
        self.nets[index].run();
        self.nets[index].poll(&mut self.qps[index])
    }

    /// Loses the link of one program.
    fn leave(&self, index: usize) {
        let net = &self.nets[index];
        net.fabric.leave(net.now, self.links[index].0);
    }

    /// Runs both programs and carries their packets, until there are no more.
    fn run(&mut self) {
        loop {
            for net in &mut self.nets {
                net.run_for(Duration::from_micros(100));
            }
            let mut any = false;
            for index in 0..2 {
                for frame in self.links[index].1.take() {
                    self.accept(1 - index, frame);
                    any = true;
                }
            }
            if !any {
                return;
            }
        }
    }

    /// Loses the links, and joins the programs again after `meanwhile`.
    fn reconnect(&mut self, meanwhile: impl FnOnce(&mut [Net; 2])) {
        for index in 0..2 {
            self.leave(index);
        }
        meanwhile(&mut self.nets);
        self.links = join_each_other(&mut self.nets);
    }

    fn wait(&mut self, index: usize) -> Cdesc {
        for _ in 0..100_000 {
            self.run();
            if let Some(completion) = self.poll(index) {
                return completion;
            }
        }
        panic!("no completion arrives");
    }
}

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

/// Counts packets that arrive at devices.
#[derive(Debug, Default)]
struct Arrived(AtomicU32);

impl Tap for Arrived {
    fn snap(&self) -> u32 {
        0
    }

    fn show(&self, _: PortId, has_left: bool, _: Record) {
        self.0.fetch_add(u32::from(!has_left), Ordering::Relaxed);
    }
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
    let arrived = Arc::new(Arrived::default());
    let fabric = &programs.nets[1].fabric;
    fabric.set_tap(Arc::clone(&arrived) as _);
    for (length, arrives) in [(MTU + 1, false), (12_000, false), (MTU, true)] {
        let mut value = serde_json::to_value(&genuine).unwrap();
        value["body"]["Datagram"]["payload"] = vec![9; length].into();
        programs.accept(1, serde_json::from_value(value).unwrap());
        let completion = programs.poll(1);
        assert_eq!(completion.is_some(), arrives, "{completion:?}");
        let shown = arrived.0.swap(0, Ordering::Relaxed);
        assert_eq!(shown, u32::from(arrives), "{length}");
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
    for has_its_address in [false, true] {
        let (mut programs, [from, to]) = Programs::srd(&patient());
        // A peer that has responded before is given up later.
        let write = Send::write(&programs.qps[1], &from, &to, 10);
        assert_eq!(programs.outcome(&write), CompStatus::Ok);
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
        assert_eq!(status(&completion), CompStatus::LocalUnrespRemote);
    }
}

/// A link is restored if both ends have kept their state. Otherwise, packets that have arrived would arrive twice.
#[test]
fn a_link_is_restored_by_both_ends_or_by_none() {
    for forgets in [None, Some(0), Some(1)] {
        let (mut programs, [from, to]) = Programs::srd(&patient());
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
                net.run_for(Duration::from_secs(6));
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

#[test]
fn frames_with_a_forged_source_are_dropped() {
    let (mut programs, [from, to]) = Programs::srd(&Settings::default());
    programs.nets[0].fill(&from, 0, &[7; 10]);
    let write = Send::write(&programs.qps[1], &from, &to, 10);
    programs.post(0, &write);
    let frames = programs.sent(0);
    assert_eq!(frames.len(), 1);
    let net = &programs.nets[1];
    let (other, _) = join(net, 9, &[[9; 16]]);
    for frame in frames {
        net.fabric.accept(net.now, other, frame, 1000);
    }
    assert_eq!(programs.nets[1].content(&to, 0, 10), [0; 10]);
}

/// Returns a program's frame as another program would send it for its own device.
fn forged(frame: &Frame, address: [u8; 16]) -> Frame {
    let mut value = serde_json::to_value(frame).unwrap();
    let address = serde_json::to_value(address).unwrap();
    if let Some(peer) = value.pointer_mut("/body/Data/header/peer") {
        *peer = address.clone();
    }
    value["from"] = address;
    serde_json::from_value(value).unwrap()
}

#[test]
fn forged_acknowledgements_and_responses_are_dropped() {
    const OTHER: [u8; 16] = [9; 16];
    let (mut programs, [from, to]) = Programs::srd(&Settings::default());
    programs.nets[1].fill(&to, 0, &[7; 100]);
    let (other, _) = join(&programs.nets[0], 9, &[OTHER]);
    let peer = programs.qps[1].clone();
    for send in [
        Send::write(&peer, &from, &to, 10),
        Send::read(&peer, &from, &to, 100),
    ] {
        programs.post(0, &send);
        let mut completion = None;
        // The other program sends copies of all of the peer's frames first. The peer's own frames follow.
        while completion.is_none() {
            programs.carry(0);
            let frames = programs.sent(1);
            assert!(!frames.is_empty(), "the peer sends nothing");
            let net = &programs.nets[0];
            for frame in &frames {
                net.fabric
                    .accept(net.now, other, forged(frame, OTHER), 1000);
            }
            assert_eq!(programs.poll(0), None);
            for frame in frames {
                programs.accept(0, frame);
            }
            completion = programs.poll(0);
        }
        assert_eq!(completion.unwrap().status, 0);
    }
    assert_eq!(programs.nets[0].content(&from, 10, 90), [7; 90]);
}

#[test]
fn a_response_is_no_longer_than_its_read() {
    const LENGTH: usize = 100;
    let (mut programs, [from, to]) = Programs::srd(&Settings::default());
    programs.nets[1].fill(&to, 0, &[7; LENGTH]);
    let read = Send::read(&programs.qps[1], &from, &to, LENGTH as u32);
    programs.post(0, &read);
    programs.carry(0);
    let answered = programs.sent(1);
    let response = answered
        .iter()
        .find(|frame| frame.payload() == LENGTH)
        .expect("a response");
    for (offset, length) in [
        (1, LENGTH),
        (LENGTH, LENGTH),
        (u32::MAX as usize - 5, LENGTH),
        (0, LENGTH + 1),
        (0, 2 * LENGTH),
    ] {
        let mut value = serde_json::to_value(response).unwrap();
        value["body"]["Data"]["data"]["offset"] = offset.into();
        value["body"]["Data"]["data"]["length"] = length.into();
        value["body"]["Data"]["payload"] = vec![9; length].into();
        programs.accept(0, serde_json::from_value(value).unwrap());
        assert_eq!(programs.poll(0), None);
    }
    for frame in answered {
        programs.accept(0, frame);
    }
    let completion = programs.poll(0);
    assert_eq!(completion.unwrap().status, 0);
    assert_eq!(programs.nets[0].content(&from, 0, LENGTH), [7; LENGTH]);
}

/// Returns a function that forges parts of a program's message as another program's, by connection and packet number. Each
/// connection is that of another queue pair. The floor of the parts is 0: they report no earlier packet as concluded.
fn parts(frame: &Frame, address: [u8; 16]) -> impl Fn(u64, u64) -> Frame + use<> {
    const PLACES: [&str; 3] = ["111111111", "222222222", "65535"];
    let mut value = serde_json::to_value(forged(frame, address)).unwrap();
    value["body"]["Data"]["header"]["peer_qp"] = u16::MAX.into();
    let data = value.pointer_mut("/body/Data/data").unwrap();
    data["connection"] = PLACES[0].parse::<u64>().unwrap().into();
    data["psn"] = PLACES[1].parse::<u64>().unwrap().into();
    data["floor"] = 0.into();
    let text = value.to_string();
    move |connection, psn| {
        let text = text
            .replace(PLACES[0], &connection.to_string())
            .replace(PLACES[1], &psn.to_string())
            .replace(PLACES[2], &connection.to_string());
        serde_json::from_str(&text).unwrap()
    }
}

#[test]
fn queued_acknowledgements_of_another_program_are_bounded() {
    // Limit of 8 MiB for all its devices, of which each acknowledgement takes 256 bytes.
    const MOST: u32 = (8 << 20) / 256;
    const OTHERS: [[u8; 16]; 2] = [[8; 16], [9; 16]];
    let (mut programs, [_, from]) = Programs::srd(&Settings::default());
    let send = Send::message(&programs.qps[0], &from, 10);
    programs.post(1, &send);
    // The peer responds that it is not ready.
    programs.carry(1);
    let genuine = programs.sent(0).pop().unwrap();
    assert_eq!(genuine.payload(), 0);
    let net = &mut programs.nets[1];
    let arrived = Arc::new(Arrived::default());
    net.fabric.set_tap(Arc::clone(&arrived) as _);
    let (other, _) = join(net, 9, &OTHERS);
    for address in OTHERS {
        let text = serde_json::to_string(&forged(&genuine, address)).unwrap();
        for _ in 0..MOST / 2 + 10 {
            let frame = serde_json::from_str(&text).unwrap();
            // A budget of 0: the packet stays queued.
            net.fabric.accept(net.now, other, frame, 0);
        }
    }
    net.run();
    assert_eq!(arrived.0.load(Ordering::Relaxed), MOST);
}

#[test]
fn unroutable_packets_leave_no_state() {
    const OTHERS: [[u8; 16]; 2] = [[8; 16], [9; 16]];
    let (mut programs, [from, to]) = Programs::srd(&Settings::default());
    // A message for a queue pair that does not exist, and a response to a read that does not exist.
    let mut send = Send::message(&programs.qps[1], &from, 10);
    send.peer_qp += 1;
    programs.post(0, &send);
    let message = programs.sent(0).pop().unwrap();
    let read = Send::read(&programs.qps[0], &to, &from, 10);
    programs.post(1, &read);
    programs.carry(1);
    let answers = programs.sent(0);
    let response = answers.iter().find(|frame| frame.payload() == 10).unwrap();
    let net = &mut programs.nets[1];
    let (other, wire) = join(net, 9, &OTHERS);
    let count = CONNECTIONS / 2 + 1000;
    for frame in [&message, response] {
        for address in OTHERS {
            let part = parts(frame, address);
            for connection in 0..count as u64 {
                let frame = part(connection, 7);
                net.fabric.accept(net.now, other, frame, 1000);
                assert!(!wire.take().is_empty(), "{connection}");
            }
        }
    }
    // The message is not recorded, but its acknowledgement has the status.
    let answer = |net: &Net| {
        let frame = parts(&message, OTHERS[0])(0, 7);
        net.fabric.accept(net.now, other, frame, 1000);
        serde_json::to_value(wire.take().pop().unwrap()).unwrap()
    };
    let status = u8::from(CompStatus::RemoteBadDestQpn);
    assert_eq!(answer(net)["body"]["Ack"]["verdict"]["Failed"], status);
}

#[test]
fn state_of_another_program_is_bounded() {
    const OTHERS: [[u8; 16]; 3] = [[7; 16], [8; 16], [9; 16]];
    let (mut programs, [from, to]) = Programs::srd(&Settings::default());
    let write = Send::write(&programs.qps[1], &from, &to, 10);
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
    let mut answered = 0;
    for device in 0..OTHERS.len() {
        for connection in 0..40_000 {
            answered += usize::from(is_answered(net, device, connection, 0));
        }
    }
    assert_eq!(answered, CONNECTIONS);
    // The remaining room is less than another connection takes.
    let gap = (2..100).take_while(|psn| is_answered(net, 1, 0, *psn));
    assert!(gap.count() < 656 / 40);
    // Packets in order need no further room. Others are treated as lost.
    assert!(!is_answered(net, 0, 0, 2));
    assert!(is_answered(net, 0, 0, 1));
    assert!(is_answered(net, 0, 0, 2));
    // Other programs have room of their own.
    programs.accept(1, genuine);
    assert_eq!(programs.wait(0).status, 0);
    // Idle connections are dropped eventually.
    let net = &mut programs.nets[1];
    net.run_for(Duration::from_secs(70));
    assert!(is_answered(net, 2, 40_000, 0));
}
