// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How much somebody may have of something that others have to keep.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// What is left of a quota.
#[derive(Clone, Debug)]
pub(crate) struct Quota(Arc<AtomicUsize>);

/// A part of a quota, which has it back when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    left: Arc<AtomicUsize>,
    amount: usize,
}

impl Quota {
    pub(crate) fn new(amount: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(amount)))
    }

    /// Takes so much of it, if that is left.
    pub(crate) fn take(&self, amount: usize) -> Option<Permit> {
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(amount)
            });
        taken.is_ok().then(|| Permit {
            left: Arc::clone(&self.0),
            amount,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.left.fetch_add(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let quota = Quota::new(10);
        let most = quota.take(7).unwrap();
        assert!(quota.take(4).is_none());
        let rest = quota.take(3).unwrap();
        assert!(quota.take(1).is_none());
        drop(most);
        drop(rest);
        assert!(quota.take(10).is_some());
    }
}
