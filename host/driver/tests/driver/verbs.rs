// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Device faults during each verb: the verb returns, nothing leaks, and no task waits twice.

use driver::{
    fault::rule,
    program::{own_gid, Program, UP},
    rig::{name_of, Rig},
    rings::{Cq, Qp},
};
use efa_model::Profile;
use ib_core::{registry::registered, stats, umem::Memory};
use kernel::{
    error::{code::*, Result},
    page::PAGE_SIZE,
};

use crate::{counter, run_bound_with, run_with};

/// Verbs, in the order in which a program creates its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Open,
    AllocPd,
    CreateCq,
    CreateCqWithEvents,
    CreateQp,
    ModifyQp,
    QueryQp,
    CreateCounter,
    ModifyCounter,
    AttachCounter,
    CreateAh,
    RegMr,
    Counters,
    DeregMr,
    DestroyAh,
    DestroyQp,
    DestroyCounter,
    DestroyCq,
    DestroyCqWithEvents,
    DeallocPd,
    Close,
}
use Verb::*;

/// Returns the verbs that create or modify objects.
fn make() -> impl Iterator<Item = Verb> {
    VERBS
        .map(|(verb, ..)| verb)
        .into_iter()
        .filter(|verb| *verb < Counters)
}

/// Returns the verbs that destroy these objects.
fn destroy() -> impl Iterator<Item = Verb> {
    VERBS
        .map(|(verb, ..)| verb)
        .into_iter()
        .filter(|verb| *verb > Counters)
}

/// Verbs, their commands, and the destructions before each. All of them precede `Close`.
const VERBS: [(Verb, &str, &[Verb]); 21] = [
    (Open, "ALLOC_UAR", &[]),
    (AllocPd, "ALLOC_PD", &[]),
    (CreateCq, "CREATE_CQ", &[]),
    (CreateCqWithEvents, "CREATE_CQ", &[]),
    (CreateQp, "CREATE_QP", &[]),
    (ModifyQp, "MODIFY_QP", &[]),
    (QueryQp, "QUERY_QP", &[]),
    (CreateCounter, "CREATE_EVENT_COUNTER", &[]),
    (ModifyCounter, "MODIFY_EVENT_COUNTER", &[]),
    (AttachCounter, "ATTACH_EVENT_COUNTER", &[]),
    (CreateAh, "CREATE_AH", &[]),
    (RegMr, "REG_MR", &[]),
    (Counters, "GET_STATS", &[]),
    (DeregMr, "DEREG_MR", &[]),
    (DestroyAh, "DESTROY_AH", &[]),
    (DestroyQp, "DESTROY_QP", &[]),
    (DestroyCounter, "DESTROY_EVENT_COUNTER", &[DestroyQp]),
    (DestroyCq, "DESTROY_CQ", &[DestroyQp]),
    (DestroyCqWithEvents, "DESTROY_CQ", &[]),
    (DeallocPd, "DEALLOC_PD", &[DestroyQp, DestroyAh, DeregMr]),
    (Close, "DEALLOC_UAR", &[]),
];

/// A program with an object of each kind.
struct Set {
    program: Option<Program>,
    memory: Memory,
    pd: u32,
    cq: Option<Cq>,
    events: Option<Cq>,
    qp: Option<Qp>,
    counter: u32,
    attached: u32,
    ah: u32,
    mr: u32,
}

impl Set {
    fn new() -> Self {
        Self {
            program: None,
            // More pages than fit into the command, so that the device reads a list.
            memory: Memory::new(64 * PAGE_SIZE),
            pd: 0,
            cq: None,
            events: None,
            qp: None,
            counter: 0,
            attached: 0,
            ah: 0,
            mr: 0,
        }
    }

    fn call(&mut self, verb: Verb) -> Result {
        match verb {
            Open => {
                self.program = Some(Program::new()?);
                return Ok(());
            }
            Close => {
                self.program = None;
                return Ok(());
            }
            Counters => return stats::read_stats(registered().ok_or(ENODEV)?, 1).map(drop),
            _ => {}
        }
        let program = self.program.as_ref().ok_or(EINVAL)?;
        let process = &program.process;
        let qp = || self.qp.as_ref().map_or(0, |qp| qp.id);
        let (address, length) = (self.memory.address(), 64 * PAGE_SIZE as u64);
        match verb {
            AllocPd => self.pd = program.alloc_pd()?,
            CreateCq => self.cq = Some(program.create_cq(16, false, None)?),
            CreateCqWithEvents => self.events = Some(program.create_cq(16, true, None)?),
            CreateQp => {
                let cq = self.cq.as_ref().map_or(0, |cq| cq.id);
                self.qp = Some(program.create_qp(self.pd, cq, true, 32, 16)?);
            }
            ModifyQp => program.modify_qp(qp(), UP[0])?,
            QueryQp => {
                process.query_qp(qp())?;
            }
            CreateCounter => self.counter = program.create_counter(address, address + 8)?,
            ModifyCounter => program.set_counter(self.counter, 1)?,
            AttachCounter => {
                // Other operations each time, as an operation has one counter at most.
                process.attach_counter(qp(), self.counter, 1 << self.attached)?;
                self.attached += 1;
            }
            CreateAh => self.ah = program.create_ah(self.pd, &own_gid()?)?.0,
            RegMr => self.mr = program.register(self.pd, address, length)?.0,
            DeregMr => process.destroy(self.mr)?,
            DestroyAh => process.destroy(self.ah)?,
            DestroyQp => process.destroy(qp())?,
            DestroyCounter => process.destroy(self.counter)?,
            DestroyCq => process.destroy(self.cq.as_ref().map_or(0, |cq| cq.id))?,
            DestroyCqWithEvents => process.destroy(self.events.as_ref().map_or(0, |cq| cq.id))?,
            DeallocPd => process.destroy(self.pd)?,
            Open | Close | Counters => {}
        }
        Ok(())
    }
}

/// Returns the objects of programs in the device.
fn held(rig: &Rig) -> String {
    let resources = rig.device().resources;
    let all = [
        ("ah", resources.ah),
        ("cq", resources.cq),
        ("event_counter", resources.event_counter),
        ("mr", resources.mr),
        ("pd", resources.pd),
        ("qp", resources.qp),
        ("uar", resources.uar),
    ];
    let some = all.into_iter().filter(|(_, count)| *count > 0);
    let texts: Vec<_> = some
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    texts.join(", ")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Refused,
    Silent,
    WrongId,
    NoInterrupt,
}

impl Fault {
    fn then(self) -> &'static str {
        match self {
            Self::Refused => r#"{"status": "UNKNOWN_ERROR"}"#,
            Self::Silent => r#"{"silence": true}"#,
            Self::WrongId => r#"{"wrong_id": true}"#,
            Self::NoInterrupt => r#"{"no_interrupt": true}"#,
        }
    }

    fn resets(self) -> bool {
        matches!(self, Self::Silent | Self::WrongId)
    }
}

/// Returns the results of a faulty verb and of the next one, and the objects left in the device.
fn faulty(rig: &mut Rig, verb: Verb, fault: Fault) -> [String; 3] {
    let (_, opcode, before) = VERBS
        .into_iter()
        .find(|(other, ..)| *other == verb)
        .unwrap();
    let mut set = Set::new();
    let made = make().take_while(|other| *other != verb);
    let all = destroy().filter(|other| verb == Close && *other != Close);
    for other in made.chain(before.iter().copied()).chain(all) {
        set.call(other).unwrap();
    }
    let in_vain = counter("no_completion_cmds");
    rig.inject(rule(&format!(
        r#"{{"when": {{"opcode": "{opcode}"}}, "then": {}, "times": 1}}"#,
        fault.then()
    )));
    let result = name_of(set.call(verb));
    let hits = rig.device().faults_hit;
    assert_eq!(hits, 1, "faults");
    rig.check_quiet();
    let again = if verb == DestroyQp { QueryQp } else { verb };
    let then = match verb {
        Open | Close => String::new(),
        _ => name_of(set.call(again)),
    };
    if fault.resets() && set.program.is_some() {
        let alloc = set.program.as_ref().map(Program::alloc_pd);
        assert_eq!(alloc, Some(Err(EIO)), "another verb of the program");
    }
    drop(set);
    rig.check_quiet();
    // A lost interrupt is noticed with the next one, and reading counters takes several commands.
    let wanted = fault != Fault::Refused && (verb, fault) != (Counters, Fault::NoInterrupt);
    let in_vain = counter("no_completion_cmds") - in_vain;
    assert_eq!(
        in_vain,
        u64::from(wanted),
        "commands that were waited for in vain"
    );
    assert_eq!(counter("resets"), u64::from(fault.resets()));
    let kept = held(rig);
    Program::new().unwrap().alloc_pd().unwrap();
    [result, then, kept]
}

/// An unanswered destruction is completed by the reset. Then the program has no objects any more.
fn wanted(verb: Verb, fault: Fault) -> [&'static str; 3] {
    let makes = verb <= Counters;
    let mut wanted = match fault {
        Fault::Refused => match verb {
            DestroyAh => ["ok", "ENOENT", "1 ah, 1 pd"],
            DestroyCounter => ["ok", "ENOENT", "1 event_counter, 1 uar"],
            DestroyCq | DestroyCqWithEvents => ["ok", "ENOENT", "1 cq, 1 uar"],
            DeallocPd => ["ok", "ENOENT", "1 pd"],
            Close => ["ok", "", "1 uar"],
            DeregMr => ["ok", "ENOENT", "1 mr, 1 pd"],
            DestroyQp => ["ok", "EINVAL", "1 cq, 2 event_counter, 1 pd, 1 qp, 1 uar"],
            _ => ["EINVAL", "ok", ""],
        },
        Fault::NoInterrupt if makes => ["ok", "ok", ""],
        Fault::Silent | Fault::WrongId if verb == Counters => ["ETIME", "ok", ""],
        Fault::Silent | Fault::WrongId if makes => ["ETIME", "EIO", ""],
        Fault::Silent | Fault::WrongId if verb == DestroyQp => ["ok", "EIO", ""],
        Fault::NoInterrupt if verb == DestroyQp => ["ok", "EINVAL", ""],
        _ => ["ok", "ENOENT", ""],
    };
    if matches!(verb, Open | Close) {
        wanted[1] = "";
    }
    wanted
}

fn each_verb(fault: Fault) {
    for (verb, ..) in VERBS {
        let result = run_with(Profile::Efa4, |rig| {
            rig.set(r#"{"keep_alive_ms": 0}"#);
            rig.probe().unwrap();
            faulty(rig, verb, fault)
        });
        assert_eq!(result, wanted(verb, fault), "{verb:?}");
    }
}

#[test]
fn are_refused() {
    each_verb(Fault::Refused);
}

#[test]
fn are_not_answered() {
    each_verb(Fault::Silent);
}

#[test]
fn are_answered_with_another_id() {
    each_verb(Fault::WrongId);
}

#[test]
fn are_answered_without_an_interrupt() {
    each_verb(Fault::NoInterrupt);
}

/// Refuses each command in turn of a program that creates one object of each kind.
#[test]
fn fail_in_turn() {
    for status in ["UNKNOWN_ERROR", "RESOURCE_ALLOCATION_FAILURE"] {
        for number in 0..make().count() {
            run_bound_with(Profile::Efa4, |rig| {
                let before = held(rig);
                rig.inject(rule(&format!(
                    r#"{{"when": {{"opcode": "ANY"}}, "then": {{"status": "{status}"}}, "skip": {number}, "times": 1}}"#
                )));
                let mut set = Set::new();
                let verbs = make().chain(destroy());
                let failed = verbs.filter(|verb| set.call(*verb).is_err()).count();
                assert!(failed > 0, "command {number}");
                drop(set);
                assert_eq!(held(rig), before, "command {number}");
                rig.check_device();
            });
        }
    }
}

#[test]
fn have_no_events_without_event_queues() {
    run_bound_with(Profile::Efa0, |rig| {
        let program = Program::new().unwrap();
        let result = program.create_cq(16, true, None).map(drop);
        assert_eq!(name_of(result), "EOPNOTSUPP");
        assert_eq!(held(rig), "1 uar");
    });
}
