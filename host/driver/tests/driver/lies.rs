// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices that return or write wrong data.

use driver::{
    fault::{always, register, silence},
    hardware::Liar,
    program::Objects,
    rig::{PROFILES, SECOND},
};
use efa_hw::regs::Register;
use efa_model::{Rule, Then};
use kernel::sim::{self, Rng};

use crate::{command, run, run_known};

/// During a probe, each register reads as each of several wrong values.
#[test]
fn registers_lie() {
    let mut faults = vec![silence()];
    for bit in 0..32 {
        faults.push(Then {
            value: Some(1 << bit),
            ..Then::default()
        });
        faults.push(Then {
            value: Some(!(1 << bit)),
            ..Then::default()
        });
    }
    faults.push(Then {
        value: Some(u32::MAX),
        ..Then::default()
    });
    faults.push(Then {
        wrong_offset: true,
        ..Then::default()
    });
    faults.push(Then {
        wrong_req_id: true,
        ..Then::default()
    });
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
        run_known(PROFILES[seed as usize % 5], |rig| {
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
