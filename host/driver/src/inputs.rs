// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The inputs of the driver: each register, and each field of what the device writes, from the tables of `hw`.

use std::{cell::Cell, rc::Rc};

use efa_hw::{
    admin::{AcqHeader, Opcode},
    aenq::{self, AenqEntry},
    eq::Eqe,
    features::FeatureId,
    fields::{leaves, Described, Item, Kind},
    io::Cdesc,
    regs::Register,
    stats::{self, StatsType},
};
use efa_model::{attributes_of, fields_of, Corruption, Rule, Then, When};

use crate::{
    choices::Choices,
    fault::{always, command, register},
    hardware::Liar,
    rig::Rig,
};

/// Offset in bits of the attributes of a feature, or of a set of statistics, in a completion.
const DATA: usize = 64;

/// A field that the driver reads, and where the device writes it.
#[derive(Clone, Debug)]
pub struct Input {
    /// Name of its structure, and its own.
    pub name: String,
    source: Source,
    item: Item,
}

#[derive(Clone, Debug)]
enum Source {
    /// A register, the completion of an admin command or that of a work request.
    Rule(When),
    /// An entry of a queue of events, by its length and the offset of its phase.
    Entry(usize, usize),
}

/// Returns all inputs.
pub fn all() -> Vec<Input> {
    let mut inputs = Vec::new();
    let mut add = |structure: &str, source: Source, first: usize, items: &'static [Item]| {
        leaves(items, &mut |field| {
            // The driver reads no bytes but those that other structures describe.
            if field.bits != 0 && !matches!(field.kind, Kind::Bytes) {
                inputs.push(Input {
                    name: format!("{structure}.{}", field.name),
                    source: source.clone(),
                    item: Item {
                        bit: first + field.bit,
                        ..field
                    },
                });
            }
        });
    };
    let completion = |opcode, feature, stats| {
        Source::Rule(When::Command {
            opcode,
            feature,
            stats,
        })
    };
    add("ACQ", Source::Rule(command(None)), 0, AcqHeader::FIELDS);
    for opcode in Opcode::ALL {
        let source = completion(Some(*opcode), None, None);
        add(opcode.name(), source, 0, fields_of(*opcode)[1]);
    }
    for feature in FeatureId::ALL {
        let source = completion(Some(Opcode::GetFeature), Some(*feature), None);
        add(feature.name(), source, DATA, attributes_of(*feature as u8));
    }
    for (kind, fields) in [
        (StatsType::Basic, stats::BasicStats::FIELDS),
        (StatsType::Messages, stats::MessagesStats::FIELDS),
        (StatsType::RdmaRead, stats::RdmaReadStats::FIELDS),
        (StatsType::RdmaWrite, stats::RdmaWriteStats::FIELDS),
        (StatsType::Network, stats::NetworkStats::FIELDS),
    ] {
        let source = completion(Some(Opcode::GetStats), None, Some(kind));
        add(kind.name(), source, DATA, fields);
    }
    let work = When::Work {
        kind: None,
        qp: None,
        peer: None,
    };
    add("CQ", Source::Rule(work), 0, Cdesc::FIELDS);
    let phase = aenq::PHASE_OFFSET;
    add("AENQ", Source::Entry(64, phase), 0, AenqEntry::FIELDS);
    let phase = efa_hw::eq::PHASE_OFFSET;
    add("EQ", Source::Entry(16, phase), 0, Eqe::FIELDS);
    inputs.extend(Register::ALL.iter().map(|place| Input {
        name: place.name().to_owned(),
        source: Source::Rule(register(*place)),
        item: Item {
            name: place.name(),
            bit: 0,
            bits: 32,
            kind: Kind::Hex,
        },
    }));
    inputs
}

impl Input {
    /// Returns hostile values: none, one, no power of two, the highest bit alone, which is aligned, and the maximum. Numbers of
    /// objects and commands are small, so the first ones are those of other objects.
    pub fn values(&self) -> Vec<u64> {
        let most = u64::MAX >> (64 - self.item.bits.min(64));
        let mut values = vec![0, 1, 3 & most, (most >> 1) + 1, most];
        values.dedup();
        values
    }

    /// Makes the device write a value from now on. Returns how often it has done so.
    pub fn set(&self, rig: &Rig, value: u64) -> impl Fn(&Rig) -> u64 {
        let written = Rc::new(Cell::new(0));
        let before = rig.device().faults_hit;
        match &self.source {
            Source::Rule(when) => rig.inject(self.rule(when, value)),
            Source::Entry(length, phase) => rig.shared.set_liar(Some(Box::new(Entries {
                item: self.item,
                value,
                length: *length,
                phase: *phase,
                last: None,
                written: written.clone(),
            }))),
        }
        move |rig| rig.device().faults_hit - before + written.get()
    }

    /// Returns a chosen rule, for a register or a completion.
    pub fn choose(choices: &mut dyn Choices) -> Rule {
        let mut inputs = all();
        inputs.retain(|input| matches!(input.source, Source::Rule(_)));
        let input = &inputs[choices.below(inputs.len() as u64) as usize];
        let value = choices.pick(&input.values());
        let Source::Rule(when) = &input.source else {
            unreachable!("those were removed");
        };
        input.rule(when, value)
    }

    fn rule(&self, when: &When, value: u64) -> Rule {
        let mut entry = [0; 64];
        self.item.put(&mut entry, value);
        let then = match when {
            When::Register(_) => Then {
                value: Some(value as u32),
                ..Then::default()
            },
            _ => Then {
                corrupt: (self.item.bit / 8..(self.item.bit + self.item.bits).div_ceil(8))
                    .map(|offset| Corruption {
                        offset: offset as u8,
                        value: entry[offset],
                    })
                    .collect(),
                ..Then::default()
            },
        };
        always(*when, then)
    }
}

/// Changes a field of each entry of a queue of events.
///
/// The device writes an entry in three parts: what precedes the byte with the phase, what follows it, and that byte. Their lengths,
/// one after the other, are those of no other writes.
struct Entries {
    item: Item,
    value: u64,
    length: usize,
    phase: usize,
    /// Address and length of the last write.
    last: Option<(u64, usize)>,
    written: Rc<Cell<u64>>,
}

impl Liar for Entries {
    fn change(&mut self, address: u64, data: &mut [u8]) {
        let after = self.length - self.phase - 1;
        let follows = (address + 1, after);
        let last = self.last.replace((address, data.len()));
        let first = match data.len() {
            0 => return,
            length if length == self.phase => 0,
            length if length == after => self.phase + 1,
            1 if last == Some(follows) => self.phase,
            _ => return,
        };
        let mut entry = [0; 64];
        entry[first..first + data.len()].copy_from_slice(data);
        self.item.put(&mut entry, self.value);
        data.copy_from_slice(&entry[first..first + data.len()]);
        self.written.set(self.written.get() + 1);
    }
}
