// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues that clients in the kernel poll.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        barrier::{
            smp_mb,
            Full, //
        },
        Arc,
        SetOnce, //
    },
    time::{
        Delta,
        Instant, //
    },
};

use super::attached::{
    Attached,
    Pairs,
    Sides, //
};
use crate::{
    com::{
        Cause,
        CompletionHandler,
        Epoch,
        Lent,
        Session, //
    },
    hw::io::{
        Cdesc,
        CqDb, //
    },
    io::{
        CompletionRings,
        PollSide,
        PostSide, //
    },
    rdma::{
        CqEvents,
        QpRef,
        WorkCompletions,
        WrToken, //
    },
    sys::{
        dma::Entries,
        lock::{
            new_irq_lock,
            IrqLock, //
        },
        mmio::Doorbell,
        work::{
            Deferred,
            Work, //
        }, //
    },
};

/// Timeout of flushing a queue pair in error, after which the device is reset: that of a command.
const FLUSH_TIMEOUT: Delta = Delta::from_secs(30);

/// State that polling modifies, under the lock of the queue.
struct Polled<'a> {
    rings: CompletionRings<'a>,
    pairs: Pairs,
    /// Whether one of the queue pairs may be in error, with work requests that have not completed.
    is_flushing: bool,
}

/// A completion queue that is polled.
#[pin_data]
pub(super) struct KernelCq<'a> {
    #[pin]
    polled: IrqLock<Polled<'a>>,
    /// Entries of all rings: limit on the stale completions that one poll skips.
    size: u32,
    /// Number of sub-queues, each with a ring.
    sub_cqs: u16,
    memory: Lent<'a, Entries<'a, { Cdesc::SIZE }>>,
    /// Set after the device has created the queue.
    doorbell: SetOnce<Doorbell<'a>>,
    notifier: Option<Deferred<Notifier>>,
    epoch: Arc<Epoch<'a>>,
}

/// Forwards events of the device to a client that has requested one.
pub(super) struct Notifier {
    events: Arc<CqEvents>,
    /// Number of received events. Its low bits are the `cmd_sn` that arms the next one.
    received: Atomic<u32>,
    /// Whether the client has requested an event since the last one.
    is_armed: Atomic<bool>,
}

impl Notifier {
    /// Creates a notifier for a completion queue.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(events: &Arc<CqEvents>) -> Result<Arc<Self>> {
        Ok(Arc::new(
            Self {
                events: events.clone(),
                received: Atomic::new(0),
                is_armed: Atomic::new(false),
            },
            GFP_KERNEL,
        )?)
    }
}

impl Notifier {
    /// Returns whether a client has requested an event.
    fn is_awaited(&self) -> bool {
        self.events.has_started() && self.is_armed.load(Relaxed)
    }
}

impl Work for Notifier {
    fn run(&self) {
        self.wake();
    }
}

impl CompletionHandler for Notifier {
    fn completed(&self) {
        // Events of a queue are serialized, so this needs no atomic addition.
        self.received
            .store(self.received.load(Relaxed).wrapping_add(1), Relaxed);
        self.wake();
    }

    /// Notifies only a client that has requested an event: others may have no handler (any more).
    fn wake(&self) {
        if self.is_awaited() && self.is_armed.xchg(false, Relaxed) {
            self.events.notify();
        }
    }
}

impl<'a> KernelCq<'a> {
    /// Creates the driver's part of a completion queue, before the device creates its own.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        rings: CompletionRings<'a>,
        memory: Lent<'a, Entries<'a, { Cdesc::SIZE }>>,
        notifier: Option<&Arc<Notifier>>,
        session: &Session<'a>,
    ) -> Result<Arc<Self>> {
        let notifier = notifier.map(Deferred::new).transpose()?;
        let polled = Polled {
            rings,
            pairs: Pairs::default(),
            is_flushing: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                polled <- new_irq_lock!(polled, c"efa_kernel_cq"),
                size: memory.count(),
                sub_cqs: session.attributes().queues.sub_cqs_per_cq,
                memory,
                doorbell: SetOnce::new(),
                notifier,
                epoch: session.epoch().clone(),
            }),
            GFP_KERNEL,
        )
    }

    pub(super) fn memory(&self) -> &Lent<'a, Entries<'a, { Cdesc::SIZE }>> {
        &self.memory
    }

    pub(super) fn set_doorbell(&self, doorbell: Doorbell<'a>) {
        self.doorbell.populate(doorbell);
    }

    /// Attaches a queue pair.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn attach(&self, qp_num: u16, qp: &Arc<QpRef>, sides: Sides) -> Result {
        let mark = CompletionRings::new_mark(self.sub_cqs)?;
        let attached = Attached::new(qp, sides, mark)?;
        // An earlier, destroyed queue pair may still be attached. It is dropped with no lock held.
        let before = self
            .polled
            .with(|polled| polled.pairs.insert(qp_num, attached))?;
        drop(before);
        Ok(())
    }

    /// Detaches a queue pair. Polls skip its remaining completions.
    pub(super) fn detach(&self, qp_num: u16, qp: &Arc<QpRef>) {
        let attached = self.polled.with(|polled| polled.pairs.remove(qp_num, qp));
        // It is dropped with no lock held.
        drop(attached);
    }

    /// Returns whether the device has work requests of a queue pair that were not polled.
    pub(super) fn has_posted(&self, qp_num: u16, qp: &Arc<QpRef>) -> bool {
        self.polled.with(|polled| {
            polled
                .pairs
                .get(qp_num, qp)
                .is_some_and(|attached| attached.queues().any(PollSide::has_posted))
        })
    }

    /// Records that a queue pair is in error. Polls return flushed completions for work requests
    /// that were never posted to the device, and check that it flushes the others in time.
    pub(super) fn expect_flush(&self, qp_num: u16, qp: &Arc<QpRef>) {
        self.polled.with(|polled| {
            if let Some(attached) = polled.pairs.get(qp_num, qp) {
                attached.flushing_since = Some(Instant::now());
                polled.is_flushing = true;
                // If the client requests an event only later, `arm` repeats this.
                self.epoch.expect_flush();
            }
        });
    }

    /// Discards the work requests of a reset queue pair, whose queues are locked. Polls skip older
    /// completions, which for a new queue pair are those of another one that had its number.
    pub(super) fn reset(
        &self,
        qp_num: u16,
        qp: &Arc<QpRef>,
        sends: &mut PostSide<WrToken>,
        recvs: Option<&mut PostSide<WrToken>>,
    ) {
        self.polled.with(|polled| {
            let Polled { rings, pairs, .. } = polled;
            if let Some(attached) = pairs.get(qp_num, qp) {
                attached.reset(rings, sends, recvs);
            }
        });
    }

    pub(super) fn poll(&self, completions: &mut WorkCompletions<'_>) {
        self.polled
            .with(|polled| self.poll_locked(polled, completions));
    }

    #[inline(always)]
    fn poll_locked(&self, polled: &mut Polled<'a>, completions: &mut WorkCompletions<'_>) {
        let Polled { rings, pairs, .. } = polled;
        // Completions without a work request are skipped, but not without limit.
        let mut skipped = 0u32;
        loop {
            let Some(place) = completions.place() else {
                // The client may never poll all of this ring.
                return rings.pass_over();
            };
            let Some(completion) = rings.pop() else {
                break;
            };
            let descriptor = Cdesc::decode(&completion.bytes);
            let completed = pairs
                .find(descriptor.qp_num)
                .filter(|attached| attached.from.is_before(&completion))
                .and_then(|attached| attached.complete(&descriptor, place));
            if completed.is_none() {
                skipped = skipped.wrapping_add(1);
                if skipped >= self.size {
                    break;
                }
            }
        }
        if self.epoch.is_halted() {
            polled.flush_all(completions);
        } else if polled.is_flushing && polled.flush(completions) {
            self.epoch.report(Cause::MemoryHeld);
        }
    }

    /// Returns the epoch in which the device may use its memory.
    pub(super) fn epoch(&self) -> &Arc<Epoch<'a>> {
        &self.epoch
    }

    /// Returns whether there is a completion to poll.
    pub(super) fn has_completions(&self) -> bool {
        self.polled
            .with(|polled| polled.rings.has_some() || polled.has_flushed(self.epoch.is_halted()))
    }

    /// Notifies a client that waits for an event, to poll completions that the driver generates.
    ///
    /// A work item does this. A client may post in its handler, or while it holds a lock that its
    /// handler takes.
    pub(super) fn wake(&self) {
        self.polled.with(|polled| polled.is_flushing = true);
        // Orders earlier posts before the check for a waiting client. Pairs with that in `arm`.
        smp_mb(Full);
        if let Some(notifier) = self.notifier.as_ref().filter(|it| it.is_awaited()) {
            notifier.request();
        }
    }

    /// Requests an event for the next completion.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the queue has no events.
    pub(super) fn arm(&self) -> Result {
        let (doorbell, notifier) = self
            .doorbell
            .as_ref()
            .zip(self.notifier.as_ref())
            .ok_or(EINVAL)?;
        self.polled.with(|polled| {
            notifier.is_armed.store(true, Relaxed);
            // Orders the request before the client's next poll. Pairs with that in `wake`.
            smp_mb(Full);
            if polled.is_flushing {
                self.epoch.expect_flush();
            }
            if self.epoch.is_closed() {
                // The bus may have the function. The client polls what is flushed.
                return;
            }
            let command = CqDb {
                consumer_index: polled.rings.total(),
                // CAST: The low two bits.
                cmd_sn: (notifier.received.load(Relaxed) & 3) as u8,
                arm: true,
            };
            doorbell.ring(command.into_raw());
        });
        Ok(())
    }
}

impl Polled<'_> {
    /// Completes as flushed all work requests of a stopped device.
    #[cold]
    fn flush_all(&mut self, completions: &mut WorkCompletions<'_>) {
        for attached in self.pairs.iter_mut() {
            attached.flush(completions, |queue| {
                queue.remove_posted().or_else(|| queue.remove_closed())
            });
        }
    }

    /// Completes as flushed the work requests of queue pairs in error that were never posted to the
    /// device. Returns whether the device's own flush has timed out.
    #[cold]
    fn flush(&mut self, completions: &mut WorkCompletions<'_>) -> bool {
        self.is_flushing = false;
        let mut timed_out = false;
        for attached in self.pairs.iter_mut() {
            let Some(since) = attached.flushing_since else {
                continue;
            };
            attached.flush(completions, PollSide::remove_closed);
            self.is_flushing |= !attached.queues().all(PollSide::is_empty);
            let waits = attached.queues().any(PollSide::has_posted);
            timed_out |= waits && since.elapsed() > FLUSH_TIMEOUT;
        }
        timed_out
    }

    /// Returns whether [`Self::flush`] or [`Self::flush_all`] has a work request to complete.
    fn has_flushed(&self, is_halted: bool) -> bool {
        (is_halted || self.is_flushing)
            && self.pairs.iter().any(|attached| {
                let mut queues = attached.queues();
                queues.any(|queue| queue.has_closed() || is_halted && !queue.is_empty())
            })
    }
}
