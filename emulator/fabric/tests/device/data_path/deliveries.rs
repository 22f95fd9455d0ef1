// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How a device delivers the packets of its transport.

use proptest::{collection::vec, prelude::*};

use super::*;

/// A receive work request of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receive {
    Posted,
    Taken,
    Ended,
}

/// A queue pair, and a reference model of its receive queue since its last reset.
struct Receiver {
    set: Set,
    receives: Vec<(u16, Receive)>,
    /// Deliveries that have begun, each with the index of its receive unless that has ended with the queue pair.
    deliveries: Vec<(Arrival, Delivery, Option<usize>)>,
    /// Packets, receive work requests, and failed accesses to memory that are counted.
    counts: [u64; 3],
}

impl Receiver {
    fn find(&self, state: Receive) -> Option<usize> {
        self.receives.iter().position(|it| it.1 == state)
    }

    /// Executes a step; returns the expected completions.
    fn step(&mut self, what: u8, which: u8) -> Vec<(u16, CompStatus)> {
        let unfinished = self.receives.iter().position(|it| it.1 != Receive::Ended);
        let room = unfinished.is_none_or(|first| self.receives.len() - first < DEPTH.into());
        match what % 16 {
            0..5 if room => {
                let id = self.set.receive(0);
                self.receives.push((id, Receive::Posted));
            }
            5..10 => {
                let arrival = match which % 2 {
                    0 => self.set.message(0, 1),
                    _ => self.set.write(0),
                };
                // A delivery takes the oldest receive when it begins, also one that was returned.
                match (self.set.deliver(&arrival), self.find(Receive::Posted)) {
                    (Ok(delivery), Some(index)) => {
                        self.receives[index].1 = Receive::Taken;
                        self.deliveries.push((arrival, delivery, Some(index)));
                    }
                    (Err(refusal), None) => assert_eq!(refusal, Refusal::NotReady),
                    (result, _) => panic!("{result:?}"),
                }
            }
            // Deliveries end in any order, successfully or not, or are cancelled.
            10..15 if !self.deliveries.is_empty() => {
                let which = usize::from(which) % self.deliveries.len();
                let (arrival, delivery, index) = self.deliveries.swap_remove(which);
                if what % 16 == 14 {
                    self.set.driver.device.cancel(delivery);
                    index.into_iter().for_each(|it| self.receives[it].1 = Receive::Posted);
                    return vec![];
                }
                let (address, length) = (self.set.region.pages[0], 1);
                let failed = what % 16 == 13;
                let error = if failed { Err(DmaError { address, length }) } else { Ok(()) };
                let Driver { device, world, .. } = &mut self.set.driver;
                let result = device.delivered(world, &arrival, delivery, error);
                let refusal = match arrival.content {
                    Content::Send { .. } => CompStatus::RemoteBadStatus,
                    _ => CompStatus::RemoteBadAddress,
                };
                assert_eq!(result.err(), failed.then_some(Refusal::Status(refusal)));
                self.counts[0] += u64::from(!failed);
                self.counts[2] += u64::from(failed);
                // A receive that has ended does not complete again.
                let Some(index) = index else { return vec![] };
                self.counts[1] += u64::from(!failed);
                self.receives[index].1 = Receive::Ended;
                let status = if failed { CompStatus::LocalInvalidLkey } else { OK };
                return vec![(self.receives[index].0, status)];
            }
            15 if which < 64 => {
                // A failure, or the end of the queue pair, flushes all receives once, in the order of the ring. A reset does not.
                match which % 3 {
                    0 => self.set.modify(0, QpState::Err),
                    1 => self.set.destroy(0),
                    _ => self.set.modify(0, QpState::Reset),
                }
                let left = self.receives.iter().filter(|it| it.1 != Receive::Ended);
                let flushed = left.filter(|_| which % 3 < 2).map(|it| (it.0, FLUSHED));
                let flushed = flushed.collect();
                if which % 3 == 1 {
                    self.set.qps.clear();
                    self.set.add(QpType::Srd);
                } else {
                    self.set.modify(0, QpState::Reset);
                    self.set.start(0);
                }
                self.receives.clear();
                self.deliveries.iter_mut().for_each(|it| it.2 = None);
                return flushed;
            }
            _ => {}
        }
        vec![]
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]

    #[test]
    fn deliveries_are_those_of_the_reference(steps in vec(any::<[u8; 2]>(), 0..200)) {
        let set = Set::new(1);
        let (receives, deliveries) = (vec![], vec![]);
        let mut receiver = Receiver { set, receives, deliveries, counts: [0; 3] };
        for [what, which] in steps {
            let expected = receiver.step(what, which);
            assert_eq!(receiver.set.completions(), expected);
        }
        let counters = receiver.set.driver.device.counters();
        let errors = receiver.set.driver.errors();
        assert_eq!([counters.rx_pkts, counters.recv_wrs, errors], receiver.counts);
    }
}

#[test]
fn a_reset_of_the_device_during_a_delivery() {
    let mut set = Set::new(1);
    set.receive(0);
    let arrival = set.message(0, 1);
    let delivery = set.deliver(&arrival).unwrap();
    set.driver.start_over();
    set.delivered(&arrival, delivery);
    assert_eq!((set.completions(), set.driver.errors()), (vec![], 0));
}

/// Devices check Q_Keys of SRD only with `check_srd_qkey`.
#[test]
fn a_wrong_qkey() {
    for check in [false, true] {
        let mut set = Set::new(1);
        set.driver.set(&format!(r#"{{"check_srd_qkey":{check}}}"#));
        let id = set.receive(0);
        let right = set.message(0, 1);
        let wrong = Arrival { qkey: 1, ..right };
        let before = set.driver.device.counters();
        let delivery = set.deliver(&wrong);
        assert_eq!(delivery.as_ref().err(), check.then_some(&Refusal::Drop));
        delivery.into_iter().for_each(|it| set.driver.device.cancel(it));
        let after = set.driver.device.counters();
        assert_eq!(after.qkey_viol, before.qkey_viol + u64::from(check));
        assert_eq!(after.rx_drops, before.rx_drops + u64::from(check));
        // The receive work request is still there.
        assert_eq!(set.exchange(&right), [(id, OK)]);
    }
}

/// A long message fails even if the buffer has room, as a completion can't express its length.
#[test]
fn a_message_that_is_longer_than_a_packet() {
    let mut set = Set::new(1);
    set.driver.set(r#"{"mtu":1000}"#);
    let id = set.receive(0);
    let refusal = Refusal::Status(CompStatus::RemoteBadLength);
    let long = set.message(0, 1001);
    assert_eq!(set.deliver(&long).err(), Some(refusal));
    let longest = set.message(0, 1000);
    assert_eq!(set.exchange(&longest), [(id, OK)]);
}

/// Only SRD reads and writes remote memory.
#[test]
fn datagrams_do_not_access_memory() {
    let mut set = Set::of(&[QpType::Ud]);
    set.receive(0);
    let (memory, length, version, end) = ((set.region.rkey, IOVA), 8, 0, None);
    for content in [Content::Write { memory, length, end }, Content::Read { memory, length, version }] {
        let mut arrival = set.arrival(0, content);
        arrival.transport = QpType::Ud;
        assert_eq!(set.deliver(&arrival).err(), Some(Refusal::Drop));
    }
}

/// A receive work request in a delivery still takes up room in the ring.
#[test]
fn a_ring_is_full_until_deliveries_end() {
    let mut set = Set::new(1);
    for _ in 0..DEPTH {
        set.receive(0);
    }
    let arrival = set.message(0, 1);
    set.exchange(&arrival);
    set.receive(0);
    let _taken = set.deliver(&arrival).unwrap();
    assert_eq!(set.driver.errors(), 0);
    set.receive(0);
    assert_eq!(set.driver.errors(), 1);
}
