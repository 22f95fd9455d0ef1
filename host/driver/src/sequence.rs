// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Sequences of verbs and faults that a guest repeats: tests/test_host_diff.py.
//!
//! A seed determines the steps. This module runs them, and records the reaction of the driver to
//! each. `tests/host-diff/play.py` repeats the recorded steps in a guest, and compares the results.

use efa_hw::aenq::AenqGroup;
use efa_model::{Death, Profile};
use ib_core::{registry, stats, umem::Memory};
use kernel::{
    error::{code::*, Result},
    page::PAGE_SIZE,
    sim::{self, Policy, Rng},
};
use serde_json::{json, Value};

use crate::{
    fault::rule,
    program::{Program, UP},
    rig::{self, name_of, Rig},
};

/// Device attributes, as in `play.py` and `effects.py`: no keep-alives, command timeout of 1.5 s.
pub const ATTRIBUTES: &str = r#"{"keep_alive_ms": 0, "admin_timeout": 15, "reset_timeout": 10}"#;

/// A peer's GID.
const PEER: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

/// Limit on the random steps of a sequence.
const MOST: u64 = 24;

/// Verbs. Those that create objects are repeated, to make them more likely.
const VERBS: [&str; 26] = [
    "alloc_pd",
    "alloc_pd",
    "create_cq",
    "create_cq",
    "create_cq_with_events",
    "create_qp",
    "create_qp",
    "init_qp",
    "rtr_qp",
    "rts_qp",
    "query_qp",
    "create_ah",
    "create_ah",
    "reg_mr",
    "reg_mr",
    "create_counter",
    "set_counter",
    "attach_counter",
    "counters",
    "dealloc_pd",
    "destroy_cq",
    "destroy_qp",
    "destroy_ah",
    "dereg_mr",
    "destroy_counter",
    "close",
];

/// Opcodes of injected rules. The effects are below.
const OPCODES: [&str; 18] = [
    "ANY",
    "ANY",
    "ANY",
    "ALLOC_UAR",
    "ALLOC_PD",
    "CREATE_CQ",
    "CREATE_QP",
    "MODIFY_QP",
    "QUERY_QP",
    "CREATE_AH",
    "REG_MR",
    "CREATE_EVENT_COUNTER",
    "GET_STATS",
    "DEREG_MR",
    "DESTROY_AH",
    "DESTROY_CQ",
    "DEALLOC_PD",
    "DEALLOC_UAR",
];
// No delay: with one, the order of commands in flight would depend on the guest's speed.
const AT_ONCE: [&str; 3] = [
    r#"{"status": "UNKNOWN_ERROR"}"#,
    r#"{"status": "RESOURCE_ALLOCATION_FAILURE"}"#,
    r#"{"duplicate": true}"#,
];
const WAITING: [&str; 4] = [
    r#"{"silence": true}"#,
    r#"{"wrong_id": true}"#,
    r#"{"wrong_checksum": true}"#,
    r#"{"after_reset": true}"#,
];

/// A program and its objects, the newest of each kind last.
#[derive(Default)]
struct Player {
    program: Option<Program>,
    memory: Option<Memory>,
    pds: Vec<u32>,
    cqs: Vec<u32>,
    qps: Vec<u32>,
    ahs: Vec<u32>,
    mrs: Vec<u32>,
    counters: Vec<u32>,
}

/// Destroys the newest object of a list. On an error it stays in the list.
fn destroy(program: &Program, objects: &mut Vec<u32>) -> Result {
    program.process.destroy(*objects.last().ok_or(ENOENT)?)?;
    objects.pop();
    Ok(())
}

impl Player {
    /// Calls a verb. Returns `ENOENT` if a required object is missing.
    fn call(&mut self, verb: &str) -> Result {
        match verb {
            "counters" => {
                return stats::read_stats(registry::registered().ok_or(ENODEV)?, 1).map(drop)
            }
            "open" => {
                self.program = Some(Program::new()?);
                return Ok(());
            }
            "close" => {
                *self = Self::default();
                return Ok(());
            }
            _ => {}
        }
        let program = self.program.as_ref().ok_or(ENOENT)?;
        let newest = |objects: &Vec<u32>| objects.last().copied().ok_or(ENOENT);
        let memory = self.memory.get_or_insert_with(|| Memory::new(PAGE_SIZE));
        let address = memory.address();
        match verb {
            "alloc_pd" => self.pds.push(program.alloc_pd()?),
            "create_cq" => self.cqs.push(program.create_cq(16, false, None)?.id),
            "create_cq_with_events" => self.cqs.push(program.create_cq(16, true, None)?.id),
            "create_qp" => {
                let (pd, cq) = (newest(&self.pds)?, newest(&self.cqs)?);
                self.qps.push(program.create_qp(pd, cq, true, 32, 16)?.id);
            }
            "init_qp" => program.modify_qp(newest(&self.qps)?, UP[0])?,
            "rtr_qp" => program.modify_qp(newest(&self.qps)?, UP[1])?,
            "rts_qp" => program.modify_qp(newest(&self.qps)?, UP[2])?,
            "query_qp" => {
                program.process.query_qp(newest(&self.qps)?)?;
            }
            "create_ah" => {
                let pd = newest(&self.pds)?;
                self.ahs.push(program.create_ah(pd, &PEER)?.0);
            }
            "reg_mr" => {
                let pd = newest(&self.pds)?;
                let (id, _) = program.register(pd, address, PAGE_SIZE as u64)?;
                self.mrs.push(id);
            }
            "create_counter" => self
                .counters
                .push(program.create_counter(address, address + 8)?),
            "set_counter" => program.set_counter(newest(&self.counters)?, 1)?,
            "attach_counter" => {
                let (qp, counter) = (newest(&self.qps)?, newest(&self.counters)?);
                program.process.attach_counter(qp, counter, 1)?;
            }
            "dealloc_pd" => destroy(program, &mut self.pds)?,
            "destroy_cq" => destroy(program, &mut self.cqs)?,
            "destroy_qp" => destroy(program, &mut self.qps)?,
            "destroy_ah" => destroy(program, &mut self.ahs)?,
            "dereg_mr" => destroy(program, &mut self.mrs)?,
            "destroy_counter" => destroy(program, &mut self.counters)?,
            _ => unreachable!("{verb}"),
        }
        Ok(())
    }
}

/// Returns a random step: a word, and the rule of an injected fault.
fn step(rng: &mut Rng, waits: &mut bool) -> Value {
    match rng.below(48) {
        0 => json!(["fatal_error"]),
        1 => json!(["die"]),
        2 => json!(["rebind"]),
        3 => json!(["reset"]),
        4..=9 => {
            // At most one of these, as a guest waits in real time.
            let then = if !*waits && rng.one_in(3) {
                *waits = true;
                rng.pick(&WAITING)
            } else {
                rng.pick(&AT_ONCE)
            };
            let (opcode, skip) = (rng.pick(&OPCODES), rng.below(3));
            let then: Value = serde_json::from_str(then).expect("JSON");
            json!(["inject", {"when": {"opcode": opcode}, "then": then, "skip": skip, "times": 1}])
        }
        _ => json!([rng.pick(&VERBS)]),
    }
}

fn play(rig: &mut Rig, player: &mut Player, step: &Value) -> String {
    match step[0].as_str().expect("a word") {
        "fatal_error" => rig.event(AenqGroup::FatalError.into(), 1),
        "die" => rig.die(Death::default()),
        "rebind" => {
            if rig.slot.is_bound() {
                rig.remove();
            }
            return name_of(rig.probe());
        }
        "reset" => rig.reset(),
        "inject" => rig.inject(rule(&step[1].to_string())),
        verb => return name_of(player.call(verb)),
    }
    "ok".into()
}

/// Calls all verbs in a program, each of which may fail.
pub fn call_all() {
    let mut player = Player::default();
    for verb in ["open"].iter().chain(&VERBS) {
        let _ = player.call(verb);
    }
}

/// Runs the sequence of a seed. Returns the steps, each with its result, the trace of the device
/// and the state of the driver afterwards.
pub fn record(seed: u64) -> Value {
    let mut rng = Rng::new(seed);
    let profile = rng.pick(&[Profile::Efa3, Profile::Efa4]);
    let mut steps = vec![json!(["open"])];
    let mut waits = false;
    for _ in 0..rng.below(MOST) {
        steps.push(step(&mut rng, &mut waits));
        if ["close", "rebind", "reset", "die", "fatal_error"]
            .contains(&steps[steps.len() - 1][0].as_str().unwrap_or(""))
        {
            steps.extend([json!(["close"]), json!(["open"])]);
        }
    }
    steps.push(json!(["close"]));
    let mut shown = Vec::new();
    rig::run_without_end(profile, Policy::Sequential, |mut rig| {
        rig.set(ATTRIBUTES);
        rig.probe().expect("a device that works");
        crate::hardware::trace_device(true);
        sim::keep_log(true);
        let mut player = Player::default();
        for step in &steps {
            let result = play(&mut rig, &mut player, step);
            if rig.slot.is_bound() {
                rig.check_quiet();
            }
            let log = sim::take_log();
            let events = log.iter().filter_map(|line| line.split_once("] device: "));
            let trace: Vec<_> = events.map(|(_, event)| event.trim_end()).collect();
            let state = |what| rig.state(what);
            let resources = rig.device().resources;
            shown.push(json!({
                "step": step,
                "result": result,
                "trace": trace,
                "state": state("state"),
                "session": state("session"),
                "quarantine": state("quarantine"),
                "resources": resources,
            }));
        }
        crate::hardware::trace_device(false);
        sim::keep_log(false);
        drop(player);
        rig.heal();
        rig.end();
    });
    json!({"seed": seed, "profile": format!("{profile:?}").to_lowercase(), "steps": shown})
}
