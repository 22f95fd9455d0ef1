// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices that return or write wrong data.

use core::ptr::null_mut;
use std::collections::BTreeSet;

use driver::{
    client::{self, DIRECT, WORKQUEUE},
    fault::{always, register, silence, then},
    hardware::Liar,
    inputs,
    program::Objects,
    rig::{self, Rig, PROFILES, SECOND},
    sequence,
};
use efa_hw::{aenq::AenqGroup, regs::Register};
use efa_model::{Profile, Rule};
use ib_core::{registry::registered, verbs};
use kernel::{
    devlink,
    sim::{self, Policy, Rng},
};

use crate::{command, run, run_with};

/// During a probe, each register reads as each of several wrong values.
#[test]
fn registers_lie() {
    let mut faults = vec![silence()];
    for bit in 0..32 {
        let one = 1u32 << bit;
        faults.extend([one, !one].map(|value| then(&format!(r#"{{"value": {value}}}"#))));
    }
    faults.push(then(r#"{"value": 4294967295}"#));
    faults.push(then(r#"{"wrong_offset": true}"#));
    faults.push(then(r#"{"wrong_req_id": true}"#));
    for place in Register::ALL {
        for fault in &faults {
            for skip in 0..3 {
                let rule = Rule {
                    skip,
                    ..always(register(*place), fault.clone())
                };
                run(|rig| {
                    rig.inject(rule);
                    if rig.probe().is_ok() {
                        let _ = command();
                        sim::sleep(10 * SECOND);
                    }
                });
            }
        }
    }
}

/// Uses all verbs, kernel verbs included.
fn use_all(rig: &Rig) {
    sequence::call_all();
    let Some(device) = registered() else {
        return;
    };
    for context in [DIRECT, WORKQUEUE] {
        let Ok(mut objects) = client::Objects::new(device, context) else {
            continue;
        };
        objects.is_honest = false;
        for is_send in [false, true, true] {
            let _ = objects.post_message(is_send);
            sim::sleep(SECOND / 1000);
            if context == DIRECT {
                objects.poll();
            }
        }
        if let Ok(mr) = objects.mapped_region() {
            // SAFETY: The region is not in use.
            verbs::ignore("ib_dereg_mr", unsafe { verbs::dereg_mr(mr, null_mut()) });
        }
    }
    rig.event(AenqGroup::Warning.into(), 1);
    let _ = devlink::diagnose();
    sim::sleep(10 * SECOND);
}

/// Registers that the driver only writes.
const NEVER_READ: [&str; 17] = [
    "ACQ_BASE_HI",
    "ACQ_BASE_LO",
    "ACQ_CAPS",
    "AENQ_BASE_HI",
    "AENQ_BASE_LO",
    "AENQ_CAPS",
    "AENQ_CONS_DB",
    "AQ_BASE_HI",
    "AQ_BASE_LO",
    "AQ_CAPS",
    "AQ_PROD_DB",
    "DEV_CTL",
    "EQ_DB",
    "INTR_MASK",
    "MMIO_REG_READ",
    "MMIO_RESP_HI",
    "MMIO_RESP_LO",
];

/// Each [input](inputs::all) has each hostile value: before the probe, and in a device that is bound.
#[test]
fn inputs_lie() {
    let inputs = inputs::all();
    let (mut runs, mut missed) = (0, BTreeSet::new());
    for input in &inputs {
        for value in input.values() {
            let mut written = 0;
            for is_bound in [false, true] {
                let counted = rig::run_without_end(Profile::Efa4, Policy::Sequential, |mut rig| {
                    // A corrupted completion may report the failure of a command that was executed.
                    sim::memory::set_strict(false);
                    if is_bound {
                        rig.probe().unwrap();
                    }
                    let count = input.set(&rig, value);
                    if is_bound || rig.probe().is_ok() {
                        use_all(&rig);
                    }
                    let count = count(&rig);
                    rig.heal();
                    rig.shared.set_liar(None);
                    rig.end();
                    count
                });
                written += counted;
                runs += 1;
            }
            if written == 0 {
                missed.insert(input.name.as_str());
            }
        }
    }
    println!("{} inputs, {runs} lives", inputs.len());
    let missed: Vec<_> = missed.into_iter().collect();
    assert_eq!(missed, NEVER_READ);
}

/// Corrupts random bytes in the DMA writes of the device.
struct Nonsense(Rng);

impl Liar for Nonsense {
    fn change(&mut self, _: u64, data: &mut [u8]) {
        if self.0.one_in(8) {
            let place = self.0.below(data.len() as u64) as usize;
            data[place] = self.0.number() as u8;
        }
    }
}

#[test]
fn a_device_writes_nonsense() {
    for seed in 0..2000 {
        run_with(PROFILES[seed as usize % 5], |rig| {
            rig.shared
                .set_liar(Some(Box::new(Nonsense(Rng::new(seed)))));
            // A corrupted completion may report the failure of a command that was executed.
            sim::memory::set_strict(false);
            if rig.probe().is_ok() {
                for _ in 0..2 {
                    drop(Objects::new());
                }
                sim::sleep(10 * SECOND);
            }
        });
    }
}
