// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! In-kernel clients.

use core::ptr::null_mut;

use driver::{
    client::{Objects, Request, DIRECT, WORKQUEUE},
    fault::rule,
    program::UP,
    rig::{self, PROFILES, SECOND},
};
use efa_hw::io::CompStatus;
use efa_model::{Profile, Queue};
use ib_core::{cq, ffi, registry::registered, uverbs::zeroed, verbs};
use kernel::{
    bindings,
    error::code::{EINVAL, ENOMEM, EOPNOTSUPP},
    sim,
    sync::barrier,
};

use crate::{at_random, run_bound, run_bound_as, run_bound_with, run_with, traced};

use ffi::{
    ib_wc_status_IB_WC_BAD_RESP_ERR as BAD_RESP_ERR,
    ib_wc_status_IB_WC_LOC_PROT_ERR as LOC_PROT_ERR,
    ib_wc_status_IB_WC_LOC_QP_OP_ERR as LOC_QP_OP_ERR,
    ib_wc_status_IB_WC_REM_ACCESS_ERR as REM_ACCESS_ERR,
    ib_wc_status_IB_WC_REM_INV_RD_REQ_ERR as REM_INV_RD_REQ_ERR,
    ib_wc_status_IB_WC_REM_INV_REQ_ERR as REM_INV_REQ_ERR,
    ib_wc_status_IB_WC_REM_OP_ERR as REM_OP_ERR,
    ib_wc_status_IB_WC_RESP_TIMEOUT_ERR as RESP_TIMEOUT_ERR,
};

fn poll_for_a_millisecond(objects: &Objects) {
    for _ in 0..100 {
        objects.poll();
        sim::sleep(10_000);
    }
}

#[test]
fn sends_to_itself() {
    for context in [DIRECT, WORKQUEUE] {
        for profile in PROFILES {
            run_bound_with(profile, |rig| {
                let device = registered().unwrap();
                // SAFETY: The device is registered.
                let has_verbs = unsafe { (*device).kverbs_provider() } != 0;
                match Objects::new(device, context) {
                    Ok(objects) => (0..100).for_each(|value| objects.exchange(value)),
                    Err(error) => assert!(
                        !has_verbs || profile < Profile::Efa2,
                        "{profile:?}: {error:?}"
                    ),
                }
                rig.check_device();
            });
        }
    }
}

#[test]
fn registers_memory_by_work_requests() {
    for profile in [Profile::Efa3, Profile::Efa4] {
        run_bound_with(profile, |rig| {
            Objects::new(registered().unwrap(), DIRECT)
                .unwrap()
                .use_region();
            rig.check_device();
        });
    }
}

/// Completion statuses map to those of the verbs as in rdma-core's `providers/efa/verbs.c`.
#[test]
fn statuses_are_those_of_userspace() {
    use CompStatus as Device;

    for (status, wanted) in [
        (Device::Ok, ffi::ib_wc_status_IB_WC_SUCCESS),
        (Device::Flushed, ffi::ib_wc_status_IB_WC_WR_FLUSH_ERR),
        (Device::LocalQpInternalError, LOC_QP_OP_ERR),
        (Device::LocalUnsupportedOp, LOC_QP_OP_ERR),
        (Device::LocalInvalidAh, LOC_QP_OP_ERR),
        (Device::LocalInvalidLkey, LOC_PROT_ERR),
        (Device::LocalBadLength, ffi::ib_wc_status_IB_WC_LOC_LEN_ERR),
        (Device::LocalUnrespRemote, RESP_TIMEOUT_ERR),
        (Device::LocalUnreachRemote, RESP_TIMEOUT_ERR),
        (Device::RemoteBadAddress, REM_ACCESS_ERR),
        (Device::RemoteAbort, ffi::ib_wc_status_IB_WC_REM_ABORT_ERR),
        (Device::RemoteBadDestQpn, REM_INV_RD_REQ_ERR),
        (Device::RemoteRnr, ffi::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR),
        (Device::RemoteBadLength, REM_INV_REQ_ERR),
        (Device::RemoteFeatureMismatch, REM_INV_REQ_ERR),
        (Device::RemoteBadStatus, BAD_RESP_ERR),
        (Device::RemoteUnknownPeer, REM_OP_ERR),
    ] {
        run_bound(|rig| {
            let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
            let name = status.name();
            rig.inject(rule(&format!(
                r#"{{"when": {{"work": "SEND"}}, "then": {{"status": "{name}"}}}}"#
            )));
            let send = Request::new(0);
            objects.post_send(&send).unwrap();
            poll_for_a_millisecond(&objects);
            drop(objects);
            assert_eq!(send.status.get(), Some(wanted), "{name}");
        });
    }
}

/// A descriptor has 16 bits for the length of a buffer. A message is shorter.
#[test]
fn a_buffer_may_be_longer_than_a_descriptor_says() {
    run_bound(|_| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let (send, recv) = (Request::new(0), Request::new(0));
        objects.post_recv_of(&recv, 1 << 20).unwrap();
        objects.post_send(&send).unwrap();
        poll_for_a_millisecond(&objects);
        drop(objects);
        assert_eq!((send.status.get(), recv.status.get()), (Some(0), Some(0)));
    });
}

/// A queue has room for all receives that it was created for, and none overwrites another.
#[test]
fn a_receive_queue_has_room_for_all_buffers() {
    for (count, sges, room) in [(5, 3, 5), (32, 1, 32), (33, 1, 64), (7, 2, 8)] {
        run_bound(|_| {
            let mut objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
            objects.replace_qp(count, sges).unwrap();
            let requests = [(); 65].map(|()| Request::new(0));
            let posted = requests
                .iter()
                .take_while(|request| objects.post_recv(request).is_ok())
                .count();
            drop(objects);
            assert_eq!(posted, room, "{count} of {sges}");
        });
    }
}

/// The core would poll the queue on events, which the device does not support.
#[test]
fn a_device_without_event_queues_has_queues_that_are_polled_only() {
    run_bound_as(r#"{"max_eq": 0}"#, |_| {
        let device = registered().unwrap();
        let refused = Objects::new(device, WORKQUEUE).map(drop);
        Objects::new(device, DIRECT).unwrap().exchange(1);
        assert_eq!(refused, Err(EOPNOTSUPP));
    });
}

/// The mapping of the doorbells is shared by all queue pairs, and outlives them.
#[test]
fn all_doorbells_are_in_one_mapping() {
    run_bound(|_| {
        let device = registered().unwrap();
        let before = bindings::mapped();
        let objects: Vec<_> = (0..4)
            .map(|_| Objects::new(device, DIRECT).unwrap())
            .collect();
        let (mapped, count) = (bindings::mapped() - before, objects.len());
        drop(objects);
        // One mapping of doorbells, and the send queue of each queue pair.
        assert_eq!(mapped, 1 + count);
        assert_eq!(bindings::mapped() - before, 1);
    });
}

#[test]
fn a_queue_pair_returns_its_capacity() {
    run_bound(|_| {
        let mut objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let mut attr = objects.qp_attr();
        (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (5, 6);
        objects.new_qp(&mut attr).unwrap();
        let cap = (attr.cap.max_send_wr, attr.cap.max_recv_wr);
        // SAFETY: The queue pair exists.
        let sges = unsafe { ((*objects.qp).max_write_sge, (*objects.qp).max_read_sge) };
        drop(objects);
        // The actual capacity. 32 is the minimum of the device.
        assert_eq!((cap, sges), ((32, 8), (1, 1)));
    });
}

/// Neither after a mapping that has failed, nor beyond the pages of the last one.
#[test]
fn a_region_is_registered_with_the_pages_that_were_mapped() {
    run_bound_with(Profile::Efa3, |_| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let mr = objects.mapped_region().unwrap();
        // SAFETY: The region exists until it is deregistered.
        let results = unsafe {
            (*mr).length += 1;
            let too_long = objects.register(mr);
            (*mr).length -= 1;
            (*mr).iova += 1;
            let beyond = objects.register(mr);
            assert!(verbs::map_mr_sg(mr, &mut []).is_err());
            let nothing = objects.register(mr);
            verbs::dereg_mr(mr, null_mut()).unwrap();
            [too_long, beyond, nothing]
        };
        drop(objects);
        assert_eq!(results, [Err(EINVAL); 3]);
    });
}

/// The core's `ib_update_fast_reg_key` changes the low 8 bits, which identify a region of EFA.
#[test]
fn a_region_is_the_one_that_the_driver_has_created() {
    run_bound_with(Profile::Efa3, |rig| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let [first, second] = [(); 2].map(|()| objects.mapped_region().unwrap());
        // SAFETY: The regions exist until they are deregistered.
        unsafe {
            let (key, other) = ((*first).lkey, (*second).lkey);
            assert_eq!(key & !0xff, other & !0xff);
            for changed in [other, key ^ 0x80] {
                ((*first).lkey, (*first).rkey) = (changed, changed);
                assert_eq!(objects.register(first), Err(EINVAL));
            }
            let ((), log) = traced(|| verbs::dereg_mr(first, null_mut()).unwrap());
            let own = format!("l_key={key:#x}");
            assert!(log.iter().any(|line| line.contains(&own)), "{own}: {log:?}");
            assert_eq!(objects.register(second), Ok(()));
            verbs::dereg_mr(second, null_mut()).unwrap();
        }
        drop(objects);
        rig.check_device();
    });
}

/// The core's `rdma_rw` would post work requests of connected transports, whose addresses are at the place of
/// an address handle.
#[test]
fn a_queue_pair_is_not_for_rdma_rw() {
    run_bound(|rig| {
        let mut objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let mut attr = objects.qp_attr();
        attr.cap.max_rdma_ctxs = 1;
        assert_eq!(objects.new_qp(&mut attr), Err(EOPNOTSUPP));
        drop(objects);
        rig.check_device();
    });
}

/// Depths are powers of two. What the device reports as its limit can be had.
#[test]
fn queues_are_as_deep_as_reported() {
    run_bound_as(
        r#"{"max_cq_depth": 24000, "max_sq_depth": 100, "max_rq_depth": 100}"#,
        |rig| {
            let device = registered().unwrap();
            // SAFETY: The device is registered.
            let (cqe, wr) = unsafe { ((*device).attrs.max_cqe, (*device).attrs.max_qp_wr) };
            // SAFETY: The device is registered, and the queues are not in use.
            let results = [cqe, cqe + 1].map(|entries| unsafe {
                let cq = cq::alloc_cq(device, entries, DIRECT)?;
                cq::free_cq(cq);
                Ok(())
            });
            assert_eq!(results, [Ok(()), Err(EINVAL)], "{cqe} entries");
            let mut objects = Objects::new(device, DIRECT).unwrap();
            let results = [wr, wr + 1].map(|depth| {
                let mut attr = objects.qp_attr();
                attr.cap.max_send_wr = depth;
                objects.new_qp(&mut attr)
            });
            drop(objects);
            assert_eq!(results, [Ok(()), Err(EINVAL)], "{wr} work requests");
            rig.check_device();
        },
    );
}

/// The core checks neither.
#[test]
fn a_queue_has_a_vector_of_the_device_and_an_address_handle_is_not_created_in_atomic_context() {
    run_bound(|rig| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let before = rig.device().admin.submitted;
        let attr = ffi::ib_cq_init_attr {
            cqe: 4,
            comp_vector: 1000,
            flags: 0,
        };
        let (lock, mut peer) = (sim::RawLock::new(), zeroed::<ffi::rdma_ah_attr>());
        peer.port_num = 1;
        // SAFETY: The device is registered, and the domain exists. No handler is called.
        let (cq, ah) = unsafe {
            let prepare = |cq: *mut ffi::ib_cq| (*cq).comp_handler = Some(no_completion);
            let cq = verbs::create_cq(objects.device, &attr, null_mut(), prepare);
            lock.lock(false);
            let ah = verbs::create_ah_of(objects.pd, &raw mut peer, 0, null_mut());
            lock.unlock(false);
            (cq.err(), ah.err())
        };
        let commands = rig.device().admin.submitted - before;
        drop(objects);
        assert_eq!((cq, ah, commands), (Some(EINVAL), Some(EOPNOTSUPP), 0));
    });
}

extern "C" fn no_completion(_: *mut ffi::ib_cq, _: *mut core::ffi::c_void) {}

/// Elements that continue each other within a page are one page of a region.
#[test]
fn a_region_merges_elements_of_a_list() {
    run_bound_with(Profile::Efa3, |_| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let element = |dma_address, length| bindings::scatterlist {
            dma_address,
            length,
        };
        let mr = objects.mapped_region().unwrap();
        // SAFETY: The region exists until it is deregistered.
        unsafe {
            let start = (*mr).iova;
            for (mut list, mapped, length) in [
                (
                    vec![element(start, 2048), element(start + 2048, 2048)],
                    2,
                    4096,
                ),
                (
                    vec![element(start, 2048), element(start + 2048, 4096)],
                    2,
                    6144,
                ),
                (
                    vec![element(start, 2048), element(start + 4096, 4096)],
                    1,
                    2048,
                ),
            ] {
                assert_eq!(verbs::map_mr_sg(mr, &mut list), Ok(mapped));
                assert_eq!((*mr).length, length);
            }
            assert_eq!(objects.register(mr), Ok(()));
            verbs::dereg_mr(mr, null_mut()).unwrap();
        }
    });
}

/// Both are hints: an event for the next completion is one for a solicited completion, too.
#[test]
fn a_client_may_ask_for_solicited_events() {
    run_bound(|_| {
        let objects = Objects::new(registered().unwrap(), WORKQUEUE).unwrap();
        // SAFETY: The queue exists.
        let result = unsafe {
            let notify = (*(*objects.cq).device).ops.req_notify_cq.unwrap();
            notify(objects.cq, ffi::ib_cq_notify_flags_IB_CQ_SOLICITED)
        };
        assert_eq!(result, 0);
        objects.exchange(1);
    });
}

/// The device supports more inline data in a send than fits into an RDMA write.
#[test]
fn an_rdma_write_has_what_inline_data_fits() {
    run_with(Profile::Efa4, |rig| {
        rig.set(r#"{"inline_buf_size_ex": 96}"#);
        rig.probe().unwrap();
        let mut objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let mut attr = objects.qp_attr();
        attr.cap.max_inline_data = 96;
        objects.new_qp(&mut attr).unwrap();
        objects.modify_qp(&UP).unwrap();
        let results = [8, 80, 81].map(|length| objects.write_inline(&vec![1; length]));
        drop(objects);
        assert_eq!(results, [Ok(()), Ok(()), Err(EINVAL)]);
    });
}

/// Write-combining memory is sent to the device in whole cache lines, so a request fills its slot. One that is
/// refused leaves nothing there, which could overwrite a part of the next one.
#[test]
fn a_work_request_fills_its_slot() {
    run_bound_as(r#"{"max_wr_rdma_sges": 2}"#, |_| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let words = sim::device(|device| {
            let words = device.bar_size(2) as usize / size_of::<u64>();
            let memory = device.memory(2).expect("memory").cast::<u64>();
            // SAFETY: The memory exists as long as the device, which does not access it meanwhile.
            unsafe { core::slice::from_raw_parts_mut(memory, words) }
        })
        .expect("a device");
        words.fill(u64::MAX);
        // A slot of this size has no room for both the remote address and inline data, or two buffers.
        assert_eq!(objects.write_inline(&[1; 8]), Err(EINVAL));
        let sges = [(); 2].map(|()| objects.sge(0, 8));
        let mut wr: ffi::ib_srd_rdma_wr = zeroed();
        wr.wr.wr.opcode = ffi::ib_wr_opcode_IB_WR_RDMA_READ;
        (wr.wr.wr.sg_list, wr.wr.wr.num_sge) = (sges.as_ptr().cast_mut(), 2);
        wr.wr.ah = objects.ah;
        assert_eq!(objects.post((&raw const wr).cast()).0, Err(EINVAL));
        assert_eq!(objects.post_send_to(1 << 16, &Request::new(0)), Err(EINVAL));
        assert!(words.iter().all(|word| *word == u64::MAX));
        objects.exchange(1);
        let written = words.iter().filter(|word| **word != u64::MAX).count();
        drop(objects);
        // The minimum size of a slot is 64 bytes.
        assert_eq!(written, 8);
    });
}

/// The client frees the list from the failed work request on. Those before it complete.
#[test]
fn a_list_ends_with_the_work_request_that_fails() {
    const ROOM: usize = 32;

    for (count, bad) in [(5, 0), (5, 2), (5, 4), (40, 40), (40, 8)] {
        for is_closed in [false, true] {
            run_bound_with(Profile::Efa3, |_| {
                let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
                if is_closed {
                    objects.modify_qp(&[ffi::ib_qp_state_IB_QPS_ERR]).unwrap();
                }
                let lists = [(); 2].map(|()| (0..count).map(|_| Request::new(0)).collect());
                let [sends, recvs]: &[Vec<_>; 2] = &lists;
                let posted = [
                    objects.post_sends(sends, bad),
                    objects.post_recvs(recvs, bad),
                ];
                poll_for_a_millisecond(&objects);
                drop(objects);
                // Receives that are flushed may have any number of buffers.
                let places = [bad, if is_closed { count } else { bad }];
                for ((list, posted), place) in lists.iter().zip(posted).zip(places) {
                    let place = place.min(ROOM);
                    let wanted = match place {
                        ROOM => (Err(ENOMEM), Some(place)),
                        _ if place == count => (Ok(()), None),
                        _ => (Err(EINVAL), Some(place)),
                    };
                    assert_eq!(posted, wanted, "{count}, {bad}");
                    for (index, one) in list.iter().enumerate() {
                        let has_ended = one.status.get().is_some();
                        assert_eq!(has_ended, index < place, "{index} of {count}, {bad}");
                    }
                }
            });
        }
    }
}

/// Sends complete in one ring of the queue, and receives in the other one.
#[test]
fn rings_of_a_completion_queue_are_polled_in_turn() {
    run_bound_as(r#"{"sub_cqs_per_cq": 2}"#, |_| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let [sends, recvs] = [(); 2].map(|()| [(); 8].map(|()| Request::new(0)));
        recvs.iter().for_each(|one| objects.post_recv(one).unwrap());
        sends.iter().for_each(|one| objects.post_send(one).unwrap());
        sim::sleep(SECOND);
        let order: Vec<_> = core::iter::from_fn(|| objects.poll_one()).collect();
        drop(objects);
        assert_eq!(order.len(), 16);
        let is_send = |id: &u64| sends.iter().any(|one| one.id() == *id);
        let in_turn = order
            .windows(2)
            .all(|pair| is_send(&pair[0]) != is_send(&pair[1]));
        assert!(in_turn, "neither waits until the other one is empty");
    });
}

/// The device completes work requests that were never posted, have completed before, or are of another type or queue pair.
#[test]
fn a_completion_of_nothing_is_ignored() {
    const PHASE: u8 = 1;
    const SEND: u8 = 1 << 1;
    const RECV: u8 = 2 << 1;
    const LENGTH: u8 = 10;

    run_bound_with(Profile::Efa3, |rig| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let [sends, recvs] = [(); 2].map(|()| [(); 4].map(|()| Request::new(0)));
        recvs.iter().for_each(|one| objects.post_recv(one).unwrap());
        // Sends stay in the queue.
        objects.modify_qp(&[ffi::ib_qp_state_IB_QPS_SQD]).unwrap();
        sends.iter().for_each(|one| objects.post_send(one).unwrap());
        // SAFETY: The queue pair exists.
        let qpn = unsafe { (*objects.qp).qp_num } as u16;
        let entries = [
            (3, RECV, qpn + 1),
            (u16::MAX, RECV, qpn),
            (4, RECV, qpn),
            (4, SEND, qpn),
            (3, 0, qpn),
            (3, SEND | RECV, qpn),
            (1, SEND, qpn),
            (1, SEND, qpn),
            (3, RECV, qpn),
            (3, RECV, qpn),
        ];
        rig.shared.with(|device, machine, now| {
            let cq = Queue::Cq(device.snapshot(now).completion_queues[0].number);
            for (index, (id, kind, qpn)) in entries.into_iter().enumerate() {
                let mut entry = [0; 32];
                entry[..2].copy_from_slice(&id.to_le_bytes());
                entry[3] = PHASE | kind;
                entry[4..6].copy_from_slice(&qpn.to_le_bytes());
                entry[6] = LENGTH;
                let place = (index * entry.len()) as u64;
                device.poke(machine, cq, place, &entry).unwrap();
            }
        });
        objects.poll();
        drop(objects);
        let ended = [&sends, &recvs].map(|list| list.each_ref().map(|one| one.status.get()));
        assert_eq!(ended[0], [None, Some(0), None, None]);
        assert_eq!(ended[1], [None, None, None, Some(0)]);
        assert_eq!(recvs[3].received.get().0, u32::from(LENGTH));
    });
}

/// Receives are accepted from INIT on, and sends in RTS.
#[test]
fn post_as_the_state_permits() {
    run_bound(|_| {
        let requests = [(); 4].map(|()| [Request::new(0), Request::new(0)]);
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let reset = [ffi::ib_qp_state_IB_QPS_RESET];
        let states = reset.iter().chain(&UP).zip(&requests);
        let posted: Vec<_> = states
            .map(|(state, [send, recv])| {
                objects.modify_qp(&[*state]).unwrap();
                [objects.post_send(send), objects.post_recv(recv)].map(|result| result.is_ok())
            })
            .collect();
        drop(objects);
        assert_eq!(
            posted,
            [[false, false], [false, true], [false, true], [true, true]]
        );
    });
}

/// A CPU reads an entry of a ring of the device after the phase of that entry.
#[test]
fn are_read_after_their_phase() {
    run_bound(|_| {
        let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
        let (send, recv) = (Request::new(0), Request::new(0));
        objects.post_recv(&recv).unwrap();
        objects.post_send(&send).unwrap();
        sim::sleep(SECOND);
        let polled = [(); 2].map(|()| {
            barrier::take_passed();
            (objects.poll_one().is_some(), barrier::take_passed())
        });
        drop(objects);
        assert_eq!(polled, [(true, 1); 2]);
    });
}

/// Each allocation of a client fails, one at a time.
#[test]
fn memory_is_short() {
    let mut number = 0;
    while run_bound(|_| {
        sim::fail_allocation(Some(number));
        drop(Objects::new(registered().unwrap(), WORKQUEUE));
        sim::fail_allocation(None);
        sim::take_failed()
    }) {
        number += 1;
    }
    assert!(number > 20);
}

/// A queue pair is destroyed while another one is created, which reuses its number.
#[test]
fn a_queue_pair_has_completions_of_its_own() {
    for seed in 0..200 {
        rig::run(Profile::Efa3, at_random(seed), |rig| {
            rig.set(r#"{"max_qp": 1}"#);
            rig.probe().unwrap();
            let mut objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
            let old: Vec<_> = (0..4).map(|_| Request::new(0)).collect();
            let new: Vec<_> = (0..4).map(|_| Request::new(0)).collect();
            old.iter().for_each(|one| objects.post_recv(one).unwrap());
            objects.modify_qp(&[ffi::ib_qp_state_IB_QPS_ERR]).unwrap();
            sim::sleep(SECOND);
            let (pair, pd, mut attr) =
                (objects.qp as usize, objects.pd as usize, objects.qp_attr());
            let destroyer = sim::spawn("destroyer", move || {
                // SAFETY: Nothing else uses the queue pair.
                verbs::ignore("ib_destroy_qp", unsafe {
                    verbs::destroy_qp(pair as *mut _, null_mut())
                });
            });
            objects.qp = loop {
                // SAFETY: The domain and the queue exist.
                let result = unsafe { verbs::create_qp(pd as *mut _, &mut attr, null_mut()) };
                if let Ok(qp) = result {
                    break qp;
                }
            };
            objects.modify_qp(&UP).unwrap();
            new.iter().for_each(|one| objects.post_recv(one).unwrap());
            objects.poll();
            sim::join(destroyer);
            let completed = new.iter().filter(|one| one.status.get().is_some()).count();
            drop(objects);
            assert_eq!(completed, 0, "completions of receives that have not ended");
        });
    }
}
