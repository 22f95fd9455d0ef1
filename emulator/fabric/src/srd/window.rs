// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Limit on the packets that a connection has in flight.
//!
//! A connection keeps so little in flight that queues in the network stay short. Once per round trip it compares the delays of
//! the last packets with the base delay, the shortest to the peer. If most took much longer, the shared link is congested, and
//! the window shrinks in proportion to the excess. Otherwise it grows. If only some are late, their paths are congested and not
//! the shared link. So the connections that share a link get about the same rate, without signals from the network.
//!
//! The delay that counts as long is smaller for larger windows. So if many share a link, small windows grow while large ones
//! shrink. All converge to one size, even if their base delays differ a little. The queue grows with the number of connections,
//! but much less than in proportion. Google's Swift does the same ("Delay is Simple and Effective for Congestion Control in the
//! Datacenter", SIGCOMM 2020). The base delay to a peer is measured for all connections to it together. A connection that begins
//! while the queue is long would otherwise include the queue in it.

use std::time::Duration;

/// Packets that a new connection may have in flight.
const INITIAL: f64 = 4.0;

/// Maximum number of packets that a connection may have in flight.
pub(crate) const MOST: f64 = 256.0;

/// The smallest window if packets are late. If each connection has at most one packet in flight, the congestion has another
/// cause, or the long queue does no harm.
const LEAST_IF_LATE: f64 = 1.0;

/// The smallest window if packets are lost. A window below one packet means one packet per several round trips. So thousands of
/// connections can share a link with a short queue.
const LEAST: f64 = 1.0 / 64.0;

/// Smallest factor by which the window is multiplied when packets are lost or very late.
const LEAST_PART: f64 = 0.7;

/// Weight of the relative excess of a round trip in the decrease of the window.
const DECREASE: f64 = 0.8;

/// Growth of the window in packets after the first round trip without congestion. The step doubles with each further one. If many
/// connections share a link, all grow at once, and small steps keep them from filling it together. A single connection soon has
/// its full window.
const STEP: f64 = 0.25;

/// Queueing delay that is tolerated if the window is one packet, or half of the shortest round trip if that is more.
const QUEUEING: Duration = Duration::from_micros(30);

/// Minimum fraction of that delay for large windows, so that they do not react to each microsecond.
const LEAST_QUEUEING: f64 = 0.25;

/// Minimum time for which a shortest round trip counts. It expires because the network may have changed.
const SHORTEST_AGE: Duration = Duration::from_secs(10);

/// Minimum timeout for an acknowledgement without evidence of a loss. Shorter timeouts would only measure the scheduling delays
/// of the host.
const MIN_TIMEOUT: Duration = Duration::from_millis(2);

/// Maximum timeout after a retransmission. An outage may take longer, but says nothing about round trips.
const MAX_CAUTION: Duration = Duration::from_secs(1);

/// Timeout before the first round trip was measured.
const INITIAL_TIMEOUT: Duration = Duration::from_millis(20);

/// Increment of `share` from one packet to the next: the golden ratio. So the mean over any few packets is the fraction of the
/// window.
const SPREAD: f64 = 0.618_033_988_75;

/// The window of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    size: f64,
    /// Whether no congestion was detected yet, so that the window grows fast.
    starting: bool,
    /// Number of packets by which it grows if the current round trip ends without congestion.
    step: f64,
    smoothed: Option<Duration>,
    variation: Duration,
    /// Minimum timeout until a round trip is measured again.
    caution: Duration,
    round: Round,
    /// Addition to the window for the next packet, below 1.
    share: f64,
    /// Time at which the next packet may be sent, if the window is below 1.
    paced: Duration,
}

/// Measurements of a round trip.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    begun: Duration,
    acknowledged: u32,
    late: u32,
    /// Sum of the excess times of all late packets, each relative to its round trip.
    excess: f64,
}

/// The shortest round trip to a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortest {
    /// The shortest one since `begun`, and the shortest one of the period before.
    now: Duration,
    before: Duration,
    begun: Duration,
}

impl Shortest {
    pub(crate) fn new(now: Duration, round_trip: Duration) -> Self {
        Self { now: round_trip, before: round_trip, begun: now }
    }

    /// Takes a round trip into account; returns the shortest one.
    pub(crate) fn measure(&mut self, now: Duration, round_trip: Duration) -> Duration {
        if now.saturating_sub(self.begun) > SHORTEST_AGE {
            self.before = self.now;
            self.now = round_trip;
            self.begun = now;
        }
        self.now = self.now.min(round_trip);
        self.now.min(self.before)
    }

    /// Whether both periods are too old to count.
    pub(crate) fn is_old(&self, now: Duration) -> bool {
        now.saturating_sub(self.begun) > 2 * SHORTEST_AGE
    }
}

impl Window {
    pub(crate) fn new() -> Self {
        Self {
            size: INITIAL,
            starting: true,
            step: STEP,
            smoothed: None,
            variation: Duration::ZERO,
            caution: Duration::ZERO,
            round: Round::default(),
            share: 0.0,
            paced: Duration::ZERO,
        }
    }

    /// Returns its size in packets, and the smoothed round trip.
    pub(crate) fn state(&self) -> (f64, Option<Duration>) {
        (self.size, self.smoothed)
    }

    /// Whether another packet may be sent.
    pub(crate) fn admits(&self, now: Duration, in_flight: usize) -> bool {
        if self.size < 1.0 {
            return in_flight == 0 && self.paced <= now;
        }
        // CAST: it is not above `MOST` + 1.
        in_flight < (self.size + self.share) as usize
    }

    /// Records the transmission of a packet that the window has admitted.
    pub(crate) fn sent(&mut self, now: Duration) {
        self.share = (self.share + SPREAD).fract();
        if self.size < 1.0 {
            let round_trip = self.smoothed.unwrap_or_default();
            self.paced = now + round_trip.div_f64(self.size);
        }
    }

    /// Returns the time at which the next packet may be sent if none is in flight, for a window below 1.
    pub(crate) fn paced(&self) -> Option<Duration> {
        (self.size < 1.0).then_some(self.paced)
    }

    /// Returns the timeout for an acknowledgement.
    pub(crate) fn timeout(&self) -> Duration {
        self.smoothed.map_or(INITIAL_TIMEOUT, |smoothed| (smoothed * 4).max(MIN_TIMEOUT)).max(self.caution)
    }

    /// Returns the timeout for a packet after the acknowledgement of a later one on the same path.
    pub(crate) fn patience(&self) -> Duration {
        let patience = |smoothed: Duration| smoothed + 4 * self.variation;
        self.smoothed.map_or(INITIAL_TIMEOUT, patience)
    }

    /// Records the acknowledgement of a packet that was sent again, `time` after its first transmission. Round trips may be longer
    /// than the timeout. If it stayed so short, all packets would be sent again, and no round trip be measured.
    pub(crate) fn acknowledged_again(&mut self, time: Duration) {
        self.caution = self.caution.max((2 * time).min(MAX_CAUTION));
    }

    /// Records an acknowledgement after `round_trip`. `shortest` is the shortest round trip to the peer.
    pub(crate) fn acknowledged(&mut self, now: Duration, round_trip: Duration, shortest: Duration) {
        self.measure(round_trip);
        self.caution = Duration::ZERO;
        let part = (1.0 / self.size.max(1.0).sqrt()).max(LEAST_QUEUEING);
        let target = shortest + QUEUEING.max(shortest / 2).mul_f64(part);
        let round = &mut self.round;
        round.acknowledged += 1;
        if round_trip > target {
            round.late += 1;
            round.excess += (round_trip - target).as_secs_f64() / round_trip.as_secs_f64();
            self.starting = false;
        } else if self.starting {
            self.grow(1.0);
        }
        let length = self.smoothed.unwrap_or_default();
        if self.round.begun.is_zero() {
            self.round.begun = now;
        } else if now.saturating_sub(self.round.begun) >= length {
            self.end_round(now);
        }
    }

    fn measure(&mut self, round_trip: Duration) {
        match self.smoothed {
            None => {
                self.smoothed = Some(round_trip);
                self.variation = round_trip / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(round_trip)) / 4;
                self.smoothed = Some((smoothed * 7 + round_trip) / 8);
            }
        }
    }

    /// Adjusts the window after a round trip.
    fn end_round(&mut self, now: Duration) {
        let round = self.round;
        self.round = Round { begun: now, ..Round::default() };
        if 2 * round.late > round.acknowledged {
            let excess = round.excess / f64::from(round.late);
            self.shrink(1.0 - DECREASE * excess, LEAST_IF_LATE.min(self.size));
        } else if !self.starting && f64::from(round.acknowledged) >= self.size / 2.0 {
            // A connection that has sent less has no evidence that a larger window would be safe.
            self.grow(self.step.min(self.size));
            self.step *= 2.0;
        }
    }

    /// Shrinks the window after a loss.
    pub(crate) fn lost(&mut self, now: Duration) {
        // All losses of a round trip count as one.
        if now.saturating_sub(self.round.begun) >= self.smoothed.unwrap_or_default() {
            self.shrink(LEAST_PART, LEAST);
            self.round = Round { begun: now, ..Round::default() };
        }
    }

    fn grow(&mut self, packets: f64) {
        self.size = (self.size + packets).min(MOST);
    }

    fn shrink(&mut self, part: f64, least: f64) {
        self.starting = false;
        self.step = STEP;
        self.size = (self.size * part.max(LEAST_PART)).max(least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Duration = Duration::from_micros(20);

    /// Simulates `count` round trips of a window. In each, all packets that it admits are acknowledged.
    fn rounds(window: &mut Window, now: &mut Duration, count: u32, round_trip: Duration) {
        for _ in 0..count {
            *now += round_trip;
            for _ in 0..window.size.max(1.0) as u32 {
                window.acknowledged(*now, round_trip, SHORTEST);
            }
        }
    }

    fn start() -> (Window, Duration) {
        (Window::new(), Duration::from_secs(1))
    }

    #[test]
    fn the_window_grows_with_early_packets_and_shrinks_with_late_ones() {
        let (mut window, mut now) = start();
        rounds(&mut window, &mut now, 3, SHORTEST);
        assert_eq!(window.size, 8.0 * INITIAL);
        rounds(&mut window, &mut now, 2, 20 * SHORTEST);
        let after = window.size;
        assert!(after < 8.0 * INITIAL && after >= 8.0 * INITIAL * LEAST_PART.powi(2));
        // From now on, it grows in small steps that increase.
        rounds(&mut window, &mut now, 60, SHORTEST);
        assert_eq!(window.size, MOST);
        rounds(&mut window, &mut now, 100, 20 * SHORTEST);
        assert_eq!(window.size, LEAST_IF_LATE);
    }

    #[test]
    fn some_late_packets_do_not_shrink_the_window() {
        let (mut window, mut now) = start();
        window.starting = false;
        for _ in 0..100 {
            for late in [false, false, true] {
                now += SHORTEST / 4;
                let round_trip = if late { 30 * SHORTEST } else { SHORTEST };
                window.acknowledged(now, round_trip, SHORTEST);
            }
        }
        assert!(window.size > INITIAL);
    }

    /// Windows that share a link converge to about the same size, although their base delays differ slightly. Each packet takes a
    /// microsecond on the link.
    #[test]
    fn connections_share_a_link_fairly() {
        let mut now = Duration::from_secs(1);
        let mut windows = [Window::new(); 16];
        for (number, window) in windows.iter_mut().enumerate() {
            window.starting = false;
            window.size = if number == 0 { 40.0 } else { 1.0 };
        }
        let mut sums = [0.0; 16];
        for round in 0..4000 {
            let packets: f64 = windows.iter().map(|window| window.size).sum();
            let round_trip = SHORTEST.max(Duration::from_micros(1).mul_f64(packets));
            now += round_trip;
            for (number, window) in windows.iter_mut().enumerate() {
                let shortest = SHORTEST + Duration::from_nanos(100 * number as u64);
                for _ in 0..window.size.max(1.0) as u32 {
                    window.acknowledged(now, round_trip, shortest);
                }
                if round >= 2000 {
                    sums[number] += window.size;
                }
            }
        }
        let [least, .., most] = {
            sums.sort_by(f64::total_cmp);
            sums
        };
        assert!(most < 1.3 * least, "{sums:?}");
    }

    #[test]
    fn losses_shrink_the_window_below_a_packet() {
        let (mut window, mut now) = start();
        rounds(&mut window, &mut now, 1, SHORTEST);
        for _ in 0..20 {
            now += 2 * SHORTEST;
            window.lost(now);
            // A second loss immediately afterwards belongs to the same round trip.
            window.lost(now);
        }
        assert!(window.size < 1.0 && window.size > 0.5 * 8.0 * LEAST_PART.powi(20));
        assert!(!window.admits(now, 1));
        assert!(window.admits(now, 0));
        window.sent(now);
        assert!(!window.admits(now, 0));
        let paced = window.paced().unwrap();
        assert!(paced > now + 5 * SHORTEST);
        assert!(window.admits(paced, 0));
        rounds(&mut window, &mut now, 30, SHORTEST);
        assert_eq!((window.size > 1.0, window.paced()), (true, None));
    }

    #[test]
    fn a_fractional_window_admits_its_average() {
        let (mut window, now) = start();
        window.size = 2.5;
        let mut admitted = 0;
        for _ in 0..1000 {
            admitted += (0..8).filter(|in_flight| window.admits(now, *in_flight)).count();
            window.sent(now);
        }
        assert!((2480..=2520).contains(&admitted), "{admitted}");
    }

    #[test]
    fn the_shortest_round_trip_expires() {
        let now = Duration::from_secs(1);
        let mut shortest = Shortest::new(now, SHORTEST);
        assert_eq!(shortest.measure(now, 2 * SHORTEST), SHORTEST);
        let later = now + SHORTEST_AGE + SHORTEST;
        assert_eq!(shortest.measure(later, 3 * SHORTEST), SHORTEST);
        let last = later + SHORTEST_AGE + SHORTEST;
        assert_eq!(shortest.measure(last, 4 * SHORTEST), 3 * SHORTEST);
        assert!(!shortest.is_old(last));
        assert!(shortest.is_old(last + 3 * SHORTEST_AGE));
    }
}
