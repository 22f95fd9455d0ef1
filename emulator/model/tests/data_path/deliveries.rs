// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How a device delivers the packets of its transport.

use efa_hw::{
    admin::qp::{QpState, QpType},
    io::CompStatus,
};
use efa_model::{Arrival, Content, DmaError, Overrides, Refusal, WriteEnd};
use efa_testing::mock::Driver;

use super::{DEPTH, IOVA, Set};

/// A delivery takes its receive work request when it begins.
#[test]
fn overlapping_deliveries() {
    let mut set = Set::new(1);
    let [first, second] = [(); 2].map(|()| set.receive(0));
    let arrivals = [100, 200].map(|length| set.message(0, length));
    let [a, b] = arrivals.map(|arrival| set.deliver(&arrival).unwrap());
    let third = set.message(0, 1);
    assert_eq!(set.deliver(&third).err(), Some(Refusal::NotReady));
    assert_eq!(set.completions(), []);

    // Deliveries end in any order.
    set.delivered(&arrivals[1], b).unwrap();
    let completion = set.poll().unwrap();
    assert_eq!((completion.req_id, completion.length), (second, 200));
    set.delivered(&arrivals[0], a).unwrap();
    let completion = set.poll().unwrap();
    assert_eq!((completion.req_id, completion.length), (first, 100));
    assert_eq!(set.driver.device.counters().recv_wrs, 2);
    assert_eq!(set.driver.device.state().protocol_errors, 0);
}

/// Devices check Q_Keys of SRD only with `check_srd_qkey`.
#[test]
fn a_wrong_qkey() {
    for check in [false, true] {
        let mut set = Set::new(1);
        set.driver.device.set(Overrides {
            check_srd_qkey: Some(check),
            ..Overrides::default()
        });
        set.receive(0);
        let right = set.message(0, 1);
        let wrong = Arrival { qkey: 1, ..right };
        let before = set.driver.device.counters();
        match set.deliver(&wrong) {
            Ok(delivery) => {
                assert!(!check);
                set.driver.device.cancel(delivery);
            }
            Err(refusal) => assert_eq!((refusal, check), (Refusal::Drop, true)),
        }
        let after = set.driver.device.counters();
        assert_eq!(after.qkey_viol, before.qkey_viol + u64::from(check));
        assert_eq!(after.rx_drops, before.rx_drops + u64::from(check));
        assert_eq!(set.completions(), []);

        // The receive work request is still there.
        let delivery = set.deliver(&right).unwrap();
        set.delivered(&right, delivery).unwrap();
        assert_eq!(set.completions(), [(0x8000, CompStatus::Ok)]);
    }
}

/// A long message fails even if the buffer has room, as a completion can't express its length.
#[test]
fn a_message_that_is_longer_than_a_packet() {
    let mut set = Set::new(1);
    set.driver.device.set(Overrides {
        mtu: Some(1000),
        ..Overrides::default()
    });
    set.receive(0);
    let long = set.message(0, 1001);
    let refusal = Refusal::Status(CompStatus::RemoteBadLength);
    assert_eq!(set.deliver(&long).err(), Some(refusal));
    let arrival = set.message(0, 1000);
    let delivery = set.deliver(&arrival).unwrap();
    set.delivered(&arrival, delivery).unwrap();
    assert_eq!(set.poll().map(|completion| completion.length), Some(1000));
}

/// Only SRD reads and writes remote memory.
#[test]
fn datagrams_do_not_access_memory() {
    let mut set = Set::new(0);
    set.add_qp(QpType::Ud);
    set.receive(0);
    let memory = (set.rkey, IOVA);
    let length = 8;
    for content in [
        Content::Write {
            memory,
            length,
            end: None,
        },
        Content::Read {
            memory,
            length,
            version: 0,
        },
    ] {
        let arrival = Arrival {
            transport: QpType::Ud,
            ..set.arrival(0, content)
        };
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
    let delivery = set.deliver(&arrival).unwrap();
    set.delivered(&arrival, delivery).unwrap();
    set.receive(0);
    let _taken = set.deliver(&arrival).unwrap();
    assert_eq!(set.driver.device.state().protocol_errors, 0);
    set.receive(0);
    assert_eq!(set.driver.device.state().protocol_errors, 1);
}

#[test]
fn a_cancelled_delivery_returns_its_receive() {
    let mut set = Set::new(1);
    let ids = [(); 3].map(|()| set.receive(0));
    let arrival = set.message(0, 1);
    let [a, b] = [(); 2].map(|()| set.deliver(&arrival).unwrap());
    // They return in the order of the ring, whichever delivery is cancelled first.
    set.driver.device.cancel(b);
    set.driver.device.cancel(a);
    assert_eq!(set.completions(), []);
    for id in ids {
        let delivery = set.deliver(&arrival).unwrap();
        set.delivered(&arrival, delivery).unwrap();
        assert_eq!(set.completions(), [(id, CompStatus::Ok)]);
    }
    assert_eq!(set.deliver(&arrival).err(), Some(Refusal::NotReady));
}

#[test]
fn an_immediate_takes_a_receive_at_once() {
    let mut set = Set::new(1);
    let id = set.receive(0);
    let end = Some(WriteEnd {
        length: 8,
        immediate: Some(1),
        unsolicited: false,
    });
    let write = Content::Write {
        memory: (set.rkey, IOVA),
        length: 8,
        end,
    };
    let write = set.arrival(0, write);
    let delivery = set.deliver(&write).unwrap();
    assert_eq!(set.deliver(&write).err(), Some(Refusal::NotReady));
    set.delivered(&write, delivery).unwrap();
    assert_eq!(set.completions(), [(id, CompStatus::Ok)]);
}

/// A flush during deliveries completes their receive work requests once, in the order of the ring.
#[test]
fn a_flush_during_deliveries() {
    let mut set = Set::new(1);
    let ids = [(); 4].map(|()| set.receive(0));
    let arrival = set.message(0, 1);
    let [a, b, c] = [(); 3].map(|()| set.deliver(&arrival).unwrap());
    set.driver.device.cancel(b);
    set.modify(0, QpState::Err);
    assert_eq!(set.completions(), ids.map(|id| (id, CompStatus::Flushed)));

    let before = set.driver.device.counters();
    set.delivered(&arrival, a).unwrap();
    set.driver.device.cancel(c);
    assert_eq!(set.completions(), []);
    let after = set.driver.device.counters();
    assert_eq!(after.rx_pkts, before.rx_pkts + 1);
    assert_eq!(after.recv_wrs, before.recv_wrs);
}

/// A delivery whose write failed does not complete its receive work request again, either.
#[test]
fn a_flush_during_a_delivery_that_fails() {
    let mut set = Set::new(1);
    let id = set.receive(0);
    let arrival = set.message(0, 1);
    let delivery = set.deliver(&arrival).unwrap();
    set.modify(0, QpState::Err);
    assert_eq!(set.completions(), [(id, CompStatus::Flushed)]);
    let error = DmaError {
        address: set.page,
        length: 1,
    };
    let Driver { device, world, .. } = &mut set.driver;
    let refusal = device.delivered(world, &arrival, delivery, Err(error));
    assert_eq!(refusal, Err(Refusal::Status(CompStatus::RemoteBadStatus)));
    assert_eq!(set.completions(), []);
}
