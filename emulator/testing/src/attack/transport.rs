// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A driver that does whatever it likes between the beginning and the end of deliveries and work requests.

use std::collections::VecDeque;

use efa_hw::{
    admin::{
        ah::CreateAh,
        cq::{CqCaps2, CreateCq},
        mr::{PageList, RegMr, RegMrFlags, RegMrPermissions},
        pd::AllocPd,
        qp::{CreateQp, ModifyQp, ModifyQpMask, QpState, QpType},
        uar::AllocUar,
    },
    io::{CompStatus, RxDesc, RxLkeyCtrl, TxCtrl1, TxCtrl2, TxMetaDesc},
    regs::ResetReason,
};
use efa_model::{Arrival, Content, Delivery, DmaError, Fetched, Profile, Request, WriteEnd};

use super::control_path::{command, config, populate};
use crate::{
    input::Input,
    mock::{Driver, World},
};

/// Work requests in each send queue.
const DEPTH: usize = 32;

/// Deliveries and requests that are under way at the same time.
const UNDER_WAY: usize = 32;

/// What carries out work requests and delivers, while the driver does what it likes.
struct Transport {
    /// Queue pairs that can send and receive, one of each kind.
    qps: Vec<u16>,
    doorbells: Vec<u32>,
    deliveries: VecDeque<(Arrival, Delivery)>,
    requests: VecDeque<Request>,
}

impl Transport {
    /// Makes queue pairs, what they need, and a region of one page.
    fn new(driver: &mut Driver, page: u64) -> Self {
        let (cq, rq) = (driver.world.map(1), driver.world.map(1));
        let pd = driver.execute(&AllocPd {}).unwrap().pd;
        let uar = driver.execute(&AllocUar {}).unwrap().uar;
        let create = CreateCq {
            caps_2: CqCaps2 {
                cq_entry_size_words: 8,
                ..CqCaps2::default()
            },
            sub_cq_depth: 64,
            base_address: cq,
            num_sub_cqs: 1,
            uar,
            ..CreateCq::default()
        };
        let cq_idx = driver.execute(&create).unwrap().cq_idx.into();
        let create = CreateAh {
            dest_addr: [1; 16],
            pd,
        };
        let ah = driver.execute(&create).unwrap().ah;
        let mut transport = Self {
            qps: Vec::new(),
            doorbells: Vec::new(),
            deliveries: VecDeque::new(),
            requests: VecDeque::new(),
        };
        for qp_type in [QpType::Srd, QpType::Ud] {
            let command = CreateQp {
                pd,
                qp_type: qp_type.into(),
                rq_base_addr: rq,
                send_cq_idx: cq_idx,
                recv_cq_idx: cq_idx,
                send_queue_ring_size: DEPTH as u32 * 64,
                send_queue_depth: DEPTH as u32,
                recv_queue_ring_size: 256,
                recv_queue_depth: 16,
                uar,
                ..CreateQp::default()
            };
            let made = driver.execute(&command).unwrap();
            transport.qps.push(made.qp_num);
            write_messages(&mut driver.world, made.llq_descriptors_offset as usize, ah);
            transport
                .doorbells
                .extend([made.sq_db_offset, made.rq_db_offset]);
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                let command = ModifyQp {
                    modify_mask: ModifyQpMask {
                        qp_state: true,
                        ..ModifyQpMask::default()
                    },
                    qp_handle: made.qp_handle,
                    qp_state: state.into(),
                    ..ModifyQp::default()
                };
                driver.execute(&command).unwrap();
            }
        }
        let mut command = RegMr {
            pd,
            mr_length: 4096,
            flags: RegMrFlags {
                phys_page_size_shift: 12,
                mem_addr_phy_mode_en: false,
            },
            permissions: RegMrPermissions {
                local_write_enable: true,
                ..RegMrPermissions::default()
            },
            ..RegMr::default()
        };
        command.set_page_list(PageList::Inline([page, 0, 0, 0]));
        let lkey = driver.execute(&command).unwrap().l_key;
        for index in 0..16 {
            let desc = RxDesc {
                length: 4096,
                lkey_ctrl: RxLkeyCtrl {
                    lkey,
                    first: true,
                    last: true,
                },
                ..RxDesc::default()
            };
            driver.world.write(rq + index * 16, &desc.encode());
        }
        transport
    }

    /// Moves a queue pair to another state, if the device lets it.
    fn modify(&mut self, driver: &mut Driver, input: &mut Input<'_>) {
        let choice = input.byte();
        let states = [
            QpState::Reset,
            QpState::Init,
            QpState::Rtr,
            QpState::Rts,
            QpState::Sqd,
            QpState::Err,
        ];
        let command = ModifyQp {
            modify_mask: ModifyQpMask {
                qp_state: true,
                ..ModifyQpMask::default()
            },
            qp_handle: self.qps[usize::from(choice >> 7)].into(),
            qp_state: states[usize::from(choice % 8) % states.len()].into(),
            ..ModifyQp::default()
        };
        driver.submit(&command);
    }

    /// Rings a doorbell that there is, fetches, or begins or ends a request or a delivery.
    fn work(&mut self, driver: &mut Driver, input: &mut Input<'_>, addresses: &[u64]) {
        let choice = input.byte();
        let Driver { device, world, .. } = driver;
        match choice % 8 {
            0 | 1 => {
                let doorbell = self.doorbells[usize::from(choice >> 3) % self.doorbells.len()];
                let value = input.near(u64::from(choice >> 4), addresses) as u32;
                device.write_doorbell(world, doorbell.into(), value);
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
                let qp = self.qps[usize::from(choice >> 7)];
                let arrival = arrival(input, addresses, qp);
                if let Ok(delivery) = device.deliver(world, &arrival, &mut Vec::new()) {
                    self.deliveries.push_back((arrival, delivery));
                }
            }
            // In any order.
            6 => {
                let last = input.byte() < 128;
                let next = if last {
                    self.deliveries.pop_back()
                } else {
                    self.deliveries.pop_front()
                };
                let Some((arrival, delivery)) = next else {
                    return;
                };
                let error = DmaError {
                    address: 0,
                    length: 1,
                };
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

/// Something from a peer.
fn arrival(input: &mut Input<'_>, addresses: &[u64], qp: u16) -> Arrival {
    let length = input.near(64, addresses) as u32;
    let memory = (
        input.number(addresses) as u32 | (1 << 19),
        input.near(0, addresses),
    );
    let immediate = (input.byte() < 128).then_some(1);
    Arrival {
        peer: [1 + input.byte() % 3; 16],
        peer_qp: 1,
        qp: input.near(qp.into(), addresses) as u16,
        transport: if input.byte() < 200 {
            QpType::Srd
        } else {
            QpType::Ud
        },
        qkey: 0,
        content: match input.byte() % 4 {
            0 => Content::Write {
                memory,
                length,
                end: (input.byte() < 128).then_some(WriteEnd { length, immediate }),
            },
            1 => Content::Read { memory, length },
            _ => Content::Send { length, immediate },
        },
    }
}

/// Fills a send queue with messages of no bytes, to the peer of a handle.
fn write_messages(world: &mut World, llq: usize, ah: u16) {
    let memory = &mut world.device_memory;
    memory.resize(memory.len().max(llq + DEPTH * 64), 0);
    let meta = TxMetaDesc {
        ctrl1: TxCtrl1 {
            meta_desc: true,
            ..TxCtrl1::default()
        },
        ctrl2: TxCtrl2 {
            first: true,
            last: true,
            comp_req: true,
            phase: false,
        },
        ah,
        ..TxMetaDesc::default()
    };
    for wqe in memory[llq..].chunks_exact_mut(64).take(DEPTH) {
        wqe[..TxMetaDesc::SIZE].copy_from_slice(&meta.encode());
    }
}

/// Does to a device what the bytes say, while a transport works for it.
pub fn play(data: &[u8]) {
    let mut input = Input(data);
    let profile = [Profile::Efa3, Profile::Efa4][usize::from(input.byte() % 2)];
    let mut driver = Driver::with(config(profile));
    let addresses: Vec<u64> = (0..8).map(|_| driver.world.map(1)).collect();
    populate(&mut driver, &addresses);
    let mut transport = Transport::new(&mut driver, addresses[0]);

    while !input.is_empty() {
        match input.byte() % 16 {
            0 => {
                let request = command(&mut input, &addresses);
                driver.submit_request(&request);
            }
            1 => transport.modify(&mut driver, &mut input),
            // Whatever is under way then ends in another life of the device.
            2 if input.byte() < 4 => {
                driver.reset(ResetReason::Normal);
                driver.set_up();
                populate(&mut driver, &addresses);
                let mut next = Transport::new(&mut driver, addresses[0]);
                next.deliveries = transport.deliveries;
                next.requests = transport.requests;
                transport = next;
            }
            _ => transport.work(&mut driver, &mut input, &addresses),
        }
        driver.world.trace.clear();
        driver.world.interrupts.clear();
    }
}
