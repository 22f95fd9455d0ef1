// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Time: the virtual clock of the machine.

use core::{
    marker::PhantomData,
    ops::{Add, AddAssign, Mul, Sub},
};

/// A number of jiffies.
pub type Jiffies = usize;

/// Length of a jiffy in nanoseconds.
pub const JIFFY: u64 = 1_000_000;

/// Converts milliseconds to jiffies, which have the same length.
pub fn msecs_to_jiffies(millis: u32) -> Jiffies {
    millis as usize
}

/// A span of time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Delta(i64);

impl Delta {
    /// A span of length 0.
    pub const ZERO: Self = Self(0);

    /// Returns a span of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Returns a span of `micros` microseconds.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Returns a span of `millis` milliseconds.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns a span of `secs` seconds.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Returns the nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Returns the microseconds, rounded up.
    pub const fn as_micros_ceil(self) -> i64 {
        self.0.saturating_add(999) / 1_000
    }

    /// Returns the milliseconds, rounded down.
    pub const fn as_millis(self) -> i64 {
        self.0 / 1_000_000
    }

    /// Returns whether the span is negative.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Returns the nanoseconds for the simulator, 0 if negative.
    pub(crate) fn nanos(self) -> u64 {
        self.0.max(0).unsigned_abs()
    }
}

impl Mul<i64> for Delta {
    type Output = Self;

    fn mul(self, by: i64) -> Self {
        Self(self.0 * by)
    }
}

impl Add for Delta {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Delta {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Delta {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

/// The monotonic clock.
#[derive(Clone, Copy)]
pub struct Monotonic;

/// A point in time of a clock.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub struct Instant<C>(i64, PhantomData<fn(C)>);

impl<C> Instant<C> {
    /// Returns the current time.
    pub fn now() -> Self {
        Self(sim::now() as i64, PhantomData)
    }

    /// Returns the time since then.
    pub fn elapsed(&self) -> Delta {
        Delta(sim::now() as i64 - self.0)
    }
}

impl<C> Sub<Delta> for Instant<C> {
    type Output = Self;

    fn sub(self, span: Delta) -> Self {
        Self(self.0 - span.0, PhantomData)
    }
}

impl<C> Sub for Instant<C> {
    type Output = Delta;

    fn sub(self, other: Self) -> Delta {
        Delta(self.0 - other.0)
    }
}

impl<C> Add<Delta> for Instant<C> {
    type Output = Self;

    fn add(self, span: Delta) -> Self {
        Self(self.0 + span.0, PhantomData)
    }
}

/// Sleep.
pub mod delay {
    /// Sleeps for at least `span`.
    pub fn fsleep(span: super::Delta) {
        sim::might_sleep("sleep");
        sim::sleep(span.nanos());
    }
}
