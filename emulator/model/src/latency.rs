// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Latencies of admin commands and work requests.

use std::{array, collections::BTreeMap, time::Duration};

use efa_hw::{admin::Opcode, io::OpType};

/// Limit of the first bucket, 2^10 ns (1 us), as a power of two. Each further bucket doubles the limit.
const FIRST: u32 = 10;

/// Start of the last bucket, 2^34 ns (17 s), as a power of two.
const LAST: u32 = 34;

/// Number of buckets of a histogram.
const BUCKETS: usize = 2 + (LAST - FIRST) as usize;

/// Histogram of durations.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    sum: Duration,
}

impl Histogram {
    /// Records a duration. Allocates nothing, and takes the same time for any number of records.
    pub(crate) fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bits = u64::BITS - ns.leading_zeros();
        // CAST: less than `BUCKETS`.
        let bucket = (bits.clamp(FIRST, LAST + 1) - FIRST) as usize;
        self.buckets[bucket] += 1;
        self.sum = self.sum.saturating_add(time);
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Sum of all durations.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Upper limit (exclusive) and count of each bucket. A bucket starts at the limit of the one before; the last has no limit.
    pub fn buckets(&self) -> [(Option<Duration>, u64); BUCKETS] {
        array::from_fn(|index| {
            let limit = (index < BUCKETS - 1).then(|| Duration::from_nanos(1 << FIRST << index));
            (limit, self.buckets[index])
        })
    }
}

/// Latencies of one kind of admin command.
#[derive(Clone, Debug, Default)]
pub struct CommandTimes {
    /// Number of commands with another status than success.
    pub failed: u64,
    /// Times from the doorbell to the written completion, regardless of its status.
    pub times: Histogram,
}

/// Latencies of a device since its creation.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Completed admin commands by name. The fixed set of names bounds the map.
    pub commands: BTreeMap<&'static str, CommandTimes>,
    requests: [Histogram; OpType::ALL.len()],
}

impl Times {
    /// Counts a completed command. `time` is the time since its doorbell, if known.
    pub(crate) fn count_command(&mut self, opcode: u8, ok: bool, time: Option<Duration>) {
        let name = Opcode::try_from(opcode).map_or("UNKNOWN", Opcode::name);
        let commands = self.commands.entry(name).or_default();
        commands.failed += u64::from(!ok);
        if let Some(time) = time {
            commands.times.record(time);
        }
    }

    /// Counts a successful work request. `time` is the time since its doorbell.
    pub(crate) fn count_request(&mut self, operation: OpType, time: Duration) {
        if let Some(times) = self.requests.get_mut(usize::from(u8::from(operation))) {
            times.record(time);
        }
    }

    /// Times of successful work requests by kind, from the doorbell to the written completion.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        let names = OpType::ALL.iter().map(|operation| operation.name());
        names.zip(&self.requests).filter(|(_, times)| times.count() > 0)
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
