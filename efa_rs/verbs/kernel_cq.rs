// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues that clients in the kernel poll.

use kernel::{
    new_spinlock_irq,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
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
        SetOnce,
        SpinLockIrq, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

use crate::{
    com::{
        Cause,
        CompletionHandler,
        Epoch,
        Health,
        Lent,
        Session, //
    },
    hw::io::{
        Cdesc,
        CompStatus,
        CqDb,
        OpType,
        QueueType, //
    },
    io::{
        CompletionRings,
        Mark,
        PollSide,
        PostSide, //
    },
    rdma::{
        CqEvents,
        QpRef,
        Received,
        WcPlace,
        WcStatus,
        WorkCompletion,
        WorkCompletions,
        WrToken, //
    },
    sys::{
        dma::Entries,
        mmio::Doorbell,
        work::{
            Deferred,
            Work, //
        }, //
    },
};

/// The only port.
const PORT: u8 = 1;

/// Timeout of flushing a queue pair in error, after which the device is reset: that of a command.
const FLUSH_TIMEOUT: Delta = Delta::from_secs(30);

/// The queues of a queue pair that use one completion queue.
pub(super) struct Sides {
    pub(super) send: Option<PollSide<WrToken>>,
    pub(super) recv: Option<PollSide<WrToken>>,
}

/// A queue pair that is attached to a completion queue.
struct Attached {
    qp: Arc<QpRef>,
    sides: Sides,
    /// Start of the completions of work requests that were posted since the last reset.
    from: Mark,
    /// Time at which the queue pair entered the error state.
    flushing_since: Option<Instant<Monotonic>>,
}

/// State that polling modifies, under the lock of the queue.
struct Polled<'a> {
    rings: CompletionRings<'a>,
    pairs: RBTree<u16, Attached>,
    /// Whether one of the queue pairs may be in error, with work requests that have not completed.
    is_flushing: bool,
}

/// Returns the entry of a queue pair; `None` if it is not attached or another one has its number.
fn find<'p>(
    pairs: &'p mut RBTree<u16, Attached>,
    qp_num: u16,
    qp: &Arc<QpRef>,
) -> Option<&'p mut Attached> {
    let attached = pairs.get_mut(&qp_num)?;
    Arc::ptr_eq(&attached.qp, qp).then_some(attached)
}

/// A completion queue that is polled.
#[pin_data]
pub(super) struct KernelCq<'a> {
    #[pin]
    polled: SpinLockIrq<Polled<'a>>,
    /// Entries of all rings: limit on the stale completions that one poll skips.
    size: u32,
    /// Number of sub-queues, each with a ring.
    sub_cqs: u16,
    memory: Lent<'a, Entries<'a, { Cdesc::SIZE }>>,
    /// Set after the device has created the queue.
    doorbell: SetOnce<Doorbell<'a>>,
    notifier: Option<Deferred<Notifier>>,
    epoch: Arc<Epoch<'a>>,
    health: Arc<Health>,
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
            pairs: RBTree::new(),
            is_flushing: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                polled <- new_spinlock_irq!(polled, "efa_kernel_cq"),
                size: memory.count(),
                sub_cqs: session.attributes().queues.sub_cqs_per_cq,
                memory,
                doorbell: SetOnce::new(),
                notifier,
                epoch: session.epoch().clone(),
                health: session.health().clone(),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the memory of the rings.
    pub(super) fn memory(&self) -> &Lent<'a, Entries<'a, { Cdesc::SIZE }>> {
        &self.memory
    }

    /// Sets the doorbell.
    pub(super) fn set_doorbell(&self, doorbell: Doorbell<'a>) {
        self.doorbell.populate(doorbell);
    }

    /// Attaches a queue pair.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn attach(&self, qp_num: u16, qp: &Arc<QpRef>, sides: Sides) -> Result {
        let attached = Attached {
            qp: qp.clone(),
            sides,
            from: CompletionRings::new_mark(self.sub_cqs)?,
            flushing_since: None,
        };
        let node = RBTreeNode::new(qp_num, attached, GFP_KERNEL)?;
        let mut polled = self.polled.lock();
        // An earlier, destroyed queue pair may still be attached. It is dropped with no lock held.
        let before = polled.pairs.insert(node);
        drop(polled);
        drop(before);
        Ok(())
    }

    /// Detaches a queue pair. Polls skip its remaining completions.
    pub(super) fn detach(&self, qp_num: u16, qp: &Arc<QpRef>) {
        let mut polled = self.polled.lock();
        if find(&mut polled.pairs, qp_num, qp).is_none() {
            return;
        }
        let attached = polled.pairs.remove(&qp_num);
        drop(polled);
        drop(attached);
    }

    /// Returns whether the device has work requests of a queue pair that were not polled.
    pub(super) fn has_posted(&self, qp_num: u16, qp: &Arc<QpRef>) -> bool {
        let mut polled = self.polled.lock();
        find(&mut polled.pairs, qp_num, qp)
            .is_some_and(|attached| attached.queues().any(PollSide::has_posted))
    }

    /// Records that a queue pair is in error. Polls return flushed completions for work requests
    /// that were never posted to the device, and check that it flushes the others in time.
    pub(super) fn expect_flush(&self, qp_num: u16, qp: &Arc<QpRef>) {
        let mut polled = self.polled.lock();
        if let Some(attached) = find(&mut polled.pairs, qp_num, qp) {
            attached.flushing_since = Some(Instant::now());
            polled.is_flushing = true;
            // If the client requests an event only later, `arm` repeats this.
            self.health.expect_flush();
        }
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
        let mut polled = self.polled.lock();
        let Polled { rings, pairs, .. } = &mut *polled;
        let Some(attached) = find(pairs, qp_num, qp) else {
            return;
        };
        attached.flushing_since = None;
        rings.set_mark(&mut attached.from);
        if let Some(polls) = &mut attached.sides.send {
            polls.reset(sends);
        }
        if let Some((polls, posts)) = attached.sides.recv.as_mut().zip(recvs) {
            polls.reset(posts);
        }
    }

    /// Polls completions.
    pub(super) fn poll(&self, completions: &mut WorkCompletions<'_>) {
        let mut polled = self.polled.lock();
        let Polled { rings, pairs, .. } = &mut *polled;
        rings.pass_over();
        // Consecutive completions are mostly of the same queue pair.
        let mut last = None;
        // Completions without a work request are skipped, but not without limit.
        let mut skipped = 0;
        while skipped < self.size {
            let Some(place) = completions.place() else {
                return;
            };
            let Some(completion) = rings.pop() else {
                break;
            };
            let descriptor = Cdesc::decode(&completion.bytes);
            let qp_num = descriptor.qp_num;
            if !matches!(last, Some((number, _)) if number == qp_num) {
                last = pairs.get_mut(&qp_num).map(|attached| (qp_num, attached));
            }
            let completed = last
                .as_mut()
                .filter(|(_, attached)| attached.from.is_before(&completion))
                .and_then(|(_, attached)| attached.complete(&descriptor, place));
            if completed.is_none() {
                skipped += 1;
            }
        }
        if self.epoch.is_halted() {
            polled.flush_all(completions);
        } else if polled.is_flushing && polled.flush(completions) {
            self.health.report(Cause::MemoryHeld);
        }
    }

    /// Returns whether the device accepts no work requests.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.epoch.is_closed()
    }

    /// Stops the device: see [`Epoch::halt`].
    pub(super) fn halt(&self, cause: Cause) {
        self.epoch.halt(cause);
    }

    /// Returns whether there is a completion to poll.
    pub(super) fn has_completions(&self) -> bool {
        let polled = self.polled.lock();
        polled.rings.has_some() || polled.has_flushed(self.epoch.is_halted())
    }

    /// Notifies a client that waits for an event, to poll completions that the driver generates.
    ///
    /// A work item does this. A client may post in its handler, or while it holds a lock that its
    /// handler takes.
    pub(super) fn wake(&self) {
        self.polled.lock().is_flushing = true;
        // Orders earlier posts before the check for a waiting client. Pairs with that in `arm`.
        smp_mb(Full);
        if let Some(notifier) = self.notifier.as_ref().filter(|it| it.is_awaited()) {
            notifier.request();
        }
    }

    /// Notifies a client that has just posted if the device was stopped meanwhile, as its last poll
    /// may have been before the post.
    ///
    /// The doorbell was rung after the post, and followed by a full barrier. A poll reads in the
    /// reverse order: first the epoch, then the posted work requests.
    #[inline]
    pub(super) fn wake_if_halted(&self) {
        if self.epoch.is_halted() {
            self.wake();
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
        let polled = self.polled.lock();
        notifier.is_armed.store(true, Relaxed);
        // Orders the request before the client's next poll. Pairs with that in `wake`.
        smp_mb(Full);
        if polled.is_flushing {
            self.health.expect_flush();
        }
        if self.is_closed() {
            // The bus may have the function. The client polls what is flushed.
            return Ok(());
        }
        let command = CqDb {
            consumer_index: polled.rings.total(),
            // CAST: The low two bits.
            cmd_sn: (notifier.received.load(Relaxed) & 3) as u8,
            arm: true,
        };
        doorbell.ring(command.into_raw());
        Ok(())
    }
}

impl Attached {
    /// Completes the work request of a completion. Returns `None` if there is none.
    #[inline]
    fn complete(&mut self, completion: &Cdesc, place: WcPlace<'_, '_>) -> Option<()> {
        let Self { qp, sides, .. } = self;
        let outcome = WorkCompletion {
            qp,
            port_num: PORT,
            status: wc_status(completion.status),
            vendor_err: completion.status.into(),
        };
        match QueueType::try_from(completion.flags.q_type).ok()? {
            QueueType::Send => {
                let request = sides.send.as_mut()?.remove(completion.req_id)?;
                place.complete(request, &outcome);
            }
            QueueType::Receive => {
                let request = sides.recv.as_mut()?.remove(completion.req_id)?;
                let is_rdma_write = completion.flags.op_type == u8::from(OpType::RdmaWrite);
                let high = if is_rdma_write {
                    let [low, high, ..] = completion.extension;
                    u16::from_le_bytes([low, high])
                } else {
                    0
                };
                let received = Received {
                    byte_len: u32::from(completion.length) | u32::from(high) << 16,
                    src_qp: completion.src_qp_num.into(),
                    slid: completion.ah,
                    is_rdma_write,
                    imm_data: completion.flags.has_imm.then_some(completion.imm),
                };
                place.receive(request, &outcome, &received);
            }
        }
        Some(())
    }

    /// Returns the queues that use this completion queue.
    fn queues(&self) -> impl Iterator<Item = &PollSide<WrToken>> {
        [&self.sides.send, &self.sides.recv].into_iter().flatten()
    }

    /// Completes as flushed the work requests that `next` removes.
    fn flush(
        &mut self,
        completions: &mut WorkCompletions<'_>,
        next: impl Fn(&mut PollSide<WrToken>) -> Option<WrToken>,
    ) {
        let outcome = WorkCompletion {
            qp: &self.qp,
            port_num: PORT,
            status: WcStatus::WrFlushErr,
            vendor_err: u8::from(CompStatus::Flushed).into(),
        };
        let Sides { send, recv } = &mut self.sides;
        for queue in [send, recv].into_iter().flatten() {
            while let Some(place) = completions.place() {
                let Some(request) = next(queue) else {
                    break;
                };
                place.complete(request, &outcome);
            }
        }
    }
}

impl Polled<'_> {
    /// Completes as flushed all work requests of a stopped device.
    #[cold]
    fn flush_all(&mut self, completions: &mut WorkCompletions<'_>) {
        for attached in self.pairs.values_mut() {
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
        for attached in self.pairs.values_mut() {
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
            && self.pairs.values().any(|attached| {
                let mut queues = attached.queues();
                queues.any(|queue| queue.has_closed() || is_halted && !queue.is_empty())
            })
    }
}

/// Converts the device's status to that of the verbs.
#[inline]
fn wc_status(status: u8) -> WcStatus {
    // The most frequent status.
    if status == u8::from(CompStatus::Ok) {
        return WcStatus::Success;
    }
    CompStatus::try_from(status).map_or(WcStatus::GeneralErr, wc_error)
}

#[cold]
fn wc_error(status: CompStatus) -> WcStatus {
    use CompStatus as Device;

    match status {
        Device::Ok => WcStatus::Success,
        Device::Flushed => WcStatus::WrFlushErr,
        Device::LocalQpInternalError | Device::LocalUnsupportedOp | Device::LocalInvalidAh => {
            WcStatus::LocQpOpErr
        }
        Device::LocalInvalidLkey => WcStatus::LocProtErr,
        Device::LocalBadLength => WcStatus::LocLenErr,
        Device::RemoteBadAddress => WcStatus::RemAccessErr,
        Device::RemoteAbort => WcStatus::RemAbortErr,
        Device::RemoteBadDestQpn => WcStatus::RemInvRdReqErr,
        Device::RemoteRnr => WcStatus::RnrRetryExcErr,
        Device::RemoteBadLength | Device::RemoteFeatureMismatch => WcStatus::RemInvReqErr,
        Device::RemoteBadStatus => WcStatus::BadRespErr,
        Device::LocalUnrespRemote | Device::LocalUnreachRemote => WcStatus::RespTimeoutErr,
        Device::RemoteUnknownPeer => WcStatus::RemOpErr,
    }
}
