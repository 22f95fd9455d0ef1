// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Address handles of one peer, which share one of the device.

use super::*;

/// Returns the number of address handles of the device.
fn count(shared: &driver::hardware::Shared) -> u32 {
    shared.with(|device, _, _| device.state()).resources.ah as u32
}

/// Searches two threads that each create and destroy a handle of a peer `rounds` times. They call `during` while they have it.
fn two_threads(property: &str, profile: Profile, bounds: Bounds, rounds: u32, before: fn(&Rig)) {
    explore(property, profile, bounds, move |rig| {
        let (program, pd) = program();
        let gid = program::own_gid().unwrap();
        before(rig);
        let tasks = [(); 2].map(|()| {
            let (program, shared) = (program.clone(), rig.shared.clone());
            sim::spawn("thread", move || {
                for _ in 0..rounds {
                    let (id, _) = program.create_ah(pd, &gid).unwrap();
                    assert_eq!(count(&shared), 1, "handles of a peer in use");
                    program.process.destroy(id).unwrap();
                }
            })
        });
        together(tasks, || ());
        drop(program);
        rig.heal();
        rig.check_device();
    });
}

/// The newest device refuses a second one.
#[test]
fn the_device_has_one_handle_per_peer() {
    two_threads("handles", Profile::Efa4, TWO, 1, |_| ());
}

#[test]
fn a_handle_in_use_is_not_destroyed() {
    explore("handle in use", Profile::Efa4, TWO, |rig| {
        let (program, pd) = program();
        let gid = program::own_gid().unwrap();
        let (kept, number) = program.create_ah(pd, &gid).unwrap();
        let (other, shared) = (program.clone(), rig.shared.clone());
        let task = sim::spawn("thread", move || {
            for _ in 0..2 {
                let (id, own) = other.create_ah(pd, &gid).unwrap();
                assert_eq!(own, number);
                other.process.destroy(id).unwrap();
                assert_eq!(count(&shared), 1);
            }
        });
        let other = program.clone();
        let second = sim::spawn("second", move || {
            let (id, own) = other.create_ah(pd, &gid).unwrap();
            assert_eq!(own, number);
            other.process.destroy(id).unwrap();
        });
        together([task, second], || ());
        assert_eq!(count(&rig.shared), 1);
        program.process.destroy(kept).unwrap();
        assert_eq!(count(&rig.shared), 0);
    });
}

/// The handle stays in the device, and the next user gets it.
#[test]
fn a_refused_destruction_leaves_the_handle_to_the_next_user() {
    two_threads("refused destruction", Profile::Efa4, ONE, 2, |rig| {
        rig.inject(once(of_command(Some(Opcode::DestroyAh)), status(5), 0));
    });
}

/// The other thread, which waits for the result, tries by itself.
#[test]
fn a_failed_creation_fails_for_one_user() {
    explore("failed creation", Profile::Efa4, TWO, |rig| {
        let (program, pd) = program();
        let gid = program::own_gid().unwrap();
        rig.inject(once(of_command(Some(Opcode::CreateAh)), status(5), 0));
        let results = Results::new();
        let tasks = [(); 2].map(|()| {
            let (program, shared) = (program.clone(), rig.shared.clone());
            results.spawn("thread", move || {
                let (id, _) = program.create_ah(pd, &gid)?;
                assert_eq!(count(&shared), 1);
                program.process.destroy(id)
            })
        });
        together(tasks, || ());
        let results = results.take();
        assert_eq!(
            results.iter().filter(|result| result.is_ok()).count(),
            1,
            "{results:?}"
        );
        drop(program);
        rig.check_device();
    });
}
