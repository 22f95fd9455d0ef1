// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A program that may write anything to its queues and doorbells, and change its objects meanwhile.

use super::{
    Input,
    victims::{Victims, settings},
};
use crate::prelude::*;

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

    /// Returns address, length and key of a part of a region, most of the time.
    fn place(&mut self, address: u64, length: u32, key: u32) -> (u64, u32, u32) {
        let (address, length) = (self.nearly(address), self.nearly(length.into()) as u32);
        (address, length, self.nearly(key.into()) as u32)
    }
}

/// The attacker's objects, and memory that must not change.
struct Attack {
    victims: Victims,
    /// Values of event counters, each alone in its page.
    counters: Vec<(PortId, u64)>,
    /// For each device, a region for fast registration, and the request that registers all its pages. Only one queue pair may
    /// use it.
    fast: [(Region, FastMrRegReq); 2],
}

/// Number of queue pairs that belong to programs. The others are the kernel's, which only registers its own memory.
const PROGRAMS: usize = 4;

impl Attack {
    fn new(is_faulty: bool) -> Self {
        let kinds = [QpType::Srd, QpType::Ud, QpType::Srd];
        let mut victims = Victims::new(settings(is_faulty), &kinds);
        let Victims { net, qps, .. } = &mut victims;
        let fast = [4, 5].map(|kernel| {
            let region = net.fast_region(&qps[kernel], 5, 100);
            let request = net.listed(&region);
            (region, request)
        });
        let mut counters = Vec::new();
        for qp in qps {
            let places = net.count(qp, &[0x155, 0x2aa]);
            counters.extend(places.into_iter().map(|place| (qp.port, place)));
        }
        Self { victims, counters, fast }
    }

    /// Posts a work request that changes a memory region.
    fn change_region(&mut self, input: &mut Input<'_>, index: usize, victim: u64) {
        let Victims { net, qps, regions, .. } = &mut self.victims;
        let qp = &mut qps[index];
        let (region, good) = &mut self.fast[qp.port.0];
        let choice = input.byte();
        let send = if choice & 3 == 0 {
            let keys = [region.lkey, region.rkey, regions[index].lkey];
            Send::invalidate(input.nearly(keys[usize::from(choice >> 6) % 3].into()) as u32)
        } else {
            if choice & 4 != 0 {
                region.renew();
            }
            // A program attempts to register memory of others.
            let (page, list) = match index {
                0..PROGRAMS => (victim, victim),
                _ => (region.pages[0], good.pbl),
            };
            let mode = input.nearly((choice >> 7).into()) as u8;
            let pbl = if mode == 0 { page } else { list };
            Send::register(&FastMrRegReq {
                lkey: input.nearly(region.lkey.into()) as u32,
                permissions: RegMrPermissions::from_raw(input.byte()),
                flags: FastMrRegFlags { pbl_mode: mode, ..good.flags },
                iova: input.nearly(good.iova),
                mr_length: input.nearly(if mode == 0 { PAGE / 2 } else { good.mr_length }),
                pbl: input.nearly(pbl),
            })
        };
        net.post(qp, &send);
    }

    /// Returns the numbers of registrations and invalidations of either device.
    fn changes(&mut self) -> [(u64, u64); 2] {
        [PortId(0), PortId(1)].map(|port| {
            let state = self.victims.net.state(port);
            (state.fast_regs, state.fast_invs)
        })
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let index = usize::from(input.byte()) % self.victims.qps.len();
        let changes = self.changes();
        self.act(input, choice, index);
        if index < PROGRAMS {
            assert_eq!(self.changes(), changes, "a program has changed a region");
        }
    }

    fn act(&mut self, input: &mut Input<'_>, choice: u8, index: usize) {
        let Victims { net, qps, regions, precious } = &mut self.victims;
        // The queue pair's peer, most of the time.
        let other = input.nearly(index as u64 ^ 1) as usize % qps.len();
        let peer = qps[other].number;
        // The kernel's queue pairs use regions of fast registration, most of the time.
        let mut memory = |index: usize| match qps[index].port.0 {
            port if index >= PROGRAMS && input.byte() < 192 => self.fast[port].0.clone(),
            _ => regions[index].clone(),
        };
        let (own, theirs) = (memory(index), memory(other));
        let victim = &precious[other];
        let qp = &mut qps[index];
        match choice % 14 {
            0..=3 => {
                let target = if input.byte() < 32 { victim } else { &theirs };
                let length = input.u32() % 20_000;
                let length = input.nearly(length.into()) as u32;
                let send = Send {
                    operation: input.nearly((choice % 3).into()) as u8,
                    immediate: (choice & 64 != 0).then_some(7),
                    buffers: vec![input.place(own.iova, length, own.lkey); input.nearly(1) as usize % 4],
                    inline: (input.byte() < 16).then(|| vec![0x55; usize::from(input.byte())]),
                    remote: (choice % 3 != 0).then(|| input.place(target.iova, length, target.rkey)),
                    ah: Some(input.nearly(qp.ah.into()) as u16),
                    peer_qp: input.nearly(peer.into()) as u16,
                    silent: choice & 128 != 0,
                    ..Send::default()
                };
                net.post(qp, &send);
            }
            4 => {
                let bytes: Vec<_> = (0..128).map(|_| input.byte()).collect();
                net.put_raw(qp, &bytes);
                net.ring_send(qp);
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
                net.put_receive(qp, &desc);
            }
            7 => {
                let (offset, value) = (input.u64() % (1 << 24), input.u32());
                let doorbell = if input.byte() < 128 { qp.doorbells[usize::from(choice >> 7)] } else { offset };
                net.doorbell(qp.port, doorbell, value);
            }
            8 | 9 => {
                let states = [QpState::Err, QpState::Sqd, QpState::Rts, QpState::Reset];
                let one = [states[usize::from(input.byte()) % 4]];
                let start = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
                let next: &[_] = if choice % 14 == 8 { &one } else { &start };
                for state in next {
                    // The device may reject it.
                    let _ = net.driver(qp.port, |driver| qp.modify(driver, *state));
                }
            }
            10 => {
                let (port, l_key) = (qp.port, own.lkey);
                let (ah, pd) = (qp.ah, qp.pd);
                // The object may be gone already.
                match input.byte() % 4 {
                    0 => drop(net.execute(port, &DeregMr { l_key })),
                    1 => drop(net.execute(port, &DestroyAh { ah, pd })),
                    2 => regions[index] = net.region(qp, 5, 100),
                    _ => {}
                }
            }
            11 | 12 => {
                let page = victim.pages[0];
                self.change_region(input, index, page);
            }
            _ => {
                let time = Duration::from_micros(u64::from(input.u32()) % 20_000);
                net.run_for(time);
            }
        }
    }

    /// Checks that protected memory has not changed, that event counters have valid values, and that programs have no privilege.
    fn check(&mut self) {
        let net = &mut self.victims.net;
        for port in [PortId(0), PortId(1)] {
            let resources = |driver: &mut Driver| driver.device.state().resources;
            assert_eq!(net.driver(port, resources).privileged_pd, 1);
        }
        for (port, place) in &self.counters {
            assert!(net.values(*port, &[*place])[0] <= MOST);
            let page: [u8; PAGE as usize] = net.world(*port, |world| world.entry(place - PAGE / 2));
            let used = page.iter().enumerate().filter(|(_, byte)| **byte != 0);
            let value = PAGE as usize / 2..PAGE as usize / 2 + 8;
            assert!(used.map(|(at, _)| at).all(|at| value.contains(&at)));
        }
        self.victims.check();
    }
}

/// Plays an attack, according to the bytes.
pub fn play(data: &[u8]) {
    let mut input = Input(data);
    let mut attack = Attack::new(input.byte() & 1 != 0);
    let mut steps = 0;
    while !input.is_empty() && steps < 4 * usize::from(DEPTH) {
        attack.step(&mut input);
        attack.victims.net.run();
        steps += 1;
    }
    attack.victims.net.run_for(Duration::from_secs(30));
    attack.check();
}
