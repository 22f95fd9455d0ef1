// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Clients in the kernel.

use driver::{
    client::{Objects, DIRECT, WORKQUEUE},
    rig::PROFILES,
};
use efa_model::Profile;
use ib_core::registry::registered;
use kernel::sim;

use crate::{run, run_with};

#[test]
fn sends_to_itself() {
    for context in [DIRECT, WORKQUEUE] {
        for profile in PROFILES {
            run_with(profile, |rig| {
                rig.check_qkeys();
                rig.probe().unwrap();
                let device = registered().unwrap();
                // SAFETY: It is registered.
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
        run_with(profile, |rig| {
            rig.probe().unwrap();
            Objects::new(registered().unwrap(), DIRECT)
                .unwrap()
                .use_region();
            rig.check_device();
        });
    }
}

/// Each allocation of a client fails, one at a time.
#[test]
fn memory_is_short() {
    let mut number = 0;
    while run(|rig| {
        rig.probe().unwrap();
        sim::fail_allocation(Some(number));
        drop(Objects::new(registered().unwrap(), WORKQUEUE));
        sim::fail_allocation(None);
        sim::take_failed()
    }) {
        number += 1;
    }
    assert!(number > 20);
}
