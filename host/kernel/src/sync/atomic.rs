// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Atomic values, which tasks share without a lock.
//!
//! Each access is a preemption point. The ordering is always the strongest, as all tasks of a
//! machine are in one thread. Machines may share statics.

use core::{cell::UnsafeCell, sync::atomic};

/// No order.
#[derive(Clone, Copy)]
pub struct Relaxed;
/// Orders later accesses.
#[derive(Clone, Copy)]
pub struct Acquire;
/// Orders earlier accesses.
#[derive(Clone, Copy)]
pub struct Release;
/// Orders all accesses.
#[derive(Clone, Copy)]
pub struct Full;

/// A type with atomic accesses.
pub trait Value: Copy + PartialEq {
    /// Its atomic type in the standard library.
    type Std;

    /// Returns the value.
    fn load(place: &Self::Std) -> Self;

    /// Writes the value, and returns the previous one.
    fn swap(place: &Self::Std, value: Self) -> Self;

    /// Writes the value if the previous one is `old`, and returns the previous one.
    fn exchange(place: &Self::Std, old: Self, new: Self) -> Result<Self, Self>;
}

/// A number.
pub trait Number: Value {
    /// Returns the sum, which wraps.
    fn plus(self, other: Self) -> Self;

    /// Returns the difference, which wraps.
    fn minus(self, other: Self) -> Self;
}

macro_rules! values {
    ($($type:ty: $std:ty $(, $parameter:ident)?;)*) => {$(
        impl $(<$parameter>)? Value for $type {
            type Std = $std;

            fn load(place: &$std) -> Self {
                place.load(atomic::Ordering::SeqCst)
            }

            fn swap(place: &$std, value: Self) -> Self {
                place.swap(value, atomic::Ordering::SeqCst)
            }

            fn exchange(place: &$std, old: Self, new: Self) -> Result<Self, Self> {
                place.compare_exchange(old, new, atomic::Ordering::SeqCst, atomic::Ordering::SeqCst)
            }
        }
    )*};
}

values! {
    bool: atomic::AtomicBool;
    u32: atomic::AtomicU32;
    u64: atomic::AtomicU64;
    i32: atomic::AtomicI32;
    i64: atomic::AtomicI64;
    usize: atomic::AtomicUsize;
    *mut T: atomic::AtomicPtr<T>, T;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
        }
    )*};
}

numbers!(u32 u64 i32 i64 usize);

/// A value that tasks share.
#[repr(transparent)]
pub struct Atomic<T>(UnsafeCell<T>);

// SAFETY: The value is only accessed by the atomic type of the standard library.
unsafe impl<T> Sync for Atomic<T> {}
// SAFETY: As above; all tasks of a machine are in one thread.
unsafe impl<T> Send for Atomic<T> {}

impl<T: Value> Atomic<T> {
    /// Returns an atomic with a value.
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    fn std(&self) -> &T::Std {
        sim::point();
        // SAFETY: The atomic types of the standard library have the layout of their values.
        unsafe { &*self.0.get().cast() }
    }

    /// Reads the value.
    pub fn load<O>(&self, _: O) -> T {
        T::load(self.std())
    }

    /// Writes the value.
    pub fn store<O>(&self, value: T, _: O) {
        T::swap(self.std(), value);
    }

    /// Writes the value, and returns the previous one.
    pub fn xchg<O>(&self, value: T, _: O) -> T {
        T::swap(self.std(), value)
    }

    /// Writes `new` if the value is `old`. Returns the previous value, as an error if it differs.
    pub fn cmpxchg<O>(&self, old: T, new: T, _: O) -> Result<T, T> {
        T::exchange(self.std(), old, new)
    }
}

impl<T: Number> Atomic<T> {
    fn change(&self, f: impl Fn(T) -> T) -> T {
        let place = self.std();
        let mut old = T::load(place);
        while let Err(now) = T::exchange(place, old, f(old)) {
            old = now;
        }
        old
    }

    /// Adds to the value.
    pub fn add<O>(&self, by: T, _: O) {
        self.change(|old| old.plus(by));
    }

    /// Adds to the value, and returns the previous one.
    pub fn fetch_add<O>(&self, by: T, _: O) -> T {
        self.change(|old| old.plus(by))
    }

    /// Subtracts from the value, and returns the previous one.
    pub fn fetch_sub<O>(&self, by: T, _: O) -> T {
        self.change(|old| old.minus(by))
    }
}
