// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The life of a device: probe, actions of programs, clients, the bus and the device, and removal.
//! [`Choices`] decides all actions: by a seed in [`schedule`], or by the bytes of [`fuzz`].
//!
//! All invariants are checked: see [`Rig::end`], and the checks of the crates that it uses.

use std::{cell::Cell, rc::Rc};

use efa_hw::{admin::Opcode, regs::Register};
use efa_model::{Death, FailedReset, Profile, Rule, When};
use ib_core::{client, registry, umem};
use kernel::{
    module,
    pci::slot::{Neighbour, Vote},
    sim::{self, Policy, Rng},
};

use crate::{
    choices::{Bytes, Choices, Random},
    client::{Objects, Ulp, DIRECT, WORKQUEUE},
    fault,
    hardware::Liar,
    inputs::Input,
    operator,
    rig::{run_without_end, Rig, PROFILES, SECOND},
    user::{self, Trust, User},
};

/// Votes of the driver of a neighbour in the recovery of the bus.
const VOTES: [Vote; 6] = [
    Vote::None,
    Vote::CanRecover,
    Vote::Recovered,
    Vote::NeedReset,
    Vote::Disconnect,
    Vote::NoDriver,
];

/// Limit on the actions of a life.
const MOST: usize = 48;

/// Runs the life of a seed.
pub fn schedule(seed: u64) {
    let mut rng = Rng::new(seed);
    let actions = rng.below(300) as u32;
    live(&mut Random { rng, actions });
}

/// Runs the life that a fuzzer's input describes.
pub fn fuzz(data: &[u8]) {
    live(&mut Bytes(data));
}

thread_local! {
    static SWITCHES: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Returns task switches and duration of the last life. Different lives rarely agree in both.
pub fn take_switches() -> (u64, u64) {
    SWITCHES.replace((0, 0))
}

/// Class of faults of the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Honesty {
    /// No faults, but resets and hot-unplug.
    Works,
    /// Commands, registers and resets may fail, and the device may die.
    Fails,
    /// In addition, its DMA writes may contain arbitrary data.
    Lies,
    /// It may continue DMA after a death, also when it is bound again. Such a device does not lie.
    WritesOn,
}

fn live(choices: &mut dyn Choices) {
    let profile = choices.pick(&PROFILES);
    let policy = match choices.below(4) {
        0 => Policy::Sequential,
        _ => Policy::Random {
            rng: Rng::new(choices.below(1 << 16)),
            preempt: choices.pick(&[16, 64, 256, 512]),
            hurry: choices.pick(&[0, 0, 1, 8]),
        },
    };
    let honesty = choices.pick(&[
        Honesty::Works,
        Honesty::Works,
        Honesty::Fails,
        Honesty::Fails,
        Honesty::Lies,
        Honesty::WritesOn,
    ]);
    run_without_end(profile, policy, |rig| {
        Life {
            rig,
            honesty,
            in_pieces: false,
            profile,
            is_small: false,
            present: true,
            refuses: false,
            is_over: false,
            user: None,
        }
        .run(choices)
    });
}

struct Life {
    rig: Rig,
    honesty: Honesty,
    in_pieces: bool,
    profile: Profile,
    /// Whether the device has few numbers of objects, and short queues.
    is_small: bool,
    present: bool,
    /// Whether the core refuses to register a device.
    refuses: bool,
    /// Whether the machine shuts down.
    is_over: bool,
    user: Option<User>,
}

impl Life {
    fn run(mut self, choices: &mut dyn Choices) {
        module::set_parameter("recovery", choices.one_in(8).then_some(0));
        self.in_pieces = choices.below(2) == 1;
        umem::set_in_pieces(self.in_pieces);
        self.is_small = choices.one_in(2);
        if self.is_small {
            let [depth, numbers, rings] = [(); 3].map(|()| choices.pick(&[1, 2, 4, 16]));
            let sub_cqs = choices.pick(&[1, 2, 4]);
            self.rig.set(&format!(
                r#"{{"max_eq_depth": {depth}, "max_mr": {}, "max_qp": {rings}, "max_ah": {numbers}, "sub_cqs_per_cq": {sub_cqs}, "min_sq_depth": 1}}"#,
                numbers + 1
            ));
        }
        match self.honesty {
            Honesty::WritesOn => self.rig.shared.set_pace(500_000_000),
            Honesty::Lies => {
                let (rng, often) = (Rng::new(choices.below(1 << 16)), choices.below(256));
                self.rig
                    .shared
                    .set_liar(Some(Box::new(Changes { rng, often })));
                // A corrupted completion may report the failure of a command that was executed.
                sim::memory::set_strict(false);
            }
            _ => {}
        }
        if self.honesty != Honesty::Works {
            for _ in 0..choices.below(3) {
                let rule = self.rule(choices);
                self.rig.inject(rule);
            }
        }
        let (context, depth) = (
            choices.pick(&[DIRECT, WORKQUEUE]),
            choices.pick(&[1, 2, 15, 31]),
        );
        let wait = choices.pick(&[0, 0, 1_000_000, SECOND, 20 * SECOND]);
        let is_honest = self.honesty != Honesty::Lies;
        let add = move |device| {
            sim::sleep(wait);
            let mut objects = Objects::with_depth(device, context, depth)?;
            objects.is_honest = is_honest;
            Ok(objects)
        };
        let ulp = Ulp::new(add, true);
        let number = (choices.below(3) == 1).then(|| client::register_client(ulp.clone()));

        self.probe();
        let mut tasks = self.tasks(choices, &ulp);
        for _ in 0..MOST {
            if !choices.has_more() || self.is_over {
                break;
            }
            self.act(choices);
        }
        sim::fail_allocation(None);
        drop(self.user.take());
        let waits = choices.below(2) == 0;
        if waits {
            tasks.drain(..).for_each(sim::join);
            self.check_device();
        }
        if self.rig.slot.is_bound() {
            self.rig.remove_checked();
        }
        tasks.into_iter().for_each(sim::join);
        if let Some(number) = number {
            client::unregister_client(number);
        }
        SWITCHES.set((sim::switches(), sim::now()));
        self.rig.end();
    }

    fn trust(&self) -> Trust {
        Trust {
            works: self.honesty == Honesty::Works && !sim::hurries(),
            is_small: self.is_small,
            in_pieces: self.in_pieces,
        }
    }

    /// Binds the device. That must succeed with a device that works.
    fn probe(&mut self) {
        let result = self.rig.probe();
        let is_due = self.trust().works && self.present && !self.refuses && !sim::has_failed();
        assert!(!is_due || result.is_ok(), "{result:?} of a probe");
    }

    /// Starts programs, and a task that posts to the queue pair of the client.
    fn tasks<F>(&self, choices: &mut dyn Choices, ulp: &Rc<Ulp<F>>) -> Vec<sim::TaskId>
    where
        F: Fn(*mut ib_core::ffi::ib_device) -> kernel::error::Result<Objects> + 'static,
    {
        let mut tasks = Vec::new();
        for _ in 0..choices.below(3) {
            let (seed, trust) = (choices.below(1 << 16), self.trust());
            tasks.push(sim::spawn("program", move || program(seed, trust)));
        }
        if choices.one_in(3) {
            let (seed, trust) = (choices.below(1 << 16), self.trust());
            for (number, user) in User::pair().into_iter().flatten().enumerate() {
                let thread = move || use_device(user, &mut Rng::new(seed + number as u64), trust);
                tasks.push(sim::spawn("thread", thread));
            }
        }
        let (seed, ulp, trust) = (choices.below(1 << 16), ulp.clone(), self.trust());
        tasks.push(sim::spawn("sender", move || send(seed, &ulp, trust)));
        if seed % 4 == 3 {
            tasks.push(sim::spawn("operator", move || operate(seed)));
        }
        tasks
    }

    /// Checks a device that has no users.
    fn check_device(&self) {
        if self.honesty == Honesty::Works
            && !sim::hurries()
            && self.rig.slot.is_bound()
            && !sim::has_failed()
        {
            self.rig.check_quiet();
            let has_client = registry::clients() > 1;
            if !has_client {
                self.rig.check_device();
            }
        }
    }

    fn act(&mut self, choices: &mut dyn Choices) {
        let honesty = self.honesty;
        let (fails, writes_on) = (honesty != Honesty::Works, honesty == Honesty::WritesOn);
        let is_bound = self.rig.slot.is_bound();
        let rig = &mut self.rig;
        match choices.below(29) {
            0..=7 => {
                let trust = self.trust();
                if self.user.is_none() {
                    self.user = User::new().ok();
                }
                if let Some(user) = &mut self.user {
                    user.act(choices, trust);
                }
            }
            8 => self.user = None,
            9 => sim::sleep(1_000_000 << choices.below(16)),
            10 => operator::act(choices),
            11 => sim::fail_allocation(Some(choices.below(256))),
            12 => {
                let (group, syndrome) = (choices.below(8) as u16, choices.below(8) as u16);
                rig.event(group, syndrome);
            }
            13 => {
                sim::interrupt(choices.below(4) as u16);
                sim::sleep(1000);
            }
            14 if fails => {
                let rule = self.rule(choices);
                self.rig.inject(rule);
            }
            15 if fails && !writes_on => rig.heal(),
            16 if is_bound => rig.reset(),
            17 if is_bound && self.present => rig.sleep(),
            18 if is_bound => rig.bus_error(choices.one_in(8)),
            19 if fails => {
                let how = choices.pick(&[FailedReset::NeverEnds, FailedReset::NeverStarts]);
                let death = Death {
                    silent: choices.below(2) == 1,
                    dma: writes_on && choices.below(2) == 1,
                    ..fault::death(1 + choices.below(16) as u32, how)
                };
                rig.die(death);
            }
            20 => {
                let (queue, count) = (choices.below(8) as u16, choices.below(256));
                rig.shared.with(|device, _, _| {
                    let _ = device.storm(queue, 1, count);
                });
            }
            21 if fails => {
                let (eqn, cqn) = (choices.below(4) as u16, choices.below(8) as u16);
                let count = 1 << choices.below(11);
                rig.shared.with(|device, _, _| {
                    let _ = device.storm_of_completion_events(Some(eqn), cqn, count);
                });
            }
            22 => {
                if is_bound {
                    rig.remove_checked();
                }
                self.probe();
            }
            23 if choices.one_in(4) => {
                rig.shared.unplug();
                self.present = false;
            }
            24 if is_bound && choices.one_in(4) => {
                rig.slot.shutdown();
                self.is_over = true;
            }
            25 if is_bound && self.present => {
                rig.slot.freeze();
                sim::sleep(1_000_000 << choices.below(14));
                rig.bus_error(false);
            }
            26 if is_bound => {
                let is_fatal = choices.one_in(2);
                // After a reset of a function that is then given up, its BARs have no addresses.
                let votes = if is_fatal { 3 } else { VOTES.len() };
                let [detected, slot_reset] = [(); 2].map(|()| choices.pick(&VOTES[..votes]));
                let neighbour = Neighbour {
                    detected,
                    slot_reset,
                };
                rig.shared_bus_error(is_fatal, neighbour, true);
            }
            27 if is_bound && self.present => rig.hibernate(),
            _ => {
                self.refuses = choices.one_in(4);
                registry::set_refuses(self.refuses);
            }
        }
    }

    /// Returns a rule for a fault.
    fn rule(&self, choices: &mut dyn Choices) -> Rule {
        let writes_on = self.honesty == Honesty::WritesOn;
        let (when, then) = match choices.below(4) {
            0 if self.honesty == Honesty::Lies => {
                let Rule { when, then, .. } = Input::choose(choices);
                (when, then)
            }
            0 | 1 => {
                let opcode = Opcode::ALL.get(choices.below(64) as usize).copied();
                let mut faults = fault::of_commands();
                let then = faults.swap_remove(choices.below(faults.len() as u64) as usize);
                (fault::command(opcode), then)
            }
            2 => {
                let register = Register::ALL.get(choices.below(32) as usize).copied();
                let value = choices.below(1 << 32) as u32;
                let then = match choices.below(5) {
                    0 => fault::silence(),
                    1 if !writes_on => fault::then(&format!(r#"{{"value": {value}}}"#)),
                    2 => fault::then(r#"{"wrong_offset": true}"#),
                    3 => fault::then(r#"{"wrong_req_id": true}"#),
                    _ => fault::then(&format!(r#"{{"die": {{"silent": {}}}}}"#, value & 1 != 0)),
                };
                (When::Register(register), then)
            }
            _ => {
                let then = match choices.below(4) {
                    0 => fault::then(r#"{"never_starts": true}"#),
                    1 => fault::then(r#"{"never_ends": true}"#),
                    2 => fault::then(r#"{"with_event": true}"#),
                    _ => fault::then(r#"{"unplug": true}"#),
                };
                (When::Reset, then)
            }
        };
        // A lost interrupt may cost a wait of 30 s. Several would make tasks wait for minutes.
        let times = if then.no_interrupt {
            1
        } else {
            choices.below(3)
        };
        Rule {
            when,
            then,
            skip: choices.below(32),
            times: (times != 0).then_some(times),
        }
    }
}

/// Runs two programs in turn, each of which makes random calls.
fn program(seed: u64, trust: Trust) {
    let mut rng = Rng::new(seed);
    for _ in 0..2 {
        let Ok(user) = User::new() else {
            return;
        };
        use_device(user, &mut rng, trust);
    }
}

/// Uses the health reporter at random times.
fn operate(seed: u64) {
    let (mut rng, actions) = (Rng::new(seed), u32::MAX);
    for _ in 0..rng.below(24) {
        sim::sleep(1_000_000 << rng.below(14));
        let mut choices = Random { rng, actions };
        operator::act(&mut choices);
        rng = choices.rng;
    }
}

/// Makes random calls of a program.
fn use_device(mut user: User, rng: &mut Rng, trust: Trust) {
    let mut choices = Random {
        rng: rng.clone(),
        actions: u32::MAX,
    };
    for _ in 0..choices.rng.below(24) {
        user.act(&mut choices, trust);
    }
    *rng = choices.rng;
}

/// Posts to the queue pair of a client. All sends complete if the device works.
fn send<F: Fn(*mut ib_core::ffi::ib_device) -> kernel::error::Result<Objects>>(
    seed: u64,
    ulp: &Ulp<F>,
    trust: Trust,
) {
    let mut rng = Rng::new(seed);
    for _ in 0..rng.below(40) {
        ulp.with(|objects| {
            for _ in 0..rng.below(4) {
                let result = objects.post_message(rng.one_in(2));
                assert_eq!(result, Ok(()), "a queue with room");
            }
            if rng.one_in(8) {
                objects.change_key(rng.number() as u8);
            }
            if rng.one_in(2) {
                objects.poll();
            }
        });
        sim::sleep(rng.below(SECOND / 1000));
    }
    let session = user::session();
    sim::sleep(SECOND / 100);
    ulp.with(|objects| {
        objects.poll();
        // The core polls in a task of its own.
        sim::sleep(SECOND / 100);
        let (sends, _) = objects.outstanding();
        if sends != 0 {
            // The driver has not yet looked at a device that was just unplugged.
            sim::sleep(3 * SECOND);
        }
        let has_device = session.is_some() && user::session() == session;
        let is_excused = !trust.works || !has_device || sim::has_failed();
        assert!(sends == 0 || is_excused, "{sends} sends have not completed");
    });
}

/// Corrupts random DMA writes of the device.
struct Changes {
    rng: Rng,
    /// Number of writes out of 256 that are corrupted.
    often: u64,
}

impl Liar for Changes {
    fn change(&mut self, _: u64, data: &mut [u8]) {
        if self.rng.below(256) >= self.often || data.is_empty() {
            return;
        }
        for _ in 0..=self.rng.below(3) {
            let place = self.rng.below(data.len() as u64) as usize;
            data[place] = match self.rng.below(4) {
                0 => 0,
                1 => 0xff,
                2 => data[place] ^ (1 << self.rng.below(8)),
                _ => self.rng.number() as u8,
            };
        }
    }
}
