// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands in any order, with any numbers, against a reference model of objects: which succeed, with which number or status, and
//! which are protocol errors.

use std::collections::VecDeque;

use proptest::{collection::vec, prelude::*};

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Pd,
    Uar,
    Eq,
    Cq,
    Qp,
    Ah,
    Mr,
    Counter,
}

/// All kinds, in an order in which objects of each use only those before, with the names and values of their limits.
const KINDS: [(Kind, &str, u32); 8] = [
    (Kind::Pd, "max_pd", 3),
    (Kind::Uar, "max_uar", 3),
    (Kind::Eq, "max_eq", 2),
    (Kind::Counter, "max_event_counters", 3),
    (Kind::Cq, "max_cq", 3),
    (Kind::Ah, "max_ah", 4),
    (Kind::Mr, "max_mr", 3),
    (Kind::Qp, "max_qp", 4),
];

/// Limits on pages of a region, and of all.
const PAGES: [u32; 2] = [3, 6];

/// States of a queue pair, and those that can follow by command.
const FOLLOWING: [(QpState, &[QpState]); 7] = {
    use QpState::*;
    [
        (Reset, &[Reset, Init]),
        (Init, &[Reset, Init, Rtr, Err]),
        (Rtr, &[Reset, Rts, Err]),
        (Rts, &[Reset, Rts, Sqd, Err]),
        (Sqd, &[Reset, Rts, Sqd, Err]),
        (Sqe, &[Reset, Rts, Err]),
        (Err, &[Reset, Err]),
    ]
};

type Name = (Kind, u32);

/// An object. Only some kinds have all of these.
struct Object {
    uses: Vec<Name>,
    /// Counters of the events of a queue pair.
    counters: [Option<Name>; 10],
    state: QpState,
    peer: u8,
    created: u32,
    pages: u32,
}

#[derive(Default)]
struct Reference {
    live: BTreeMap<Name, Object>,
    used: BTreeMap<Kind, u32>,
    free: BTreeMap<Kind, VecDeque<u32>>,
    limits: BTreeMap<Kind, u32>,
    /// Objects that a reset has ended, and whose numbers were not reused since.
    ended: BTreeSet<Name>,
    shares_handles: bool,
    reuses_early: bool,
    errors: u64,
}

type Made = Result<u32, Status>;

impl Reference {
    fn find(&mut self, names: &[Name]) -> Result<(), Status> {
        match names.iter().find(|name| !self.live.contains_key(name)) {
            None => Ok(()),
            Some(missing) => {
                self.errors += u64::from(self.ended.contains(missing));
                Err(ILLEGAL)
            }
        }
    }

    fn count(&self, kind: Kind) -> usize {
        self.live.keys().filter(|name| name.0 == kind).count()
    }

    fn make(&mut self, kind: Kind, uses: &[Name], peer: u8, pages: u32) -> Made {
        self.find(uses)?;
        let limit = self.limits[&kind];
        if self.count(kind) >= limit as usize {
            return Err(FULL);
        }
        let used = self.used.entry(kind).or_default();
        let free = self.free.entry(kind).or_default();
        let early = self.reuses_early && !free.is_empty();
        let number = if early {
            free.pop_back().unwrap()
        } else if *used < limit {
            *used += 1;
            *used
        } else {
            free.pop_front().unwrap()
        };
        let object = Object { uses: uses.into(), counters: [None; 10], state: QpState::Reset, peer, created: 1, pages };
        self.live.insert((kind, number), object);
        self.ended.remove(&(kind, number));
        Ok(number)
    }

    fn handle(&mut self, pd: Name, peer: u8) -> Made {
        self.find(&[pd])?;
        let is_same = |(name, it): &(&Name, &mut Object)| name.0 == Kind::Ah && it.uses == [pd] && it.peer == peer;
        match self.live.iter_mut().find(is_same) {
            _ if peer == 0 => Err(ILLEGAL),
            None => self.make(Kind::Ah, &[pd], peer, 0),
            Some(_) if !self.shares_handles => Err(ILLEGAL),
            Some((name, ah)) => {
                ah.created += 1;
                Ok(name.1)
            }
        }
    }

    fn region(&mut self, pd: Name, pages: u32) -> Made {
        self.find(&[pd])?;
        let total: u32 = self.live.values().map(|it| it.pages).sum();
        match pages {
            0 => Err(ILLEGAL),
            _ if pages > PAGES[0] || total + pages > PAGES[1] => Err(FULL),
            _ => self.make(Kind::Mr, &[pd], 0, pages),
        }
    }

    fn end(&mut self, name: Name) -> Made {
        self.find(&[name])?;
        let uses = |it: &Object| it.uses.contains(&name) || it.counters.contains(&Some(name));
        if self.live.values().any(uses) {
            return Err(BUSY);
        }
        let object = self.live.get_mut(&name).unwrap();
        object.created -= 1;
        if object.created == 0 {
            self.live.remove(&name);
            self.free.get_mut(&name.0).unwrap().push_back(name.1);
        }
        Ok(0)
    }

    fn modify(&mut self, qp: Name, to: QpState) -> Made {
        self.find(&[qp])?;
        let state = &mut self.live.get_mut(&qp).unwrap().state;
        let following = FOLLOWING.iter().find(|(from, _)| from == state).unwrap().1;
        if !following.contains(&to) {
            return Err(ILLEGAL);
        }
        *state = to;
        Ok(0)
    }

    fn attach(&mut self, counter: Name, qp: Name, events: u32, attaches: bool) -> Made {
        self.find(&[counter, qp])?;
        let qp = self.live.get_mut(&qp).unwrap();
        if attaches && !matches!(qp.state, QpState::Reset | QpState::Init) {
            return Err(ILLEGAL);
        }
        let (before, after, status) = match attaches {
            true => (None, Some(counter), BUSY),
            false => (Some(counter), None, ILLEGAL),
        };
        let bits = (0..10).filter(|bit| events & (1 << bit) != 0);
        if bits.clone().any(|bit: usize| qp.counters[bit] != before) {
            return Err(status);
        }
        bits.for_each(|bit| qp.counters[bit] = after);
        Ok(0)
    }

    fn reset(&mut self) {
        for (name, _) in std::mem::take(&mut self.live) {
            self.free.get_mut(&name.0).unwrap().push_back(name.1);
            self.ended.insert(name);
        }
    }
}

/// A device, and the model of its objects.
struct Both {
    driver: Driver,
    ring: u64,
    model: Reference,
}

impl Both {
    fn new(shares_handles: bool, reuses_early: bool) -> Self {
        let mut driver = Driver::new(Profile::Efa3);
        let [most, all] = PAGES;
        driver.set(&format!(
            r#"{{"event_counters":true,"event_counter_events":1023,"max_mr_pages":{most},"max_total_pages":{all},
                "shared_ah":{shares_handles},"reuse_numbers":{reuses_early}}}"#
        ));
        let mut both = Self {
            ring: driver.world.map(1),
            driver,
            model: Reference { shares_handles, reuses_early, ..Reference::default() },
        };
        (0..KINDS.len()).for_each(|index| both.limit(index, KINDS[index].2));
        both
    }

    fn limit(&mut self, index: usize, most: u32) {
        let (kind, name, _) = KINDS[index];
        self.driver.set(&format!(r#"{{"{name}":{most}}}"#));
        self.model.limits.insert(kind, most);
    }

    /// Returns the name of an object that exists, or sometimes of one that has ended or never was.
    fn pick(&self, kind: Kind, choice: u8) -> Name {
        let of_kind = |name: &&Name| name.0 == kind;
        let live: Vec<_> = self.model.live.keys().filter(of_kind).collect();
        if choice >= 24 && !live.is_empty() {
            return *live[usize::from(choice) % live.len()];
        }
        let used = self.model.used.get(&kind).copied().unwrap_or_default();
        match u32::from(choice) % (used + 3) {
            number if number == used + 2 => (kind, u32::MAX - used),
            number => (kind, number),
        }
    }

    /// Executes a command; returns its status, or the number in its response, which is its first field.
    fn execute(&mut self, command: &impl Command) -> Made {
        let (status, entry) = self.driver.execute_request(&command.to_request());
        match Status::try_from(status).unwrap() {
            Status::Success => Ok(u16::from_le_bytes([entry[8], entry[9]]).into()),
            status => Err(status),
        }
    }

    /// Creates an object in both; returns the results.
    fn make(&mut self, kind: Kind, [a, b, c, d]: [u8; 4]) -> [Made; 2] {
        let [pd, send, receive] = [(Kind::Pd, a), (Kind::Cq, c), (Kind::Cq, d)].map(|(kind, of)| self.pick(kind, of));
        let [uar, eq] = [(Kind::Uar, b), (Kind::Eq, c)].map(|(kind, of)| self.pick(kind, of));
        let (ring, pd_, uar_, peer) = (self.ring, pd.1 as u16, uar.1 as u16, b % 3);
        let (max_pages, has_events) = (u32::from(b) % 5, d % 2 == 1);
        let mut uses = vec![];
        let found = match kind {
            Kind::Pd => self.execute(&AllocPd {}),
            Kind::Uar => self.execute(&AllocUar {}),
            Kind::Eq => self.execute(&create_eq(ring)),
            Kind::Cq => {
                uses = [vec![uar], vec![eq; has_events.into()]].concat();
                let mut command = create_cq(uar_, ring);
                command.caps_1.interrupt_mode_enabled = has_events;
                command.eqn = eq.1 as u16;
                self.execute(&command)
            }
            Kind::Qp => {
                uses = vec![pd, uar, send, receive];
                let mut command = create_qp(pd_, uar_, 0, ring);
                (command.send_cq_idx, command.recv_cq_idx) = (send.1, receive.1);
                self.execute(&command)
            }
            Kind::Ah => self.execute(&CreateAh { dest_addr: [peer; 16], pd: pd_ }),
            Kind::Mr if has_events || max_pages == 0 => self.execute(&AllocMr { pd: pd_, max_pages }),
            Kind::Mr => {
                let mut command = reg_mr(pd_, PAGE, PAGE * u64::from(max_pages));
                let page = |index| if index < max_pages { PAGE } else { 0 };
                command.set_page_list(PageList::Inline([0, 1, 2, 3].map(page)));
                self.execute(&command)
            }
            Kind::Counter => {
                uses = vec![uar];
                self.execute(&CreateEventCounter { uar: uar_, paddr: ring })
            }
        };
        let expected = match kind {
            Kind::Ah => self.model.handle(pd, peer),
            Kind::Mr => self.model.region(pd, max_pages),
            _ => self.model.make(kind, &uses, 0, 0),
        };
        [found, expected]
    }

    /// Destroys an object in both. An address handle is destroyed in a protection domain.
    fn end(&mut self, name: Name, in_pd: Name) -> [Made; 2] {
        let (short, long, pd) = (name.1 as u16, name.1, in_pd.1 as u16);
        let found = match name.0 {
            Kind::Pd => self.execute(&DeallocPd { pd: short }),
            Kind::Uar => self.execute(&DeallocUar { uar: short }),
            Kind::Eq => self.execute(&DestroyEq { eqn: short }),
            Kind::Cq => self.execute(&DestroyCq { cq_idx: short }),
            Kind::Qp => self.execute(&DestroyQp { qp_handle: long }),
            Kind::Ah => self.execute(&DestroyAh { ah: short, pd }),
            Kind::Mr => self.execute(&DeregMr { l_key: long }),
            Kind::Counter => self.execute(&DestroyEventCounter { cntr_handle: long }),
        };
        let expected = match self.model.live.get(&name) {
            Some(ah) if name.0 == Kind::Ah && ah.uses != [in_pd] => Err(ILLEGAL),
            _ => self.model.end(name),
        };
        [found, expected]
    }

    fn step(&mut self, [what, of, a, b, c, d]: [u8; 6]) {
        let index = usize::from(of) % KINDS.len();
        let (kind, model) = (KINDS[index].0, &self.model);
        let (counter, qp) = (self.pick(Kind::Counter, a), self.pick(Kind::Qp, b));
        let (events, attaches) = ((1 << (c % 10)) | (1 << (d % 10)), d % 4 > 0);
        let [found, expected] = match what % 32 {
            0 if a % 4 == 0 => {
                self.driver.start_over();
                self.model.reset();
                [Ok(0); 2]
            }
            0 => {
                self.limit(index, 2 + u32::from(a % 4));
                [Ok(0); 2]
            }
            1..16 => self.make(kind, [a, b, c, d]),
            16..22 => {
                let name = self.pick(kind, a);
                let own = model.live.get(&name).and_then(|it| it.uses.first());
                let pd = own.filter(|_| b % 4 > 0).copied();
                self.end(name, pd.unwrap_or(self.pick(Kind::Pd, c)))
            }
            22..26 => {
                let to = QpState::ALL[usize::from(c) % QpState::ALL.len()];
                let found = self.execute(&to_state(qp.1, to));
                [found, self.model.modify(qp, to)]
            }
            _ => {
                let found = match attaches {
                    true => self.execute(&attachment(counter.1, qp.1, events)),
                    false => self.execute(&detachment(counter.1, qp.1, events)),
                };
                let expected = self.model.attach(counter, qp, events, attaches);
                [found, expected]
            }
        };
        assert_eq!(found, expected);
        self.check();
    }

    fn check(&mut self) {
        let (it, model) = (self.driver.counts(), &self.model);
        let found = [[it.pd, it.uar, it.eq, it.event_counter], [it.cq, it.ah, it.mr, it.qp]];
        let expected = KINDS.map(|(kind, ..)| model.count(kind));
        assert_eq!(found.as_flattened(), expected);
        assert_eq!(self.driver.errors(), model.errors, "protocol errors");
        for ((_, qp_handle), qp) in model.live.range((Kind::Qp, 0)..(Kind::Qp, u32::MAX)) {
            let qp_handle = *qp_handle;
            let query = self.driver.execute(&QueryQp { qp_handle }).unwrap();
            assert_eq!(query.qp_state, u32::from(qp.state));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// At the end, objects can be destroyed if those that use them are destroyed before, and nothing is left.
    #[test]
    fn objects_are_those_of_the_reference(steps in vec(any::<[u8; 6]>(), 0..400), shares: bool, early: bool) {
        let mut both = Both::new(shares, early);
        for step in steps {
            both.step(step);
        }
        for (kind, ..) in KINDS.into_iter().rev() {
            while let Some((name, object)) = both.model.live.iter().find(|it| it.0.0 == kind) {
                let (name, pd) = (*name, object.uses.first().copied().unwrap_or((kind, 0)));
                assert_eq!(both.end(name, pd), [Ok(0); 2]);
            }
        }
        assert_eq!(both.driver.counts(), ResourceCounts::default());
    }
}
