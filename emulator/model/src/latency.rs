// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How long admin commands and work requests take.
//!
//! A histogram has a fixed number of buckets, eight for each doubling of the time, so that a percentile is at most an eighth too
//! large, and recording a time neither allocates nor takes longer the more there were.

use std::{collections::BTreeMap, time::Duration};

use efa_hw::{admin::Opcode, io::OpType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Binary logarithm of how many buckets a doubling has.
const PARTS: u32 = 3;

/// What takes less than 2^8 ns is in the first bucket.
const FIRST: u32 = 8;

/// What takes 2^37 ns (137 s) or more is in the last one.
const LAST: u32 = 37;

/// Buckets of a histogram.
const BUCKETS: usize = 2 + ((LAST - FIRST) << PARTS) as usize;

/// How often something took how long.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    buckets: [u64; BUCKETS],
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: [0; BUCKETS],
            sum_ns: 0,
            max_ns: 0,
        }
    }
}

impl Histogram {
    /// Counts something that took so long.
    pub(crate) fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get_mut(index(ns)) {
            *bucket += 1;
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// What there is to tell of it.
    pub(crate) fn latency(&self) -> Latency {
        let buckets = self.buckets.iter().enumerate();
        let buckets = buckets
            .filter(|(_, count)| **count > 0)
            .map(|(index, count)| Bucket {
                below_ns: end(index),
                count: *count,
            });
        Latency::new(buckets.collect(), self.sum_ns, self.max_ns)
    }
}

/// The bucket of a time.
fn index(ns: u64) -> usize {
    if ns < 1 << FIRST {
        return 0;
    }
    let doubling = ns.ilog2();
    if doubling >= LAST {
        return BUCKETS - 1;
    }
    let part = (ns >> (doubling - PARTS)) & ((1 << PARTS) - 1);
    // CAST: less than `BUCKETS`.
    1 + ((doubling - FIRST) << PARTS) as usize + part as usize
}

/// The first time that is too long for a bucket, if there is one.
fn end(index: usize) -> Option<u64> {
    // CAST: less than `BUCKETS`.
    let index = index as u64;
    let Some(after) = index.checked_sub(1) else {
        return Some(1 << FIRST);
    };
    let (doubling, part) = (after >> PARTS, after & ((1 << PARTS) - 1));
    let doubling = u64::from(FIRST) + doubling;
    let parts = (1 << PARTS) + part + 1;
    (doubling < LAST.into()).then(|| parts << (doubling - u64::from(PARTS)))
}

/// How often something took about so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bucket {
    /// It took less, and no less than what the buckets before have; null if there is no limit.
    pub below_ns: Option<u64>,
    /// How often.
    pub count: u64,
}

/// How long something took, in ns. Percentiles are at most an eighth too large.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// How often it was done.
    pub count: u64,
    /// How long all of them took together.
    pub sum_ns: u64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// 99 % of them took no longer.
    pub p99_ns: u64,
    /// None took longer.
    pub max_ns: u64,
    /// The buckets that are not empty, the shortest time first.
    pub buckets: Vec<Bucket>,
}

impl Latency {
    fn new(buckets: Vec<Bucket>, sum_ns: u64, max_ns: u64) -> Self {
        let count = buckets.iter().map(|bucket| bucket.count).sum();
        let mut latency = Self {
            count,
            sum_ns,
            max_ns,
            buckets,
            ..Self::default()
        };
        latency.p50_ns = latency.percentile(50);
        latency.p99_ns = latency.percentile(99);
        latency
    }

    /// What so many per cent of them did not exceed.
    fn percentile(&self, per_cent: u64) -> u64 {
        // The number of the last of them, which is 128 bits long so that no count is too large.
        let rank = (u128::from(self.count) * u128::from(per_cent)).div_ceil(100);
        let mut sum = 0;
        let bucket = self.buckets.iter().find(|bucket| {
            sum += u128::from(bucket.count);
            sum >= rank
        });
        let below = bucket.and_then(|bucket| bucket.below_ns);
        below.map_or(self.max_ns, |below| self.max_ns.min(below - 1))
    }

    /// What was done since it was told before. The largest of that is known as well as the percentiles.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let counted = |below_ns| {
            let same = before.buckets.iter().find(|old| old.below_ns == below_ns);
            same.map_or(0, |old| old.count)
        };
        let news = self.buckets.iter().map(|bucket| Bucket {
            count: bucket.count.saturating_sub(counted(bucket.below_ns)),
            ..*bucket
        });
        let buckets: Vec<_> = news.filter(|bucket| bucket.count > 0).collect();
        let below = buckets.last().and_then(|bucket| bucket.below_ns);
        let max_ns = match (buckets.is_empty(), below) {
            (true, _) => 0,
            (false, Some(below)) => self.max_ns.min(below - 1),
            (false, None) => self.max_ns,
        };
        Self::new(buckets, self.sum_ns.saturating_sub(before.sum_ns), max_ns)
    }

    /// How many took less than 2^`log2` ns.
    pub fn below(&self, log2: u32) -> u64 {
        let limit = 1_u64.checked_shl(log2).unwrap_or(u64::MAX);
        let shorter = |bucket: &&Bucket| bucket.below_ns.is_some_and(|below| below <= limit);
        let shorter = self.buckets.iter().filter(shorter);
        shorter.map(|bucket| bucket.count).sum()
    }
}

/// What a device did of one kind of admin command.
#[derive(Clone, Debug, Default)]
struct Commands {
    failed: u64,
    time: Histogram,
}

/// How long a device took for what it did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    /// By the command's name, of which there are only so many.
    commands: BTreeMap<&'static str, Commands>,
    requests: Box<[Histogram; REQUESTS.len()]>,
}

/// The kinds of work requests, in the order of their numbers.
const REQUESTS: [OpType; 5] = [
    OpType::Send,
    OpType::RdmaRead,
    OpType::RdmaWrite,
    OpType::FastReg,
    OpType::FastInv,
];

impl Times {
    /// Counts a command that was completed, so long after the driver has rung for it, if that is known.
    pub(crate) fn count_command(&mut self, opcode: u8, ok: bool, time: Option<Duration>) {
        let name = Opcode::try_from(opcode).map_or("UNKNOWN", Opcode::name);
        let commands = self.commands.entry(name).or_default();
        commands.failed += u64::from(!ok);
        if let Some(time) = time {
            commands.time.record(time);
        }
    }

    /// Counts a work request that has succeeded so long after the program has rung for it.
    pub(crate) fn count_request(&mut self, operation: OpType, time: Duration) {
        if let Some(times) = self.requests.get_mut(usize::from(u8::from(operation))) {
            times.record(time);
        }
    }

    /// What there is to tell of them.
    pub(crate) fn latencies(&self) -> Latencies {
        let commands = self.commands.iter().map(|(name, commands)| {
            let latency = CommandLatency {
                failed: commands.failed,
                latency: commands.time.latency(),
            };
            ((*name).to_owned(), latency)
        });
        let requests = REQUESTS.iter().zip(self.requests.iter());
        let requests = requests
            .map(|(operation, time)| (operation.name().to_owned(), time.latency()))
            .filter(|(_, latency)| latency.count > 0);
        Latencies {
            commands: commands.collect(),
            requests: requests.collect(),
        }
    }
}

/// What a device did of one kind of admin command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandLatency {
    /// How many of them had another status than success.
    pub failed: u64,
    /// From when the driver rang until the completion was written, whatever its status.
    pub latency: Latency,
}

/// How long a device took for what it did since the program's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Latencies {
    /// Admin commands that were completed, by name.
    pub commands: BTreeMap<String, CommandLatency>,
    /// Work requests that have succeeded, by kind: from when the program rang until the completion was written.
    pub requests: BTreeMap<String, Latency>,
}

impl Latencies {
    /// What was done since it was told before, without what was not done.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let (no_command, nothing) = (CommandLatency::default(), Latency::default());
        let commands = self.commands.iter().map(|(name, now)| {
            let then = before.commands.get(name).unwrap_or(&no_command);
            let latency = CommandLatency {
                failed: now.failed.saturating_sub(then.failed),
                latency: now.latency.since(&then.latency),
            };
            (name.clone(), latency)
        });
        let requests = self.requests.iter().map(|(name, now)| {
            let then = before.requests.get(name).unwrap_or(&nothing);
            (name.clone(), now.since(then))
        });
        Self {
            commands: commands
                .filter(|(_, command)| command.latency.count > 0)
                .collect(),
            requests: requests.filter(|(_, latency)| latency.count > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(times: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::default();
        for ns in times {
            histogram.record(Duration::from_nanos(ns));
        }
        histogram
    }

    #[test]
    fn every_time_has_its_bucket() {
        let edges = (0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) + 1, (1 << bit) - 1]);
        let sevenths = (0..40).map(|bit| (15_u64 << bit) >> 3);
        for ns in edges.chain(sevenths).chain([0, u64::MAX]) {
            let index = index(ns);
            assert!(end(index).is_none_or(|end| ns < end), "{ns}");
            let before = index.checked_sub(1).map(end);
            assert!(before.is_none_or(|end| end.unwrap() <= ns), "{ns}");
        }
        // An eighth is the most by which any is wrong.
        for index in 2..BUCKETS - 1 {
            let (from, to) = (end(index - 1).unwrap(), end(index).unwrap());
            assert!(from < to && (to - from) * 8 <= from, "{from} {to}");
        }
        assert_eq!(end(BUCKETS - 1), None);
    }

    #[test]
    fn percentiles_are_a_little_too_large() {
        let latency = histogram((1..=1000).map(|us| us * 1000)).latency();
        assert_eq!((latency.count, latency.max_ns), (1000, 1_000_000));
        assert_eq!(latency.sum_ns, 500_500_000);
        assert!((500_000..=562_500).contains(&latency.p50_ns), "{latency:?}");
        assert!(
            (990_000..=1_000_000).contains(&latency.p99_ns),
            "{latency:?}"
        );
        let one = histogram([7777]).latency();
        assert_eq!((one.p50_ns, one.p99_ns, one.max_ns), (7777, 7777, 7777));
        assert_eq!(Histogram::default().latency(), Latency::default());
        // What is beyond all buckets is known by its maximum.
        assert_eq!(histogram([u64::MAX]).latency().p50_ns, u64::MAX);
    }

    #[test]
    fn what_was_before_does_not_count() {
        let before = histogram([1_000_000_000]);
        let mut after = before.clone();
        for _ in 0..3 {
            after.record(Duration::from_micros(10));
        }
        let news = after.latency().since(&before.latency());
        assert_eq!((news.count, news.sum_ns), (3, 30_000));
        assert!((10_000..11_250).contains(&news.max_ns), "{news:?}");
        let nothing = after.latency().since(&after.latency());
        assert_eq!(nothing, Latency::default());
    }

    #[test]
    fn powers_of_two_are_limits_of_buckets() {
        let latency = histogram([1, 255, 256, 1023, 1024, 1 << 40]).latency();
        let below = [8, 9, 10, 11, 37].map(|log2| latency.below(log2));
        assert_eq!(below, [2, 3, 4, 5, 5]);
    }
}
