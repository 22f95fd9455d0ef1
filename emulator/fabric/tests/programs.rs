// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices of two programs on one network.

mod net;

use std::time::Duration;

use efa_fabric::{LinkId, PortId, Settings};
use efa_hw::{
    admin::qp::QpType,
    io::{Cdesc, CompStatus},
};
use efa_model::Profile;
use net::{Net, Qp, Send, pattern};

/// Two programs with a device and a queue pair each.
struct Programs {
    nets: [Net; 2],
    qps: [Qp; 2],
    links: [LinkId; 2],
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
        let links = [0, 1].map(|index: usize| nets[index].cluster.join(vec![addresses[1 - index]]));
        Self { nets, qps, links }
    }

    /// Lets both do what they can, and carries their packets.
    fn run(&mut self) {
        loop {
            for net in &mut self.nets {
                net.run_for(Duration::from_micros(100));
            }
            let mut any = false;
            for index in 0..2 {
                for (link, frame) in self.nets[index].cluster.take_frames() {
                    assert_eq!(link, self.links[index]);
                    let (other, link) = (&mut self.nets[1 - index], self.links[1 - index]);
                    let now = other.now;
                    other.cluster.accept(now, link, frame);
                    any = true;
                }
            }
            if !any {
                return;
            }
        }
    }

    fn wait(&mut self, index: usize) -> Cdesc {
        for _ in 0..100_000 {
            self.run();
            if let Some(completion) = self.nets[index].poll(&mut self.qps[index]) {
                return completion;
            }
        }
        panic!("no completion comes");
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

#[test]
fn messages_writes_and_reads_cross() {
    for settings in networks() {
        let mut programs = Programs::new(QpType::Srd, &settings);
        let regions = [0, 1].map(|index: usize| {
            let qp = programs.qps[index].clone();
            programs.nets[index].region(&qp, 60, 77)
        });
        let [from, to] = &regions;
        let peer = programs.qps[1].clone();
        let bytes = pattern(200_000, 1);
        programs.nets[0].fill(from, 0, &bytes);

        let (net, qp) = (&mut programs.nets[1], &mut programs.qps[1]);
        net.receive(qp, &[(to.iova, 5000, to.lkey)]);
        programs.nets[0].post(&mut programs.qps[0], &Send::message(&peer, from, 5000));
        assert_eq!(programs.wait(0).status, 0);
        assert_eq!(programs.wait(1).length, 5000);
        assert_eq!(programs.nets[1].content(to, 0, 5000), bytes[..5000]);

        programs.nets[0].post(&mut programs.qps[0], &Send::write(&peer, from, to, 200_000));
        assert_eq!(programs.wait(0).status, 0);
        assert!(programs.nets[1].content(to, 0, 200_000) == bytes);

        programs.nets[0].fill(from, 0, &vec![0; 200_000]);
        programs.nets[0].post(&mut programs.qps[0], &Send::read(&peer, from, to, 200_000));
        assert_eq!(programs.wait(0).status, 0);
        assert!(programs.nets[0].content(from, 0, 200_000) == bytes);

        // What can't be read.
        let mut read = Send::read(&peer, from, to, 10);
        read.remote = Some((to.iova, 10, 99));
        programs.nets[0].post(&mut programs.qps[0], &read);
        assert_eq!(
            programs.wait(0).status,
            u8::from(CompStatus::RemoteBadAddress)
        );
        for net in &mut programs.nets {
            assert_eq!(net.protocol_errors(), 0);
        }
    }
}

#[test]
fn datagrams_cross() {
    let mut programs = Programs::new(QpType::Ud, &Settings::default());
    let regions = [0, 1].map(|index: usize| {
        let qp = programs.qps[index].clone();
        programs.nets[index].region(&qp, 2, 0)
    });
    let peer = programs.qps[1].clone();
    let bytes = pattern(3000, 4);
    programs.nets[0].fill(&regions[0], 0, &bytes);
    let (net, qp) = (&mut programs.nets[1], &mut programs.qps[1]);
    net.receive(qp, &[(regions[1].iova, 4000, regions[1].lkey)]);
    programs.nets[0].post(
        &mut programs.qps[0],
        &Send::message(&peer, &regions[0], 3000),
    );
    assert_eq!(programs.wait(0).status, 0);
    assert_eq!(programs.wait(1).length, 3040);
    assert_eq!(programs.nets[1].content(&regions[1], 40, 3000), bytes);
}

#[test]
fn a_program_that_is_gone_does_not_respond() {
    let mut programs = Programs::new(QpType::Srd, &Settings::default());
    let qp = programs.qps[0].clone();
    let from = programs.nets[0].region(&qp, 1, 0);
    let peer = programs.qps[1].clone();
    programs.nets[0].post(&mut programs.qps[0], &Send::message(&peer, &from, 10));
    // It never gets the packet.
    let link = programs.links[0];
    programs.nets[0].cluster.leave(link);
    let status = programs.nets[0].status(&mut programs.qps[0]);
    assert_eq!(status, CompStatus::LocalUnrespRemote);
    // And is not found any more.
    let mut send = Send::message(&peer, &from, 10);
    let address = programs.nets[1].address(PortId(0));
    send.ah = Some(programs.nets[0].handle_of(&qp, address));
    programs.nets[0].run_for(Duration::from_secs(10));
    programs.nets[0].post(&mut programs.qps[0], &send);
    let status = programs.nets[0].status(&mut programs.qps[0]);
    assert_eq!(status, CompStatus::LocalUnreachRemote);
}

#[test]
fn nobody_speaks_for_the_devices_of_others() {
    let mut programs = Programs::new(QpType::Srd, &Settings::default());
    let qp = programs.qps[0].clone();
    let from = programs.nets[0].region(&qp, 1, 0);
    let qp = programs.qps[1].clone();
    let to = programs.nets[1].region(&qp, 1, 0);
    programs.nets[0].fill(&from, 0, &[7; 10]);
    programs.nets[0].post(&mut programs.qps[0], &Send::write(&qp, &from, &to, 10));
    programs.nets[0].run();
    let frames = programs.nets[0].cluster.take_frames();
    assert_eq!(frames.len(), 1);
    let other = programs.nets[1].cluster.join(vec![[9; 16]]);
    for (_, frame) in frames {
        let now = programs.nets[1].now;
        programs.nets[1].cluster.accept(now, other, frame);
    }
    assert_eq!(programs.nets[1].content(&to, 0, 10), [0; 10]);
}
