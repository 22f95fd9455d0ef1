// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects, mappings, keys, interrupts and messages, while the device fails, is reset or removed.

use driver::client::{Objects, Request, Ulp, DIRECT};
use ib_core::{client, dmabuf, registry::registered, umem::Memory, verbs};

use super::*;

/// Runs `f` in two threads of a program, concurrently with `what`.
fn at_once(what: impl FnOnce(), f: impl Fn(&Program, u32) + Clone + 'static) {
    let (program, pd) = program();
    let threads = [(); 2].map(|()| {
        let (program, f) = (program.clone(), f.clone());
        sim::spawn("thread", move || f(&program, pd))
    });
    together(threads, what);
}

/// A program maps a doorbell while another thread destroys its queue.
#[test]
fn a_mapping_and_its_end() {
    explore("mapping", Profile::Efa3, ONE, |_| {
        let (program, _) = program();
        // The key of the doorbell follows that of the ring.
        let queue = program.create_cq(16, true, None).unwrap().id;
        let mapper = {
            let program = program.clone();
            sim::spawn("mapper", move || {
                for page in 0..4 {
                    let _ = program.process.map(page << 12, 4096);
                }
            })
        };
        together([mapper], || program.process.destroy(queue).unwrap());
    });
}

/// An exporter revokes memory of a region while a program registers another one. Peers may still have the key of the first.
#[test]
fn a_revocation_and_a_registration() {
    explore("revocation", Profile::Efa3, ONE, |rig| {
        rig.remove();
        rig.set(r#"{"max_mr": 2}"#);
        rig.probe().unwrap();
        let ((program, pd), buffer) = (program(), dmabuf::export(4096));
        let (region, key) = program.register_dmabuf(pd, buffer, 4096).unwrap();
        let registrar = {
            let program = program.clone();
            sim::spawn("registrar", move || {
                let memory = Memory::new(4096);
                for _ in 0..2 {
                    // The second one may find no number that is free.
                    if let Ok((_, other)) = program.register(pd, memory.address(), 4096) {
                        assert_ne!(other, key, "the key of a revoked region");
                    }
                }
            })
        };
        together([registrar], || dmabuf::revoke(buffer));
        program.process.destroy(region).unwrap();
    });
}

/// Creates objects of all kinds in a program, concurrently with `what`.
fn objects_and(what: impl FnOnce()) {
    let task = sim::spawn("program", || drop(program::Objects::new()));
    together([task], what);
}

#[test]
fn objects_and_a_removal() {
    explore("objects and a removal", Profile::Efa3, ONE, |rig| {
        objects_and(|| rig.remove())
    });
}

/// Each vector fires while its handler is detached.
#[test]
fn interrupts_and_a_removal() {
    explore("interrupts and a removal", Profile::Efa3, ONE, |rig| {
        let device = sim::spawn("device", || {
            for vector in (0..3).cycle().take(9) {
                sim::interrupt(vector);
                sim::point();
            }
        });
        together([device], || rig.remove());
    });
}

#[test]
fn objects_and_a_reset() {
    explore("objects and a reset", Profile::Efa3, ONE, |rig| {
        objects_and(|| rig.reset());
        rig.check_device();
    });
}

#[test]
fn objects_and_the_death_of_the_device() {
    explore("objects and a death", Profile::Efa3, ONE, |rig| {
        objects_and(|| rig.die(Death::default()));
        rig.check_quiet();
        rig.check_device();
    });
}

#[test]
fn a_kernel_client_and_a_removal() {
    explore("client and a removal", Profile::Efa3, ONE, |rig| {
        let ulp = Ulp::new(|device| Objects::new(device, DIRECT), true);
        let number = client::register_client(ulp.clone());
        let sender = sim::spawn("sender", move || {
            let request = Request::new(0);
            let _ = ulp.with(|objects| objects.post_recv(&request));
            // It may still be outstanding.
            std::mem::forget(request);
        });
        together([sender], || rig.remove());
        client::unregister_client(number);
    });
}

/// The device reports a failure. Then it completes the commands in flight.
#[test]
fn commands_and_a_failure() {
    explore("commands and a failure", Profile::Efa3, ONE, |rig| {
        sim::keep_log(true);
        let fail = || rig.event(AenqGroup::FatalError.into(), 0);
        at_once(fail, |program, _| {
            for _ in 0..4 {
                let _ = program.alloc_pd();
            }
        });
        go_on();
        rig.check_quiet();
        rig.check_device();
        let log = sim::take_log().concat();
        assert!(log.contains("The device has failed (fatal_error)"), "{log}");
        assert!(
            !log.contains("completion with unexpected command id"),
            "{log}"
        );
    });
}

/// `rdma resource show` reads objects at any time from their creation to their destruction.
#[test]
fn details_of_objects_that_come_and_go() {
    explore("details", Profile::Efa3, ONE, |rig| {
        let device = registered().unwrap();
        let read = move || (0..4).for_each(|_| drop(verbs::all_details(device)));
        at_once(read, |program, pd| {
            let memory = Memory::new(4096);
            let cq = program.create_cq(4, false, None).unwrap();
            let (mr, _) = program.register(pd, memory.address(), 4096).unwrap();
            program.process.destroy(mr).unwrap();
            program.process.destroy(cq.id).unwrap();
        });
        rig.check_device();
    });
}
