// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A program that may write anything to its queues and doorbells, and change its objects meanwhile.

use std::time::Duration;

use efa_fabric::{PathSettings, PortId, Settings};
use efa_hw::{
    admin::{
        ah::DestroyAh,
        mr::{DeregMr, RegMrPermissions},
        qp::{QpState, QpType},
    },
    io::{FastMrRegFlags, FastMrRegReq, RxDesc, RxLkeyCtrl},
};
use efa_model::Profile;

use crate::{
    attack::precious::{self, Precious},
    input::Input,
    mock::Driver,
    net::{DEPTH, MOST, Net, PAGE, Qp, Region, Send},
};

impl Input<'_> {
    /// Returns the good value most of the time, else a near or an arbitrary one.
    pub(super) fn nearly(&mut self, good: u64) -> u64 {
        match self.byte() {
            0..=191 => good,
            192..=223 => good.wrapping_add(u64::from(self.byte()) * 64),
            224..=239 => good.wrapping_sub(u64::from(self.byte()) + 1),
            _ => self.u64(),
        }
    }
}

/// The attacker's objects, and memory that must not change.
struct Attack {
    net: Net,
    qps: Vec<Qp>,
    regions: Vec<Region>,
    /// Memory that is mapped for each device, but in no region that peers or queue pairs may write.
    precious: Precious,
    /// Values of event counters, each alone in its page.
    counters: Vec<(PortId, u64)>,
    /// For each device, a region for fast registration, and the request that registers all its pages. Only one queue pair may
    /// use it.
    fast: Vec<(Region, FastMrRegReq)>,
}

/// Number of queue pairs that belong to programs. The others are the kernel's, which only registers its own memory.
const PROGRAMS: usize = 4;

impl Attack {
    fn new(settings: Settings) -> Self {
        let mut net = Net::new(&[Profile::Efa3; 2], settings);
        let (mut a, mut b) = (net.qp(0, QpType::Srd), net.qp(1, QpType::Srd));
        let (mut c, mut d) = (net.qp(0, QpType::Ud), net.qp(1, QpType::Ud));
        net.introduce(&mut a, &mut b);
        net.introduce(&mut c, &mut d);
        let (mut e, mut f) = (net.qp(0, QpType::Srd), net.qp(1, QpType::Srd));
        net.introduce(&mut e, &mut f);
        let fast = [&e, &f].map(|qp| {
            let region = net.fast_region(qp, 5, 100);
            let request = net.listed(&region);
            (region, request)
        });
        let mut qps = vec![a, b, c, d, e, f];
        let mut counters = Vec::new();
        for qp in &mut qps {
            let places = net.count(qp, &[0x155, 0x2aa]);
            counters.extend(places.into_iter().map(|place| (qp.port, place)));
        }
        let regions = qps.iter().map(|qp| net.region(qp, 5, 100)).collect();
        let precious = Precious::new(&mut net, &qps);
        Self {
            net,
            qps,
            regions,
            precious,
            counters,
            fast: fast.into(),
        }
    }

    /// Posts a work request that changes a memory region.
    fn change_region(&mut self, input: &mut Input<'_>, index: usize, victim: u64) {
        let qp = &mut self.qps[index];
        let (region, good) = &mut self.fast[qp.port.0];
        let choice = input.byte();
        let send = if choice & 3 == 0 {
            let keys = [region.lkey, region.rkey, self.regions[index].lkey];
            Send::invalidate(input.nearly(keys[usize::from(choice >> 6) % 3].into()) as u32)
        } else {
            if choice & 4 != 0 {
                region.renew();
            }
            // A program attempts to register memory of others.
            let (page, list) = match index {
                0..PROGRAMS => (victim, victim),
                _ => (region.pages()[0], good.pbl),
            };
            let mode = input.nearly((choice >> 7).into()) as u8;
            let pbl = if mode == 0 { page } else { list };
            Send::register(&FastMrRegReq {
                lkey: input.nearly(region.lkey.into()) as u32,
                permissions: RegMrPermissions::from_raw(input.byte()),
                flags: FastMrRegFlags {
                    pbl_mode: mode,
                    ..good.flags
                },
                iova: input.nearly(good.iova),
                mr_length: input.nearly(if mode == 0 { PAGE / 2 } else { good.mr_length }),
                pbl: input.nearly(pbl),
            })
        };
        self.net.post(qp, &send);
    }

    /// Returns the numbers of registrations and invalidations of either device.
    fn changes(&mut self) -> [(u64, u64); 2] {
        [PortId(0), PortId(1)].map(|port| {
            let state = self.net.state(port);
            (state.fast_regs, state.fast_invs)
        })
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let index = usize::from(input.byte()) % self.qps.len();
        let changes = self.changes();
        self.act(input, choice, index);
        if index < PROGRAMS {
            assert_eq!(self.changes(), changes, "a program has changed a region");
        }
    }

    fn act(&mut self, input: &mut Input<'_>, choice: u8, index: usize) {
        // The queue pair's peer, most of the time.
        let other = input.nearly(index as u64 ^ 1) as usize % self.qps.len();
        let peer = self.qps[other].clone();
        // The kernel's queue pairs use regions of fast registration, most of the time.
        let mut memory = |index: usize| match self.qps[index].port.0 {
            port if index >= PROGRAMS && input.byte() < 192 => self.fast[port].0.clone(),
            _ => self.regions[index].clone(),
        };
        let (own, theirs) = (memory(index), memory(other));
        let victim = self.precious.region(other).clone();
        let qp = &mut self.qps[index];
        match choice % 14 {
            0..=3 => {
                let target = if input.byte() < 32 { &victim } else { &theirs };
                let length = input.u32() % 20_000;
                let length = input.nearly(length.into()) as u32;
                let send = Send {
                    operation: input.nearly((choice % 3).into()) as u8,
                    immediate: (choice & 64 != 0).then_some(7),
                    buffers: vec![
                        (
                            input.nearly(own.iova),
                            input.nearly(length.into()) as u32,
                            input.nearly(own.lkey.into()) as u32,
                        );
                        input.nearly(1) as usize % 4
                    ],
                    inline: (input.byte() < 16).then(|| vec![0x55; usize::from(input.byte())]),
                    remote: (choice % 3 != 0).then(|| {
                        (
                            input.nearly(target.iova),
                            input.nearly(length.into()) as u32,
                            input.nearly(target.rkey.into()) as u32,
                        )
                    }),
                    body: None,
                    ah: Some(input.nearly(qp.ah.into()) as u16),
                    peer_qp: input.nearly(peer.number.into()) as u16,
                    qkey: None,
                    silent: choice & 128 != 0,
                };
                self.net.post(qp, &send);
            }
            4 => {
                let bytes: Vec<_> = (0..128).map(|_| input.byte()).collect();
                self.net.put_raw(qp, &bytes);
                self.net.ring_send(qp);
            }
            5 | 6 => {
                let desc = RxDesc {
                    buf_addr: input.nearly(own.iova),
                    req_id: 1,
                    length: input.nearly(8928) as u16,
                    lkey_ctrl: RxLkeyCtrl {
                        lkey: input.nearly(own.lkey.into()) as u32,
                        first: input.nearly(1) & 1 != 0,
                        last: input.nearly(1) & 1 != 0,
                    },
                };
                self.net.put_receive(qp, &desc);
            }
            7 => {
                let (offset, value) = (input.u64() % (1 << 24), input.u32());
                let doorbell = if input.byte() < 128 {
                    qp.doorbells[usize::from(choice >> 7)]
                } else {
                    offset
                };
                let port = qp.port;
                self.net.doorbell(port, doorbell, value);
            }
            8 => {
                let states = [QpState::Err, QpState::Sqd, QpState::Rts, QpState::Reset];
                let state = states[usize::from(input.byte()) % 4];
                self.net.try_modify(qp, state);
            }
            9 => {
                for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
                    self.net.try_modify(qp, state);
                }
            }
            10 => {
                let (port, l_key) = (qp.port, own.lkey);
                let (ah, pd) = (qp.ah, qp.pd);
                let gone = input.byte() % 4;
                self.net.driver(port, |driver| {
                    // The object may be gone already.
                    let _ = match gone {
                        0 => driver.execute(&DeregMr { l_key }).map(|_| ()),
                        1 => driver.execute(&DestroyAh { ah, pd }).map(|_| ()),
                        _ => Ok(()),
                    };
                });
                if gone == 2 {
                    let qp = qp.clone();
                    self.regions[index] = self.net.region(&qp, 5, 100);
                }
            }
            11 | 12 => {
                let page = victim.pages()[0];
                self.change_region(input, index, page);
            }
            _ => {
                let time = Duration::from_micros(u64::from(input.u32()) % 20_000);
                self.net.run_for(time);
            }
        }
    }

    /// Checks that protected memory has not changed, that event counters have valid values, and that programs have no privilege.
    fn check(&mut self) {
        for port in [PortId(0), PortId(1)] {
            let resources = |driver: &mut Driver| driver.device.state().resources;
            assert_eq!(self.net.driver(port, resources).privileged_pd, 1);
        }
        self.precious.check(&mut self.net);
        for (port, place) in &self.counters {
            assert!(self.net.values(*port, &[*place])[0] <= MOST);
            let page: [u8; PAGE as usize] =
                self.net.world(*port, |world| world.read(place - PAGE / 2));
            let used = page.iter().enumerate().filter(|(_, byte)| **byte != 0);
            let value = PAGE as usize / 2..PAGE as usize / 2 + 8;
            assert!(used.map(|(at, _)| at).all(|at| value.contains(&at)));
        }
    }
}

/// Plays an attack, according to the bytes.
pub fn play(data: &[u8]) {
    let mut input = Input(data);
    let mut settings = Settings::default();
    if input.byte() & 1 != 0 {
        settings.loss = 0.2;
        settings.delay_us = 10.0;
        settings.jitter_us = 30.0;
        settings.path = vec![PathSettings {
            down: true,
            ..PathSettings::default()
        }];
    }
    let mut attack = Attack::new(settings);
    let mut steps = 0;
    while !input.0.is_empty() && steps < 4 * usize::from(DEPTH) {
        attack.step(&mut input);
        attack.net.run();
        steps += 1;
    }
    attack.net.run_for(Duration::from_secs(30));
    attack.check();
    precious::check_exchange(&mut attack.net);
}
