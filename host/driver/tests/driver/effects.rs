// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Each effect of a rule has the results in `tests/kselftest/effects.md`, as in a guest.

use driver::{
    fault::rule,
    program::Program,
    rig::{name_of, Rig, SECOND},
    sequence::ATTRIBUTES,
};
use efa_hw::aenq::AenqGroup;
use efa_model::Profile;
use kernel::sim;

use crate::{counter, run_with};

const TABLE: &str = include_str!("../../../../tests/kselftest/effects.md");

struct Effect {
    when: &'static str,
    then: &'static str,
    results: [&'static str; 3],
}

fn effects() -> impl Iterator<Item = Effect> {
    TABLE.lines().filter_map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, _, when, then, probe, r#use, recovery, _] = cells[..] else {
            return None;
        };
        Some(Effect {
            when,
            then: then.strip_prefix('`')?.strip_suffix('`')?,
            results: [probe, r#use, recovery],
        })
    })
}

impl Effect {
    fn inject(&self, rig: &Rig, is_use: bool) {
        let (when, skip) = match (self.when, is_use) {
            ("command", false) => (r#"{"opcode": "ANY"}"#, 2),
            ("command", true) => (r#"{"opcode": "ALLOC_PD"}"#, 0),
            ("register", _) => (r#"{"register": "DEV_STS"}"#, 0),
            _ => (r#"{"reset": true}"#, 0),
        };
        let then = self.then;
        rig.inject(rule(&format!(
            r#"{{"when": {when}, "then": {then}, "skip": {skip}, "times": 1}}"#
        )));
    }
}

fn in_a_probe(rig: &mut Rig, effect: &Effect) -> String {
    effect.inject(rig, false);
    name_of(rig.probe())
}

fn in_use(rig: &mut Rig, effect: &Effect) -> String {
    rig.probe().unwrap();
    effect.inject(rig, true);
    let result = match effect.when {
        "command" => Program::new().and_then(|program| program.alloc_pd().map(drop)),
        "register" => {
            sim::sleep(10 * SECOND);
            Ok(())
        }
        _ => {
            rig.remove();
            Ok(())
        }
    };
    let mut text = name_of(result);
    if rig.slot.is_bound() {
        rig.check_quiet();
        if counter("resets") > 0 {
            let reason = rig.state("last_reset").expect("a file in debugfs");
            text = format!("{text}, {reason}");
        }
    }
    text
}

fn in_a_recovery(rig: &mut Rig, effect: &Effect) -> String {
    rig.probe().unwrap();
    effect.inject(rig, false);
    rig.event(AenqGroup::FatalError.into(), 1);
    sim::sleep(SECOND);
    rig.check_quiet();
    assert_eq!(rig.state("state").as_deref(), Some("up"));
    rig.state("attempts").expect("a file in debugfs")
}

#[test]
fn are_as_in_a_guest() {
    let stages = [in_a_probe, in_use, in_a_recovery];
    let mut differences = Vec::new();
    for profile in [Profile::Efa2, Profile::Efa4] {
        for effect in effects() {
            for (stage, wanted) in stages.iter().zip(effect.results) {
                let result = run_with(profile, |rig| {
                    rig.set(ATTRIBUTES);
                    let result = stage(rig, &effect);
                    assert_eq!(rig.device().faults_hit, 1, "{}", effect.then);
                    rig.heal();
                    if !rig.slot.is_bound() {
                        rig.probe().unwrap();
                    }
                    result
                });
                if result != wanted {
                    differences.push(format!(
                        "{profile:?} {}: {result}, not {wanted}",
                        effect.then
                    ));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
}
