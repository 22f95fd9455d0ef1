// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A transport whose deliveries and work requests are in progress, while the driver does anything.

use std::collections::VecDeque;

use super::Input;
use crate::prelude::*;

/// Entries of each send queue and each receive queue.
const DEPTHS: [u16; 2] = [32, 16];

/// Limit on deliveries, and on work requests, that are in progress.
const UNDER_WAY: usize = 32;

/// A transport that executes work requests and deliveries.
pub(super) struct Transport {
    /// Queue pairs that can send and receive, one of each kind.
    qps: Vec<Qp>,
    deliveries: VecDeque<(Arrival, Delivery)>,
    requests: VecDeque<Request>,
}

impl Transport {
    /// Creates queue pairs with their objects and a region of one page, and fills their queues.
    pub(super) fn new(driver: &mut Driver, page: u64) -> Self {
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        let cq = Cq::new(driver, 64, CqCaps1::default(), false);
        let mut register = reg_mr(pd, 0, 4096);
        register.permissions.local_write_enable = true;
        let region = Region::new(driver, vec![page], register);
        // Messages of no bytes.
        let send = Send { operation: OpType::Send.into(), ..Send::default() };
        let mut ah = None;
        let qps = [QpType::Srd, QpType::Ud].map(|qp_type| {
            let shape = Shape { depths: DEPTHS, ..Shape::new(qp_type, 64) };
            let mut qp = Qp::of_cq(driver, pd, cq.clone(), shape);
            qp.ah = *ah.get_or_insert_with(|| qp.handle_of(driver, [1; 16]));
            qp.start(driver);
            for _ in 0..DEPTHS[0] {
                qp.put(&mut driver.world, &send);
            }
            for _ in 0..DEPTHS[1] {
                qp.put_receives(&driver.world, &[(0, 4096, region.lkey)]);
            }
            qp
        });
        Self { qps: qps.into(), deliveries: VecDeque::new(), requests: VecDeque::new() }
    }

    /// Replaces the queue pairs after a reset of the device. What was in progress ends later.
    pub(super) fn start_over(&mut self, driver: &mut Driver, page: u64) {
        self.qps = Self::new(driver, page).qps;
    }

    /// Requests another state of a queue pair, which the device may reject.
    pub(super) fn modify(&mut self, driver: &mut Driver, input: &mut Input<'_>) {
        let choice = input.byte();
        let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];
        let qp_handle = self.qps[usize::from(choice >> 7)].number.into();
        let state = states[usize::from(choice % 8) % states.len()];
        driver.submit(&to_state(qp_handle, state));
    }

    /// Rings an existing doorbell, fetches, or begins or ends a request or a delivery.
    pub(super) fn work(&mut self, driver: &mut Driver, input: &mut Input<'_>, addresses: &[u64]) {
        let choice = input.byte();
        let Driver { device, world, .. } = driver;
        match choice % 8 {
            0 | 1 => {
                let qp = &self.qps[usize::from(choice >> 4) % 2];
                let doorbell = qp.doorbells[usize::from(choice >> 3) % 2];
                let value = input.near(u64::from(choice >> 4), addresses) as u32;
                device.write_doorbell(world, doorbell, value);
            }
            2 if self.requests.len() < UNDER_WAY => {
                if let Fetched::Request(request) = device.fetch(world) {
                    self.requests.push_back(*request);
                }
            }
            3 => {
                if let Some(request) = self.requests.pop_front() {
                    let mut segments = Vec::new();
                    let _ = device.gather(&request, 0, request.length, &mut segments);
                    device.complete(world, &request, CompStatus::Ok);
                }
            }
            4 | 5 if self.deliveries.len() < UNDER_WAY => {
                let qp = self.qps[usize::from(choice >> 7)].number;
                let arrival = arrival(input, addresses, qp);
                if let Ok(delivery) = device.deliver(world, &arrival, &mut Vec::new()) {
                    self.deliveries.push_back((arrival, delivery));
                }
            }
            // In any order.
            6 => {
                let last = input.byte() < 128;
                let next = if last { self.deliveries.pop_back() } else { self.deliveries.pop_front() };
                let Some((arrival, delivery)) = next else {
                    return;
                };
                let error = DmaError { address: 0, length: 1 };
                let written = if choice & 8 != 0 { Ok(()) } else { Err(error) };
                let _ = device.delivered(world, &arrival, delivery, written);
            }
            _ => {
                if let Some((_, delivery)) = self.deliveries.pop_front() {
                    device.cancel(delivery);
                }
            }
        }
    }
}

/// Returns an arrival from a peer.
fn arrival(input: &mut Input<'_>, addresses: &[u64], qp: u16) -> Arrival {
    let length = input.near(64, addresses) as u32;
    let memory = (input.number(addresses) as u32 | (1 << 19), input.near(0, addresses));
    let immediate = (input.byte() < 128).then_some(1);
    Arrival {
        peer: [1 + input.byte() % 3; 16],
        peer_qp: 1,
        qp: input.near(qp.into(), addresses) as u16,
        transport: if input.byte() < 200 { QpType::Srd } else { QpType::Ud },
        qkey: QKEY,
        content: match input.byte() % 4 {
            0 => Content::Write {
                memory,
                length,
                end: (input.byte() < 128).then_some(WriteEnd { length, immediate, unsolicited: input.byte() < 128 }),
            },
            1 => Content::Read { memory, length, version: (input.byte() % 2).into() },
            _ => Content::Send { length, immediate },
        },
    }
}
