// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Output of devices that waits for the thread that writes it.
//!
//! The caller holds the lock of a device, so it never waits here. If the thread that writes is behind, because a pipe's
//! reader or the disk is slow, output is dropped and counted.

use std::{io, thread, time::Duration};

use parking_lot::{Condvar, Mutex};

/// Limit on buffered output in bytes, over all devices. The batch that is being written may have as many bytes again.
pub(crate) const WAITING_BYTES: usize = 16 << 20;

/// Pause of the thread after a write. It needs no wake-up for items that are queued meanwhile.
const REST: Duration = Duration::from_millis(1);

/// Work of a writer thread, which starts in the sandbox, where it can open no file.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Items that wait to be written. Each device has an equal share of the buffer.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
    ended: Condvar,
    /// Limit on buffered bytes of each device.
    share: usize,
}

#[derive(Debug)]
struct State<T> {
    items: Vec<(usize, T)>,
    /// Indexed by device.
    parts: Vec<Part>,
    phase: Phase,
}

/// Buffered bytes and lost items of a device.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    bytes: usize,
    lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Pending items are still written, but no more are accepted.
    Closing,
    /// No more items are written.
    Ended,
}

/// Items that are written together.
#[derive(Debug)]
pub(crate) struct Batch<T> {
    /// Devices and their items, in the order of arrival.
    pub(crate) items: Vec<(usize, T)>,
    /// Devices that have lost items after these, and the number of lost items.
    pub(crate) lost: Vec<(usize, u64)>,
}

impl<T> Outbox<T> {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            state: Mutex::new(State {
                items: Vec::new(),
                parts: vec![Part::default(); devices],
                phase: Phase::Open,
            }),
            filled: Condvar::new(),
            ended: Condvar::new(),
            share: WAITING_BYTES / devices.max(1),
        }
    }

    /// Adds an item of a device, which takes `bytes` besides its own size, unless the share is used up.
    pub(crate) fn push(&self, device: usize, bytes: usize, item: impl FnOnce() -> T) {
        let size = bytes + size_of::<(usize, T)>();
        let mut state = self.state.lock();
        let State {
            items,
            parts,
            phase: Phase::Open,
        } = &mut *state
        else {
            return;
        };
        let Some(part) = parts.get_mut(device) else {
            return;
        };
        // Items after a lost one are lost, too, so that the thread can report where they are missing.
        if part.lost > 0 || part.bytes > 0 && part.bytes + size > self.share {
            part.lost += 1;
            return;
        }
        part.bytes += size;
        let was_empty = items.is_empty();
        items.push((device, item()));
        drop(state);
        if was_empty {
            self.filled.notify_one();
        }
    }

    /// Waits for items to write, and leaves `spare` in their place. Returns `None` at the end.
    fn take(&self, spare: Vec<(usize, T)>) -> Option<Batch<T>> {
        let mut state = self.state.lock();
        while state.items.is_empty() {
            if state.phase != Phase::Open {
                return None;
            }
            self.filled.wait(&mut state);
        }
        let items = std::mem::replace(&mut state.items, spare);
        let parts = state.parts.iter_mut().map(std::mem::take).enumerate();
        let lost = parts
            .filter(|(_, part)| part.lost > 0)
            .map(|(device, part)| (device, part.lost))
            .collect();
        Some(Batch { items, lost })
    }

    /// Writes all items until the end or an error. It needs a thread of its own.
    pub(crate) fn work(&self, what: &str, mut write: impl FnMut(&Batch<T>) -> io::Result<()>) {
        let mut spare = Vec::new();
        while let Some(mut batch) = self.take(spare) {
            if let Err(error) = write(&batch) {
                tracing::error!(%error, "cannot write the {what}, which ends here: restart the program with another file");
                break;
            }
            batch.items.clear();
            spare = batch.items;
            thread::sleep(REST);
        }
        let mut state = self.state.lock();
        state.phase = Phase::Ended;
        state.items = Vec::new();
        drop(state);
        self.ended.notify_all();
    }

    /// Has all pending items written. Waits no longer than `most` for the lock, and no longer than that for the writes.
    pub(crate) fn finish(&self, most: Duration) {
        // A thread that panics may hold the lock.
        let Some(mut state) = self.state.try_lock_for(most) else {
            return;
        };
        if state.phase == Phase::Open {
            state.phase = Phase::Closing;
        }
        self.filled.notify_all();
        let is_busy = |state: &mut State<T>| state.phase != Phase::Ended;
        self.ended.wait_while_for(&mut state, is_busy, most);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use efa_testing::wait::patience;

    use super::*;

    #[test]
    fn dropped_items_are_counted_in_their_batch() {
        let outbox = Outbox::new(2);
        let most = WAITING_BYTES / 2 / (1024 + size_of::<(usize, usize)>());
        for number in 0..most + 5 {
            outbox.push(1, 1024, || number);
        }
        // The other device has its own share.
        outbox.push(0, 1024, || 0);
        let batch = outbox.take(Vec::new()).unwrap();
        assert_eq!(batch.items.len(), most + 1);
        assert_eq!(batch.items[most - 1], (1, most - 1));
        assert_eq!(batch.items[most], (0, 0));
        assert_eq!(batch.lost, [(1, 5)]);
        outbox.push(1, 1024, || 7);
        let batch = outbox.take(batch.items).unwrap();
        assert_eq!(batch.items.last(), Some(&(1, 7)));
        assert!(batch.lost.is_empty());
    }

    #[test]
    fn finish_waits_for_pending_items_with_a_timeout() {
        let outbox = Arc::new(Outbox::new(1));
        outbox.push(0, 0, || 1);
        // No thread writes.
        outbox.finish(Duration::from_millis(1));
        let worker = Arc::clone(&outbox);
        let written = thread::spawn(move || {
            let mut written = Vec::new();
            worker.work("test", |batch| {
                written.extend_from_slice(&batch.items);
                Ok(())
            });
            written
        });
        outbox.finish(patience());
        assert_eq!(outbox.state.lock().phase, Phase::Ended);
        outbox.push(0, 0, || 2);
        assert_eq!(written.join().unwrap(), [(0, 1)]);
    }

    #[test]
    fn an_error_ends_the_output() {
        let outbox = Outbox::new(1);
        outbox.push(0, 0, || 1);
        outbox.work("test", |_| Err(io::ErrorKind::BrokenPipe.into()));
        outbox.push(0, 0, || 2);
        assert!(outbox.state.lock().items.is_empty());
    }
}
