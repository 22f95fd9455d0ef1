// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How long admin commands and work requests take.

use std::{array, collections::BTreeMap, time::Duration};

use efa_hw::{admin::Opcode, io::OpType};

/// What takes less than 2^10 ns (1 µs) is in the first bucket. Each further one has a doubling.
const FIRST: u32 = 10;

/// What takes 2^34 ns (17 s) or more is in the last one.
const LAST: u32 = 34;

/// Buckets of a histogram.
const BUCKETS: usize = 2 + (LAST - FIRST) as usize;

/// How often something took how long.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    sum: Duration,
}

impl Histogram {
    /// Counts something that took so long. This neither allocates nor takes longer the more there were.
    pub(crate) fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bits = u64::BITS - ns.leading_zeros();
        // CAST: less than `BUCKETS`.
        let bucket = (bits.clamp(FIRST, LAST + 1) - FIRST) as usize;
        self.buckets[bucket] += 1;
        self.sum = self.sum.saturating_add(time);
    }

    /// How often it was done.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How long all of them took together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// How often it took less than a time, and no less than the one before; the last has no limit.
    pub fn buckets(&self) -> [(Option<Duration>, u64); BUCKETS] {
        array::from_fn(|index| {
            let limit = (index < BUCKETS - 1).then(|| Duration::from_nanos(1 << FIRST << index));
            (limit, self.buckets[index])
        })
    }
}

/// What a device did of one kind of admin command.
#[derive(Clone, Debug, Default)]
pub struct CommandTimes {
    /// How many of them had another status than success.
    pub failed: u64,
    /// From when the driver rang until the completion was written, whatever its status.
    pub times: Histogram,
}

/// How long a device took for what it did since the program's start.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Admin commands that were completed, by their names, of which there are only so many.
    pub commands: BTreeMap<&'static str, CommandTimes>,
    requests: [Histogram; REQUESTS.len()],
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
            commands.times.record(time);
        }
    }

    /// Counts a work request that has succeeded so long after the program has rung for it.
    pub(crate) fn count_request(&mut self, operation: OpType, time: Duration) {
        if let Some(times) = self.requests.get_mut(usize::from(u8::from(operation))) {
            times.record(time);
        }
    }

    /// Work requests that have succeeded, by kind: from when the program rang until the completion was written.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        let names = REQUESTS.iter().map(|operation| operation.name());
        names
            .zip(&self.requests)
            .filter(|(_, times)| times.count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_its_bucket() {
        let edges = (0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) + 1, (1 << bit) - 1]);
        for ns in edges.chain([u64::MAX]) {
            let time = Duration::from_nanos(ns);
            let mut histogram = Histogram::default();
            histogram.record(time);
            assert_eq!((histogram.count(), histogram.sum()), (1, time));
            let buckets = histogram.buckets();
            let at = buckets.iter().position(|(_, count)| *count == 1).unwrap();
            assert!(buckets[at].0.is_none_or(|limit| time < limit), "{ns}");
            assert!(at == 0 || buckets[at - 1].0.unwrap() <= time, "{ns}");
        }
    }

    #[test]
    fn buckets_end_at_powers_of_two() {
        let limits = Histogram::default().buckets().map(|(limit, _)| limit);
        assert_eq!(limits[0], Some(Duration::from_nanos(1 << 10)));
        assert_eq!(limits[24], Some(Duration::from_nanos(1 << 34)));
        assert_eq!(limits[25..], [None]);
    }
}
