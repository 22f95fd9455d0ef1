// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests of in-kernel clients: which ones are refused, and what arrives.

use core::ptr::{null, null_mut};

use driver::{
    client::{Objects, Request, DIRECT, GENERATION},
    program::{QKEY, UP},
    rig::{self, SECOND},
};
use efa_model::Profile;
use ib_core::{ffi::*, registry::registered, uverbs::zeroed, verbs};
use kernel::{
    error::{code::EINVAL, Result},
    ffi::c_int,
    sim,
};

use crate::{at_random, run_bound_with, run_with};

const SRD: u32 = ib_qp_type_IB_QPT_RESERVED1;
const UD: u32 = ib_qp_type_IB_QPT_UD;
/// Size of the header in front of a datagram, in bytes.
const GRH: usize = 40;
/// Length of a message in bytes.
const LENGTH: u32 = 1000;

/// A client with a queue pair of a type, which may have inline data.
fn client(qp_type: u32, inline_data: u32) -> Objects {
    let mut objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
    let mut attr = objects.qp_attr();
    (attr.qp_type, attr.cap.max_inline_data) = (qp_type, inline_data);
    objects.new_qp(&mut attr).unwrap();
    objects.modify_qp(&UP).unwrap();
    objects
}

/// Posts a work request. Only a request that is refused is reported as the one that has failed.
fn post(objects: &Objects, wr: *const ib_send_wr) -> Result {
    let (result, bad) = objects.post(wr);
    assert_eq!(bad, if result.is_err() { wr } else { null() });
    result
}

/// The fields of a send to itself, of either transport.
#[derive(Clone, Copy, Debug)]
struct Send {
    opcode: u32,
    flags: c_int,
    addr: u64,
    length: u32,
    lkey: u32,
    sges: c_int,
    ah: *mut ib_ah,
    qpn: u32,
}

impl Send {
    fn new(objects: &Objects) -> Self {
        let sge = objects.sge(0, LENGTH);
        Self {
            opcode: ib_wr_opcode_IB_WR_SEND,
            flags: ib_send_flags_IB_SEND_SIGNALED,
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
            sges: 1,
            ah: objects.ah,
            // SAFETY: The queue pair exists.
            qpn: unsafe { (*objects.qp).qp_num },
        }
    }

    fn post(&self, objects: &Objects, request: &Request) -> Result {
        let (mut srd, mut ud): (ib_srd_wr, ib_ud_wr) = (zeroed(), zeroed());
        (srd.ah, srd.remote_qpn, srd.remote_qkey) = (self.ah, self.qpn, QKEY);
        (ud.ah, ud.remote_qpn, ud.remote_qkey) = (self.ah, self.qpn, QKEY);
        let mut sge = ib_sge {
            addr: self.addr,
            length: self.length,
            lkey: self.lkey,
        };
        // SAFETY: The queue pair exists.
        let is_ud = unsafe { (*objects.qp).qp_type } == UD;
        let wr = if is_ud { &mut ud.wr } else { &mut srd.wr };
        (wr.opcode, wr.send_flags) = (self.opcode, self.flags);
        (wr.sg_list, wr.num_sge) = (&raw mut sge, self.sges);
        // SAFETY: All variants of a union have the same size.
        unsafe {
            *wr.ex.imm_data.as_mut() = IMMEDIATE.to_be();
            *wr.__bindgen_anon_1.wr_cqe.as_mut() = request.cqe();
        }
        post(objects, wr)
    }
}

const IMMEDIATE: u32 = 0x0102_0304;

/// Checks that a message of `length` bytes arrives from itself, after a header of `offset` bytes. Returns its immediate data.
fn arrives(objects: &Objects, send: &Send, offset: usize) -> u32 {
    let (sent, received) = (Request::new(0), Request::new(0));
    // SAFETY: The memory has two pages.
    unsafe { objects.memory.write_bytes(7, LENGTH as usize) };
    objects.post_recv_of(&received, 4096).unwrap();
    send.post(objects, &sent).unwrap();
    sim::sleep(SECOND);
    objects.poll();
    let ended = [&sent, &received].map(|one| one.status.get());
    assert_eq!(ended, [Some(0); 2], "{send:?}");
    let (length, immediate) = received.received.get();
    assert_eq!(length as usize, offset + send.length as usize);
    // SAFETY: The second page has this many bytes, and the queue pair exists.
    let (bytes, own) = unsafe {
        let start = objects.memory.add(4096 + offset);
        let bytes = core::slice::from_raw_parts(start, send.length as usize);
        (bytes, (*objects.qp).qp_num)
    };
    assert!(bytes.iter().all(|byte| *byte == 7), "{bytes:?}");
    assert_eq!(received.source.get(), own);
    immediate
}

/// Nothing of a request that is refused reaches the device, which executes the next one.
#[test]
fn a_wrong_field_is_refused() {
    for qp_type in [SRD, UD] {
        run_bound_with(Profile::Efa3, |rig| {
            let objects = client(qp_type, 0);
            let right = Send::new(&objects);
            let signaled = ib_send_flags_IB_SEND_SIGNALED;
            let mut wrong: Vec<_> = [
                ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP,
                ib_wr_opcode_IB_WR_SEND_WITH_INV,
                ib_wr_opcode_IB_WR_RDMA_READ_WITH_INV,
                ib_wr_opcode_IB_WR_REG_MR_INTEGRITY,
                1000,
            ]
            .map(|opcode| Send { opcode, ..right })
            .into();
            // The queue pair has no room for inline data.
            wrong.extend(
                [
                    ib_send_flags_IB_SEND_FENCE,
                    ib_send_flags_IB_SEND_IP_CSUM,
                    ib_send_flags_IB_SEND_INLINE,
                    1 << 30,
                ]
                .map(|flag| Send {
                    flags: signaled | flag,
                    ..right
                }),
            );
            wrong.push(Send {
                sges: 1000,
                ..right
            });
            wrong.push(Send {
                ah: null_mut(),
                ..right
            });
            wrong.push(Send {
                qpn: 1 << 16,
                ..right
            });
            if qp_type == SRD {
                // The size of so many entries exceeds 32 bits.
                wrong.push(Send {
                    sges: c_int::MAX,
                    ..right
                });
            } else {
                wrong.extend(
                    [
                        ib_wr_opcode_IB_WR_RDMA_WRITE,
                        ib_wr_opcode_IB_WR_RDMA_READ,
                        ib_wr_opcode_IB_WR_LOCAL_INV,
                    ]
                    .map(|opcode| Send { opcode, ..right }),
                );
            }
            for send in wrong {
                assert_eq!(
                    send.post(&objects, &Request::new(0)),
                    Err(EINVAL),
                    "{send:?}"
                );
            }
            assert_eq!(objects.register(null_mut()), Err(EINVAL), "of nothing");
            let offset = if qp_type == UD { GRH } else { 0 };
            arrives(&objects, &right, offset);
            // Only the device knows which keys there are.
            if qp_type == SRD {
                let [sent, received] = [(); 2].map(|()| Request::new(0));
                let lkey = right.lkey ^ 0x1000;
                objects.post_recv(&received).unwrap();
                Send { lkey, ..right }.post(&objects, &sent).unwrap();
                sim::sleep(SECOND);
                objects.poll();
                assert_eq!(sent.status.get(), Some(ib_wc_status_IB_WC_LOC_PROT_ERR));
            }
            drop(objects);
            rig.check_device();
        });
    }
}

#[test]
fn inline_data_arrives_with_immediate_data() {
    run_with(Profile::Efa4, |rig| {
        rig.set(r#"{"inline_buf_size_ex": 96}"#);
        rig.probe().unwrap();
        let objects = client(SRD, 80);
        let right = Send::new(&objects);
        let immediate = arrives(
            &objects,
            &Send {
                opcode: ib_wr_opcode_IB_WR_SEND_WITH_IMM,
                flags: right.flags | ib_send_flags_IB_SEND_INLINE,
                addr: objects.memory as u64,
                length: 80,
                lkey: 0,
                ..right
            },
            0,
        );
        assert_eq!(immediate, IMMEDIATE);
    });
}

/// Lists of work requests, so that all rings wrap around several times.
#[test]
fn each_of_many_messages_arrives() {
    for seed in 0..4 {
        rig::run(Profile::Efa2, at_random(seed), |rig| {
            rig.probe().unwrap();
            let objects = Objects::new(registered().unwrap(), DIRECT).unwrap();
            for _ in 0..125 {
                let [sends, recvs] = [(); 2].map(|()| [(); 4].map(|()| Request::new(0)));
                for posted in [
                    objects.post_recvs(&recvs, usize::MAX),
                    objects.post_sends(&sends, usize::MAX),
                ] {
                    assert_eq!(posted, (Ok(()), None));
                }
                sim::sleep(SECOND);
                objects.poll();
                for one in sends.iter().chain(&recvs) {
                    assert_eq!(one.status.get(), Some(0), "seed {seed}");
                }
            }
        });
    }
}

/// The bits of both keys that are the generation.
const GENERATIONS: u32 = 15 * GENERATION;

/// Registers, or invalidates if that is `None`, by a key. Returns the status of the completion.
fn use_key(objects: &Objects, mr: Option<*mut ib_mr>, key: u32) -> Option<u32> {
    let mut wr: ib_reg_wr = zeroed();
    wr.wr.opcode = ib_wr_opcode_IB_WR_LOCAL_INV;
    if let Some(mr) = mr {
        wr.wr.opcode = ib_wr_opcode_IB_WR_REG_MR;
        let access = ib_access_flags_IB_ACCESS_LOCAL_WRITE
            | ib_access_flags_IB_ACCESS_REMOTE_READ
            | ib_access_flags_IB_ACCESS_REMOTE_WRITE;
        (wr.mr, wr.key, wr.access) = (mr, key, access as c_int);
        // SAFETY: The region exists.
        unsafe {
            (*mr).rkey = key;
            (*mr).lkey = (*mr).lkey & !GENERATIONS | key & GENERATIONS;
        }
    } else {
        // SAFETY: All variants of the union have the same size.
        unsafe { *wr.wr.ex.invalidate_rkey.as_mut() = key };
    }
    objects.wait_for((&raw mut wr).cast())
}

/// Accesses the client's own memory at an offset by a remote key. Returns the status of the completion.
fn access(objects: &Objects, opcode: u32, offset: u64, rkey: u32) -> Option<u32> {
    let mut sge = objects.sge(0, 8);
    let mut wr: ib_srd_rdma_wr = zeroed();
    (wr.wr.wr.sg_list, wr.wr.wr.num_sge) = (&raw mut sge, 1);
    wr.wr.wr.opcode = opcode;
    (wr.wr.ah, wr.wr.remote_qkey) = (objects.ah, QKEY);
    // SAFETY: The queue pair exists.
    wr.wr.remote_qpn = unsafe { (*objects.qp).qp_num };
    (wr.remote_addr, wr.rkey) = (sge.addr + offset, rkey);
    objects.wait_for((&raw mut wr).cast())
}

/// As [`access`], by a write to the start of the memory.
fn write(objects: &Objects, rkey: u32) -> Option<u32> {
    access(objects, ib_wr_opcode_IB_WR_RDMA_WRITE, 0, rkey)
}

/// A region has one registration at a time. Peers have access by its key only.
#[test]
fn keys_are_those_of_the_last_registration() {
    const DONE: Option<u32> = Some(0);
    const PROTECTED: Option<u32> = Some(ib_wc_status_IB_WC_LOC_PROT_ERR);
    const NO_ACCESS: Option<u32> = Some(ib_wc_status_IB_WC_REM_ACCESS_ERR);

    run_bound_with(Profile::Efa3, |rig| {
        let objects = client(SRD, 0);
        let mr = objects.mapped_region().unwrap();
        // SAFETY: The region exists until it is deregistered below, and the domain until the client ends.
        let (initial, local) = unsafe { ((*mr).rkey, (*objects.pd).local_dma_lkey) };
        let [first, second] = [1, 2].map(|generation| initial + generation * GENERATION);
        let invalidate = |key| use_key(&objects, None, key);
        let register = |key| use_key(&objects, Some(mr), key);
        assert_eq!(invalidate(initial), PROTECTED);
        assert_eq!(register(first), DONE);
        assert_eq!(register(second), PROTECTED);
        assert_eq!(
            [first, second].map(|key| write(&objects, key)),
            [DONE, NO_ACCESS]
        );
        // The last bytes of the region's two pages, and those beyond it.
        for opcode in [ib_wr_opcode_IB_WR_RDMA_WRITE, ib_wr_opcode_IB_WR_RDMA_READ] {
            let results = [8184, 8185].map(|offset| access(&objects, opcode, offset, first));
            assert_eq!(results, [DONE, NO_ACCESS], "{opcode}");
        }
        assert_eq!([first; 2].map(invalidate), [DONE, PROTECTED]);
        assert_eq!(write(&objects, first), NO_ACCESS);
        assert_eq!(register(second), DONE);
        assert_eq!(write(&objects, first), NO_ACCESS);
        // Peers cannot use the local key of all memory.
        assert_eq!(write(&objects, local), NO_ACCESS);

        // Access that the device has not, and a region without pages.
        let mut atomic: ib_reg_wr = zeroed();
        atomic.wr.opcode = ib_wr_opcode_IB_WR_REG_MR;
        atomic.mr = mr;
        atomic.access = ib_access_flags_IB_ACCESS_REMOTE_ATOMIC as c_int;
        assert_eq!(post(&objects, (&raw const atomic).cast()), Err(EINVAL));
        // SAFETY: The domain exists.
        let empty = unsafe { verbs::alloc_mr(objects.pd, 4) }.unwrap();
        assert_eq!(objects.register(empty), Err(EINVAL));
        // SAFETY: The domain exists, and nothing else uses the regions.
        unsafe {
            verbs::dereg_mr(empty, null_mut()).unwrap();
            verbs::dereg_mr(mr, null_mut()).unwrap();
        }
        drop(objects);
        rig.check_device();
    });
}
