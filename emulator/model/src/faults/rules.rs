// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults: rules that make a device misbehave when something matches.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    names::RuleError,
    then::Then,
    when::{Occasion, When},
};

/// Most rules of a kind that a device has: of work requests, and of all else. If there are more, the oldest are lost.
const MAX_RULES: usize = 1024;

/// Number of a rule, unique as long as the device exists.
pub type RuleId = u64;

/// A fault and when it happens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "RawRule")]
pub struct Rule {
    /// What it matches.
    pub when: When,
    /// What happens then.
    pub then: Then,
    /// How many matches are let through first.
    pub skip: u64,
    /// How many matches are hit after these; all of them if absent.
    pub times: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Rule")]
struct RawRule {
    /// What it matches.
    when: When,
    /// What happens then.
    then: Then,
    /// How many matches are let through first.
    #[serde(default)]
    skip: u64,
    /// How many matches are hit after these; all of them if absent.
    times: Option<u64>,
}

impl TryFrom<RawRule> for Rule {
    type Error = RuleError;

    fn try_from(raw: RawRule) -> Result<Self, RuleError> {
        raw.then.check(raw.when)?;
        Ok(Self {
            when: raw.when,
            then: raw.then,
            skip: raw.skip,
            times: raw.times,
        })
    }
}

/// Rules of a device.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: VecDeque<Rule>,
    hits: u64,
}

impl Faults {
    pub(crate) fn inject(&mut self, rule: Rule) {
        if self.rules.len() == MAX_RULES {
            self.rules.pop_front();
        }
        self.rules.push_back(rule);
    }

    /// Removes all rules. What they hit so far stays counted.
    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    /// How many rules there are, including those that hit as often as they were to.
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// How often a rule hit, in all.
    pub(crate) fn hits(&self) -> u64 {
        self.hits
    }

    /// Returns what is to happen, from all rules together, or nothing if no rule hits.
    pub(crate) fn hit(&mut self, occasion: Occasion) -> Option<Then> {
        let mut hit = None;
        for rule in &mut self.rules {
            if !rule.when.matches(occasion) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            match &mut rule.times {
                Some(0) => continue,
                Some(times) => *times -= 1,
                None => {}
            }
            self.hits += 1;
            hit.get_or_insert_with(Then::default).merge(&rule.then);
        }
        hit
    }
}
