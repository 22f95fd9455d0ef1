// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Quotas on resources that are kept on behalf of others.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Remainder of a quota.
#[derive(Clone, Debug)]
pub struct Quota(Arc<AtomicUsize>);

/// Part of a quota, which is returned when this is dropped.
#[derive(Debug)]
pub struct Permit {
    left: Arc<AtomicUsize>,
    amount: usize,
}

impl Quota {
    /// Creates a quota of this amount.
    pub fn new(amount: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(amount)))
    }

    /// Takes an amount from the quota, if so much is left.
    pub fn take(&self, amount: usize) -> Option<Permit> {
        take(&self.0, amount).then(|| Permit { left: Arc::clone(&self.0), amount })
    }
}

/// Subtracts an amount from the remainder, if that is enough; returns whether it was.
fn take(left: &AtomicUsize, amount: usize) -> bool {
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(amount));
    taken.is_ok()
}

impl Permit {
    /// Returns the amount of the permit.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Takes the same amount from the quota once more, if so much is left.
    pub(crate) fn again(&self) -> Option<Self> {
        Quota(Arc::clone(&self.left)).take(self.amount)
    }

    /// Changes the amount of the permit, if the quota has enough left; returns whether it had.
    pub fn resize(&mut self, amount: usize) -> bool {
        if amount <= self.amount {
            let less = self.amount - amount;
            self.left.fetch_add(less, Ordering::Relaxed);
        } else if !take(&self.left, amount - self.amount) {
            return false;
        }
        self.amount = amount;
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.left.fetch_add(self.amount, Ordering::Relaxed);
    }
}
