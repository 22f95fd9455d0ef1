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
            Acquire,
            Atomic,
            Relaxed,
            Release, //
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
        mmio::Doorbell, //
    },
};

/// The only port.
const PORT: u8 = 1;

/// How long a device may take to flush a queue pair in error, before it is reset: as long as for a command.
const FLUSH_TIMEOUT: Delta = Delta::from_secs(30);

/// The queues of a queue pair that complete to a completion queue.
pub(super) struct Sides {
    pub(super) send: Option<PollSide<WrToken>>,
    pub(super) recv: Option<PollSide<WrToken>>,
}

/// A queue pair that completes to a completion queue.
struct Attached {
    qp: Arc<QpRef>,
    sides: Sides,
    /// From where on completions are of what was posted since the queue pair was reset.
    from: Mark,
    /// Since when the queue pair is in error.
    flushing_since: Option<Instant<Monotonic>>,
}

/// What polling changes.
struct Polled<'a> {
    rings: CompletionRings<'a>,
    pairs: RBTree<u16, Attached>,
    /// Whether one of the queue pairs may be in error.
    is_flushing: bool,
}

/// Returns a queue pair, unless another one has its number.
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
    /// Entries of all rings: completions of nothing that are skipped in one poll.
    size: u32,
    /// Rings of the device.
    sub_cqs: u16,
    memory: Lent<'a, Entries<'a, { Cdesc::SIZE }>>,
    /// Set when the device has created the queue.
    doorbell: SetOnce<Doorbell<'a>>,
    notifier: Option<Arc<Notifier>>,
    epoch: Arc<Epoch<'a>>,
    health: Arc<Health>,
}

/// Passes events of the device on to a client that has requested one.
pub(super) struct Notifier {
    events: Arc<CqEvents>,
    /// Events that the device has sent. The doorbell that requests the next one has the last bits as `cmd_sn`.
    received: Atomic<u32>,
    /// Whether the client has requested an event since the last one.
    is_armed: Atomic<bool>,
    /// Whether a queue pair was attached. The core requests the first event before it has set the work queue in which it
    /// polls, and creates queue pairs after that. So an event that comes before is none of the client's.
    is_used: Atomic<bool>,
}

impl Notifier {
    /// Makes one for a completion queue.
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
                is_used: Atomic::new(false),
            },
            GFP_KERNEL,
        )?)
    }
}

impl CompletionHandler for Notifier {
    fn completed(&self) {
        // Events of a queue come one after the other.
        self.received
            .store(self.received.load(Relaxed).wrapping_add(1), Relaxed);
        self.wake();
    }

    /// A client that has not requested an event gets none: its function may not be there yet, or any more.
    fn wake(&self) {
        if self.is_used.load(Acquire)
            && self.is_armed.load(Relaxed)
            && self.is_armed.xchg(false, Relaxed)
        {
            self.events.notify();
        }
    }
}

impl<'a> KernelCq<'a> {
    /// Makes a completion queue of which the device does not know yet.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        rings: CompletionRings<'a>,
        memory: Lent<'a, Entries<'a, { Cdesc::SIZE }>>,
        notifier: Option<Arc<Notifier>>,
        session: &Session<'a>,
    ) -> Result<Arc<Self>> {
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
        // One that the device has destroyed and that is not detached yet is dropped with no lock held.
        let before = polled.pairs.insert(node);
        drop(polled);
        drop(before);
        if let Some(notifier) = &self.notifier {
            // A reader of the flag sees what the core has set before.
            notifier.is_used.store(true, Release);
        }
        Ok(())
    }

    /// Detaches a queue pair. Its completions that were not polled are skipped.
    pub(super) fn detach(&self, qp_num: u16, qp: &Arc<QpRef>) {
        let mut polled = self.polled.lock();
        if find(&mut polled.pairs, qp_num, qp).is_none() {
            return;
        }
        let attached = polled.pairs.remove(&qp_num);
        drop(polled);
        drop(attached);
    }

    /// Notes that a queue pair is in error. Polls complete what the device was not given, and watch the device flush the
    /// rest.
    pub(super) fn expect_flush(&self, qp_num: u16, qp: &Arc<QpRef>) {
        let mut polled = self.polled.lock();
        if let Some(attached) = find(&mut polled.pairs, qp_num, qp) {
            attached.flushing_since = Some(Instant::now());
            polled.is_flushing = true;
            // If the client has not requested an event yet, `arm` does it.
            self.health.expect_flush();
        }
    }

    /// Forgets the work requests of a queue pair that is reset, whose other side is locked. Its completions that the
    /// device has written by now are skipped. Those of a new queue pair are of one that had its number before.
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
        // Completions of a queue pair mostly come one after the other.
        let mut last = None;
        // What is of no work request is skipped, but not for ever.
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

    /// Returns whether the device was stopped.
    #[inline]
    pub(super) fn is_halted(&self) -> bool {
        self.epoch.is_halted()
    }

    /// Stops the device: see [`Epoch::halt`].
    pub(super) fn halt(&self, cause: Cause) {
        self.epoch.halt(cause);
    }

    /// Returns whether there is a completion to take.
    pub(super) fn has_completions(&self) -> bool {
        let polled = self.polled.lock();
        polled.rings.has_some() || polled.has_flushed(self.epoch.is_halted())
    }

    /// Wakes a client that waits for an event, to poll what the driver completes.
    pub(super) fn wake(&self) {
        // Between what was posted and the look at whether the client waits; `arm` has one between the same.
        smp_mb(Full);
        if let Some(notifier) = &self.notifier {
            notifier.wake();
        }
    }

    /// Wakes a client that has just posted if the device was stopped meanwhile, as its last poll may have been before.
    ///
    /// The doorbell was rung after what was posted, with a full barrier after it. A poll looks at the epoch and at what was
    /// posted the other way round.
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
        // See `wake`.
        smp_mb(Full);
        if polled.is_flushing {
            self.health.expect_flush();
        }
        let command = CqDb {
            consumer_index: polled.rings.total(),
            // CAST: The last two bits.
            cmd_sn: (notifier.received.load(Relaxed) & 3) as u8,
            arm: true,
        };
        doorbell.ring(command.into_raw());
        Ok(())
    }
}

impl Attached {
    /// Completes the work request of a completion. Returns nothing if there is none.
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

    /// Returns the queues that complete here.
    fn queues(&self) -> impl Iterator<Item = &PollSide<WrToken>> {
        [&self.sides.send, &self.sides.recv].into_iter().flatten()
    }

    /// Completes work requests that `next` removes as flushed.
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
    /// Completes all that was posted to a device that was stopped.
    #[cold]
    fn flush_all(&mut self, completions: &mut WorkCompletions<'_>) {
        for attached in self.pairs.values_mut() {
            attached.flush(completions, |queue| {
                queue.remove_posted().or_else(|| queue.remove_closed())
            });
        }
    }

    /// Completes what the device was not given of queue pairs in error. Returns whether the device should have flushed
    /// what it was given by now.
    #[cold]
    fn flush(&mut self, completions: &mut WorkCompletions<'_>) -> bool {
        self.is_flushing = false;
        let mut timed_out = false;
        for attached in self.pairs.values_mut() {
            let Some(since) = attached.flushing_since else {
                continue;
            };
            self.is_flushing = true;
            attached.flush(completions, PollSide::remove_closed);
            let waits = attached.queues().any(PollSide::has_posted);
            timed_out |= waits && since.elapsed() > FLUSH_TIMEOUT;
        }
        timed_out
    }

    /// Returns whether there is something for [`Self::flush`] to complete, or for [`Self::flush_all`].
    fn has_flushed(&self, is_halted: bool) -> bool {
        (is_halted || self.is_flushing)
            && self.pairs.values().any(|attached| {
                let mut queues = attached.queues();
                queues.any(|queue| queue.has_closed() || is_halted && !queue.is_empty())
            })
    }
}

/// Returns the status in the terms of the verbs.
#[inline]
fn wc_status(status: u8) -> WcStatus {
    // Nearly all are.
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
