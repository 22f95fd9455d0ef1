// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The paths of a connection, and how often it uses each.
//!
//! A connection sprays its packets over all paths in turn. It avoids a path that loses packets for a while. One whose packets
//! take longer than those on the other paths gets fewer, as its switches are busy or it is a detour. So a hot spot in the network
//! drains, as with SRD of Amazon's cards, which measures the round trip of each path ("A Cloud-Optimized Transport Protocol for
//! Elastic and Scalable HPC", IEEE Micro 40(6), 2020). A few packets still use the path, and show when it is as good as others.

use std::time::Duration;

/// Number of consecutive losses after which a connection avoids a path.
const LOSSES: u8 = 3;

/// Time for which a connection avoids a path.
const REST: Duration = Duration::from_millis(200);

/// Maximum number of turns in a row that a slow path misses: it gets a ninth of the packets of another one.
const MISSED: u8 = 8;

/// Weight of a round trip in the mean.
const WEIGHT: u32 = 16;

/// The paths of a connection.
#[derive(Debug)]
pub(super) struct Paths {
    /// State of paths by number, up to the highest one that has ever lost or delayed a packet.
    states: Vec<Path>,
    next: u16,
    /// Mean round trip, to which a late packet contributes no more than [`late`](Self::late). So it follows most paths.
    usual: Option<Duration>,
}

/// State of a path for a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    losses: u8,
    /// Number of consecutive packets that were late.
    late: u8,
    /// Number of turns that it still misses.
    missed: u8,
    rests_until: Duration,
}

impl Paths {
    pub(super) fn new(first: u16) -> Self {
        Self { states: Vec::new(), next: first, usual: None }
    }

    /// Chooses one of `count` paths for a packet: the next one that is neither avoided nor misses its turn, if there is any.
    /// Without `multipath`, always the first one.
    pub(super) fn choose(&mut self, now: Duration, count: u16, multipath: bool) -> u16 {
        if !multipath {
            return self.next % count.max(1);
        }
        let first = (self.next + 1) % count.max(1);
        let mut turns = (first..count).chain(0..first);
        let is_free = |path: &u16| match self.states.get_mut(usize::from(*path)) {
            Some(path) if path.missed > 0 => {
                path.missed -= 1;
                false
            }
            path => path.is_none_or(|path| path.rests_until <= now),
        };
        self.next = turns.find(is_free).unwrap_or(first);
        self.next
    }

    /// Resets the losses of a path, one of whose packets was answered, after `round_trip` if that is known.
    pub(super) fn answered(&mut self, path: u16, round_trip: Option<Duration>) {
        let late = match round_trip {
            None => 0,
            Some(round_trip) => {
                let usual = self.usual.unwrap_or(round_trip);
                let limit = usual + usual / 2;
                self.usual = Some((usual * (WEIGHT - 1) + round_trip.min(limit)) / WEIGHT);
                u8::from(round_trip > limit)
            }
        };
        if late > 0 {
            let path = self.state(path);
            path.late = path.late.saturating_add(1).min(MISSED);
            path.missed = path.late;
            path.losses = 0;
        } else if let Some(path) = self.states.get_mut(usize::from(path)) {
            *path = Path::default();
        }
    }

    /// Counts a lost packet. Returns whether the connection avoids the path from now on.
    pub(super) fn lost(&mut self, now: Duration, path: u16) -> bool {
        let path = self.state(path);
        path.losses = path.losses.saturating_add(1);
        if path.losses >= LOSSES {
            path.rests_until = now + REST;
        }
        path.losses == LOSSES
    }

    fn state(&mut self, path: u16) -> &mut Path {
        let path = usize::from(path);
        if path >= self.states.len() {
            self.states.resize(path + 1, Path::default());
        }
        &mut self.states[path]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u16 = 4;

    /// Returns the packets of each path, whose round trip in microseconds is that of `delays`.
    fn spray(paths: &mut Paths, delays: [u64; COUNT as usize], packets: u32) -> [u32; COUNT as usize] {
        let mut sent = [0; COUNT as usize];
        for _ in 0..packets {
            let path = paths.choose(Duration::ZERO, COUNT, true);
            sent[usize::from(path)] += 1;
            let round_trip = Duration::from_micros(delays[usize::from(path)]);
            paths.answered(path, Some(round_trip));
        }
        sent
    }

    #[test]
    fn a_slow_path_gets_fewer_packets_until_it_is_fast() {
        let mut paths = Paths::new(0);
        assert_eq!(spray(&mut paths, [20; 4], 400), [100; 4]);
        assert_eq!(spray(&mut paths, [20, 20, 25, 25], 400), [100; 4]);
        for slow in [[20, 20, 200, 20], [200, 20, 20, 200]] {
            let sent = spray(&mut paths, slow, 400);
            for (sent, delay) in sent.into_iter().zip(slow) {
                // It still gets some, which show when it is fast.
                let expected = if delay == 20 { 101..200 } else { 10..50 };
                assert!(expected.contains(&sent), "{sent} over {delay} us");
            }
            spray(&mut paths, [20; 4], 40);
            assert_eq!(spray(&mut paths, [20; 4], 400), [100; 4]);
        }
        // If all become slow, they share equally.
        spray(&mut paths, [200; 4], 400);
        assert_eq!(spray(&mut paths, [200; 4], 400), [100; 4]);
    }
}
