// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Programs that use the device through verbs and mapped rings.

use driver::{
    fault::{command as of_command, once, silence, status, then},
    program::{Objects, Program},
    rig::{Rig, PROFILES, SECOND},
    rings::{Completion, Sge},
};
use efa_hw::{admin::Opcode, io::CompStatus};
use efa_model::Profile;
use ib_core::{
    dmabuf, ffi,
    umem::{self, Memory},
};
use kernel::{error::code::*, sim};

use crate::{run, run_bound, run_bound_as, run_bound_with, run_with, traced};

/// A completion counter has two values, at aligned addresses, of which each is set and increased alone.
#[test]
fn modifies_each_value_of_a_counter() {
    const SET: u32 = ffi::ib_comp_cntr_modify_op_IB_COMP_CNTR_MODIFY_OP_SET;
    const INC: u32 = ffi::ib_comp_cntr_modify_op_IB_COMP_CNTR_MODIFY_OP_INC;
    const COMP: u32 = ffi::ib_comp_cntr_entry_IB_COMP_CNTR_ENTRY_COMP;
    const ERR: u32 = ffi::ib_comp_cntr_entry_IB_COMP_CNTR_ENTRY_ERR;

    run_bound_with(Profile::Efa4, |_| {
        let (program, memory) = (Program::new().unwrap(), Memory::new(4096));
        let at = memory.address();
        for (comp, err) in [(at + 4, at + 8), (at, at + 12)] {
            assert_eq!(program.create_counter(comp, err), Err(EINVAL));
        }
        let counter = program.create_counter(at, at + 8).unwrap();
        for (entry, op, value, wanted) in [
            (COMP, SET, 5, [5, 0]),
            (ERR, SET, 7, [5, 7]),
            (ERR, INC, 2, [5, 9]),
            (COMP, INC, 1, [6, 9]),
        ] {
            let modified = program.process.modify_counter(counter, entry, op, value);
            assert_eq!(modified, Ok(()));
            assert_eq!(memory.read(0, 16), wanted.map(u64::to_le_bytes).concat());
        }
    });
}

/// The device may place them anywhere in a page.
#[test]
fn rings_begin_where_the_device_says() {
    run_bound(|rig| {
        let program = Program::new().unwrap();
        let (pd, cq) = (
            program.alloc_pd().unwrap(),
            program.create_cq(32, false, None),
        );
        // Fields of CREATE_QP's response: the offsets of both doorbells, and of the send ring.
        let offsets = then(
            r#"{"corrupt": [{"offset": 20, "value": 16}, {"offset": 24, "value": 24}, {"offset": 28, "value": 64}]}"#,
        );
        rig.inject(once(of_command(Some(Opcode::CreateQp)), offsets, 0));
        let qp = program.create_qp(pd, cq.unwrap().id, true, 32, 32);
        assert_eq!(qp.unwrap().offsets(), [(0x40, 0x10), (0, 0x18)]);
    });
}

#[test]
fn has_objects_of_each_kind() {
    for profile in PROFILES {
        for in_pieces in [false, true] {
            run_bound_with(profile, |rig| {
                umem::set_in_pieces(in_pieces);
                let objects = Objects::new().unwrap();
                let (program, process) = (&objects.program, &objects.program.process);
                assert_eq!(process.destroy(objects.pd), Err(EBUSY));
                assert_eq!(process.destroy(objects.cq.id), Err(EBUSY));
                for (id, kind) in objects.with_details() {
                    assert!(!process.details(id, kind, 9).unwrap().is_empty());
                    assert_eq!(process.details(id, kind, 0), Err(EMSGSIZE));
                }
                let memory = Memory::new(4096);
                let counter = program.create_counter(memory.address(), memory.address() + 8);
                assert_eq!(
                    counter.is_ok(),
                    program.has_counters(),
                    "{profile:?}: {counter:?}"
                );
                if let Ok(counter) = counter {
                    process.destroy(counter).unwrap();
                }
                let own = Memory::new(64 << 10);
                let other = program.create_cq(32, false, Some((own.address(), 64 << 10)));
                // The device requires a contiguous ring.
                assert_eq!(other.is_err(), in_pieces);
                let beyond = program.register(objects.pd, u64::MAX - 4095, 4096);
                assert_eq!(beyond.err(), Some(EINVAL));
                let too_short = program.create_cq(4096, false, Some((own.address(), 4096)));
                assert_eq!(too_short.err(), Some(EINVAL));
                if let Ok(other) = other {
                    process.destroy(other.id).unwrap();
                }
                for id in [
                    objects.qp.id,
                    objects.ah,
                    objects.mr,
                    objects.cq.id,
                    objects.pd,
                ] {
                    process.destroy(id).unwrap();
                }
                rig.check_device();
            });
        }
    }
}

/// Waits for `count` completions, all of which must be successful.
fn wait_for(objects: &mut Objects, count: usize) -> Vec<Completion> {
    let mut completions = Vec::new();
    for _ in 0..1000 {
        while let Some(completion) = objects.cq.poll().unwrap() {
            assert_eq!(completion.status, CompStatus::Ok as u8, "{completion:?}");
            completions.push(completion);
        }
        if completions.len() == count {
            return completions;
        }
        sim::sleep(1000);
    }
    panic!("completions are missing: {completions:?}");
}

/// Posts through the mappings, several times the depth of each ring. A device with short addresses has coherent memory.
#[test]
fn sends_to_itself() {
    for (profile, width) in PROFILES.into_iter().zip([32, 46].into_iter().cycle()) {
        run_with(profile, |rig| {
            rig.set(&format!(r#"{{"dma_addr_width": {width}}}"#));
            rig.probe().unwrap();
            let mut objects = Objects::new().unwrap();
            let (sge, peer) = (objects.sge, objects.peer);
            let part = |offset: u64| Sge {
                addr: sge.addr + offset,
                length: 1000,
                ..sge
            };
            let offset = (sge.addr - objects.memory.address()) as usize;
            for number in 0..200_u16 {
                objects.memory.write(offset, &[number as u8; 1000]);
                objects.qp.post_recv(number, part(4096)).unwrap();
                objects.qp.post_send(number, peer, part(0)).unwrap();
                let completions = wait_for(&mut objects, 2);
                assert!(completions.iter().all(|completion| completion.id == number));
                let recv = completions
                    .iter()
                    .find(|completion| completion.is_recv)
                    .unwrap();
                assert_eq!(recv.length, 1000);
                let received = objects.memory.read(offset + 4096, 1000);
                assert_eq!(received, vec![number as u8; 1000]);
            }
            drop(objects);
            rig.check_device();
        });
    }
}

/// Each ring of events is passed several times.
#[test]
fn receives_completion_events() {
    run_bound_as(r#"{"max_eq_depth": 4}"#, |_| {
        let mut objects = Objects::new().unwrap();
        let (sge, peer) = (
            Sge {
                length: 100,
                ..objects.sge
            },
            objects.peer,
        );
        for round in 0..20 {
            objects.cq.arm().unwrap();
            sim::sleep(1000);
            let events = objects.program.process.events(objects.cq.id).unwrap();
            assert_eq!(events, round);
            objects.qp.post_recv(1, sge).unwrap();
            objects.qp.post_send(2, peer, sge).unwrap();
            wait_for(&mut objects, 2);
            sim::sleep(1000);
            let events = objects.program.process.events(objects.cq.id).unwrap();
            assert_eq!(events, round + 1);
            objects.cq.ack_event();
        }
    });
}

#[test]
fn reads_and_writes_memory_of_a_peer() {
    run_bound_with(Profile::Efa3, |_| {
        let mut objects = Objects::new().unwrap();
        let access = ib_core::ffi::ib_access_flags_IB_ACCESS_LOCAL_WRITE
            | ib_core::ffi::ib_access_flags_IB_ACCESS_REMOTE_WRITE
            | ib_core::ffi::ib_access_flags_IB_ACCESS_REMOTE_READ;
        let remote = Memory::new(8192);
        let process = &objects.program.process;
        let place = (remote.address(), 8192);
        let (_, keys) = process
            .register(objects.pd, place, access, &[], &mut [])
            .unwrap();
        let (local, peer) = (
            Sge {
                length: 1000,
                ..objects.sge
            },
            objects.peer,
        );
        let offset = (local.addr - objects.memory.address()) as usize;
        let there = Sge {
            addr: remote.address() + 100,
            length: 1000,
            key: keys.remote,
        };
        objects.memory.write(offset, &[7; 1000]);
        objects.qp.post_rdma(1, true, peer, local, there).unwrap();
        wait_for(&mut objects, 1);
        assert_eq!(remote.read(100, 1000), vec![7; 1000]);
        remote.write(100, &[8; 1000]);
        objects.qp.post_rdma(2, false, peer, local, there).unwrap();
        wait_for(&mut objects, 1);
        assert_eq!(objects.memory.read(offset, 1000), vec![8; 1000]);
    });
}

/// A region permits relaxed ordering if the program asks for it and the device offers it. Otherwise the flag is ignored.
#[test]
fn asks_for_relaxed_ordering() {
    let local = ib_core::ffi::ib_access_flags_IB_ACCESS_LOCAL_WRITE;
    let relaxed = local | ib_core::ffi::ib_access_flags_IB_ACCESS_RELAXED_ORDERING;
    for (offers, access, is_asked) in [
        (false, relaxed, false),
        (true, local, false),
        (true, relaxed, true),
    ] {
        let attributes = format!(r#"{{"relaxed_ordering": {offers}}}"#);
        run_bound_as(&attributes, |_| {
            let (program, memory) = (Program::new().unwrap(), Memory::new(4096));
            let pd = program.alloc_pd().unwrap();
            let place = (memory.address(), 4096);
            let (made, log) = traced(|| program.process.register(pd, place, access, &[], &mut []));
            made.unwrap();
            let command = log.iter().find(|line| line.contains("REG_MR("));
            let asks = command.unwrap().contains("write_enable+relaxed_ordering");
            assert_eq!(asks, is_asked);
        });
    }
}

#[test]
fn a_program_that_ends_leaves_nothing() {
    run_bound(|rig| {
        drop(Objects::new().unwrap());
        rig.check_device();
    });
}

/// Its calls fail, and so do accesses through its mappings, with SIGBUS in the kernel.
#[test]
fn a_device_is_removed_while_a_program_has_it() {
    run_bound(|rig| {
        let mut objects = Objects::new().unwrap();
        rig.remove();
        assert_eq!(objects.program.alloc_pd(), Err(EIO));
        let (sge, peer) = (objects.sge, objects.peer);
        assert_eq!(objects.qp.post_recv(1, sge), Err(EFAULT));
        assert_eq!(objects.qp.post_send(1, peer, sge), Err(EFAULT));
        // The ring of completions is in pages that the program keeps.
        assert_eq!(objects.cq.poll(), Ok(None));
    });
}

#[test]
fn a_dma_buffer_is_revoked() {
    run_bound(|rig| {
        let program = Program::new().unwrap();
        let pd = program.alloc_pd().unwrap();
        let buffer = dmabuf::export(1 << 20);
        let (mr, key) = program.register_dmabuf(pd, buffer, 1 << 20).unwrap();
        let has = |rig: &Rig| {
            rig.shared.with(|device, _, now| {
                let regions = device.snapshot(now).memory_regions;
                regions.iter().any(|region| region.number == key & 0xffff)
            })
        };
        assert!(has(rig));
        dmabuf::revoke(buffer);
        assert!(!has(rig));
        program.process.destroy(mr).unwrap();
        drop(program);
        rig.check_device();
    });
}

/// Each allocation of a probe and of a program fails, one at a time.
#[test]
fn memory_is_short() {
    let mut number = 0;
    while run(|rig| {
        sim::fail_allocation(Some(number));
        if rig.probe().is_ok() {
            drop(Objects::new());
        }
        sim::fail_allocation(None);
        // `run` makes its final checks in either case.
        sim::take_failed()
    }) {
        number += 1;
    }
    assert!(number > 80);
}

/// Each command of a program is refused once, or not answered.
#[test]
fn each_command_fails() {
    for fault in [None, Some(1), Some(3), Some(5), Some(6), Some(200)] {
        for number in 0..30 {
            let then = fault.map_or(silence(), status);
            run_bound(|rig| {
                rig.inject(once(of_command(None), then, number));
                if let Ok(objects) = Objects::new() {
                    let _ = objects.program.process.destroy(objects.ah);
                }
                sim::sleep(100 * SECOND);
            });
        }
    }
}
