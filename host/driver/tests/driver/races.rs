// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Races of a few tasks, in each schedule with few preemptions: see [`sim::search`].

use std::rc::Rc;

use driver::{
    client::{Objects, Request, Ulp, DIRECT},
    fault::{always, command as of_command, once, silence},
    program::{self, Program},
    rig::{self, Rig},
};
use efa_hw::{admin::Opcode, aenq::AenqGroup};
use efa_model::{Death, Profile, Then};
use ib_core::{client, dmabuf, registry::registered, umem::Memory, verbs};
use kernel::sim;

/// Runs `race` with a bound device of each kind, once for each schedule with at most `bound` deviations in its
/// [searched](sim::searched) part. The newest kind refuses a second handle for a peer. Only the others count its users.
fn search(bound: usize, race: impl Fn(&mut Rig) + Copy + 'static) {
    for profile in [Profile::Efa3, Profile::Efa4] {
        let runs = sim::search(bound, false, |policy| {
            rig::run(profile, policy, |rig| {
                rig.probe().unwrap();
                race(rig);
            });
        });
        assert!(runs > 100, "{runs} schedules");
    }
}

/// Runs `f` in two threads of a program, concurrently with `what`.
fn at_once(what: impl FnOnce(), f: impl Fn(&Program, u32) + Clone + 'static) {
    let program = Rc::new(Program::new().unwrap());
    let pd = program.alloc_pd().unwrap();
    let threads = [(); 2].map(|()| {
        let (program, f) = (program.clone(), f.clone());
        sim::spawn("thread", move || f(&program, pd))
    });
    sim::searched(|| {
        what();
        threads.into_iter().for_each(sim::join);
    });
}

fn nothing() {}

#[test]
fn two_commands() {
    search(2, |rig| {
        at_once(nothing, |program, _| assert!(program.alloc_pd().is_ok()));
        rig.check_device();
    });
}

/// The device completes one of two commands as `then` says.
fn a_command_and_its_time_limit(then: fn() -> Then) {
    search(1, move |rig| {
        // The first ALLOC_PD is that of `at_once`.
        rig.inject(once(of_command(Some(Opcode::AllocPd)), then(), 1));
        at_once(nothing, |program, _| {
            let _ = program.alloc_pd();
        });
        rig.check_quiet();
        rig.check_device();
    });
}

#[test]
fn a_command_exceeds_its_time_limit() {
    a_command_and_its_time_limit(silence);
}

#[test]
fn a_command_completes_at_its_time_limit() {
    a_command_and_its_time_limit(|| Then {
        delay_ms: Some(30_000),
        ..Then::default()
    });
}

/// In the device, a protection domain has one address handle per peer, for all of its users.
#[test]
fn two_address_handles_of_a_peer() {
    search(1, |rig| {
        let shared = rig.shared.clone();
        at_once(nothing, move |program, pd| {
            let gid = program::own_gid().unwrap();
            for _ in 0..2 {
                let (id, _) = program.create_ah(pd, &gid).unwrap();
                assert_eq!(shared.with(|device, _, _| device.state()).resources.ah, 1);
                program.process.destroy(id).unwrap();
            }
        });
        rig.check_device();
    });
}

/// A program maps a doorbell while another thread destroys its queue.
#[test]
fn a_mapping_and_its_end() {
    search(1, |_| {
        let program = Rc::new(Program::new().unwrap());
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
        sim::searched(|| {
            program.process.destroy(queue).unwrap();
            sim::join(mapper);
        });
    });
}

/// An exporter revokes memory of a region while a program registers another one. Peers may still have the key of the first.
#[test]
fn a_revocation_and_a_registration() {
    search(1, |rig| {
        rig.remove();
        rig.set(r#"{"max_mr": 2}"#);
        rig.probe().unwrap();
        let program = Rc::new(Program::new().unwrap());
        let (pd, buffer) = (program.alloc_pd().unwrap(), dmabuf::export(4096));
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
        sim::searched(|| {
            dmabuf::revoke(buffer);
            sim::join(registrar);
        });
        program.process.destroy(region).unwrap();
    });
}

/// Creates objects of all kinds in a program, concurrently with `what`.
fn objects_and(what: impl FnOnce()) {
    let task = sim::spawn("program", || drop(program::Objects::new()));
    sim::searched(|| {
        what();
        sim::join(task);
    });
}

#[test]
fn objects_and_a_removal() {
    search(1, |rig| objects_and(|| rig.remove()));
}

/// Each vector fires while its handler is detached.
#[test]
fn interrupts_and_a_removal() {
    search(1, |rig| {
        let device = sim::spawn("device", || {
            for vector in (0..3).cycle().take(9) {
                sim::interrupt(vector);
                sim::point();
            }
        });
        sim::searched(|| {
            rig.remove();
            sim::join(device);
        });
    });
}

#[test]
fn objects_and_a_reset() {
    search(1, |rig| {
        objects_and(|| rig.reset());
        rig.check_device();
    });
}

#[test]
fn objects_and_the_death_of_the_device() {
    search(1, |rig| {
        objects_and(|| rig.die(Death::default()));
        rig.check_quiet();
        rig.check_device();
    });
}

#[test]
fn a_kernel_client_and_a_removal() {
    search(1, |rig| {
        let ulp = Ulp::new(|device| Objects::new(device, DIRECT), true);
        let number = client::register_client(ulp.clone());
        let sender = sim::spawn("sender", move || {
            let request = Request::new(0);
            let _ = ulp.with(|objects| objects.post_recv(&request));
            // It may still be outstanding.
            std::mem::forget(request);
        });
        sim::searched(|| {
            rig.remove();
            sim::join(sender);
        });
        client::unregister_client(number);
    });
}

/// The device reports a failure. Then it completes the commands in flight.
#[test]
fn commands_and_a_failure() {
    search(1, |rig| {
        sim::keep_log(true);
        let fail = || rig.event(AenqGroup::FatalError.into(), 0);
        at_once(fail, |program, _| {
            for _ in 0..4 {
                let _ = program.alloc_pd();
            }
        });
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

/// The device stops answering while a program destroys a region, an exporter revokes another one,
/// and `bus` runs. Each of them halts the device.
fn halts(bus: impl Fn(&mut Rig) + Copy + 'static) {
    search(1, move |rig| {
        let program = Rc::new(Program::new().unwrap());
        let pd = program.alloc_pd().unwrap();
        let (one, other) = (dmabuf::export(4096), dmabuf::export(4096));
        let (region, _) = program.register_dmabuf(pd, one, 4096).unwrap();
        program.register_dmabuf(pd, other, 4096).unwrap();
        rig.inject(always(of_command(None), silence()));
        let destroyer = {
            let program = program.clone();
            sim::spawn("destroyer", move || {
                let _ = program.process.destroy(region);
            })
        };
        let revoker = sim::spawn("revoker", move || dmabuf::revoke(other));
        sim::searched(|| {
            bus(rig);
            sim::join(destroyer);
            sim::join(revoker);
        });
        rig.heal();
        if rig.slot.is_bound() {
            rig.check_quiet();
        }
    });
}

#[test]
fn halts_and_a_recovery() {
    halts(|rig| rig.die(Death::default()));
}

#[test]
fn halts_and_a_reset() {
    halts(|rig| rig.reset());
}

#[test]
fn halts_and_a_shutdown() {
    halts(|rig| rig.slot.shutdown());
}

#[test]
fn halts_and_a_removal() {
    halts(|rig| rig.remove());
}

#[test]
fn halts_and_an_error_of_the_bus() {
    halts(|rig| rig.bus_error(false));
}

/// `rdma resource show` reads objects at any time from their creation to their destruction.
#[test]
fn details_of_objects_that_come_and_go() {
    search(1, |rig| {
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
