// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The queue pairs that use a completion queue.

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};

use crate::{
    hw::io::{
        Cdesc,
        CompStatus,
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
        QpRef,
        Received,
        WcPlace,
        WcStatus,
        WorkCompletion,
        WorkCompletions,
        WrToken, //
    },
};

/// The only port.
const PORT: u8 = 1;

/// The queues of a queue pair that use one completion queue.
pub(super) struct Sides {
    pub(super) send: Option<PollSide<WrToken>>,
    pub(super) recv: Option<PollSide<WrToken>>,
}

/// A queue pair that is attached to a completion queue.
pub(super) struct Attached {
    qp: Arc<QpRef>,
    sides: Sides,
    /// Start of the completions of work requests that were posted since the last reset.
    pub(super) from: Mark,
    /// Time at which the queue pair entered the error state.
    pub(super) flushing_since: Option<Instant<Monotonic>>,
}

/// Queue pairs in the order of their numbers.
#[derive(Default)]
pub(super) struct Pairs {
    pairs: KVec<(u16, KBox<Attached>)>,
    /// Index of the one that was found last. Consecutive completions are mostly of the same one.
    last: usize,
}

impl Pairs {
    fn position(&self, qp_num: u16) -> Result<usize, usize> {
        self.pairs
            .binary_search_by_key(&qp_num, |(number, _)| *number)
    }

    /// Adds a queue pair. Returns an earlier one that has its number.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn insert(
        &mut self,
        qp_num: u16,
        attached: KBox<Attached>,
    ) -> Result<Option<KBox<Attached>>> {
        match self.position(qp_num) {
            Ok(place) => {
                let (_, earlier) = self.pairs.get_mut(place).ok_or(ENOMEM)?;
                Ok(Some(core::mem::replace(earlier, attached)))
            }
            Err(place) => {
                // Called with a spinlock held.
                self.pairs.reserve(1, GFP_ATOMIC)?;
                let inserted = self.pairs.insert_within_capacity(place, (qp_num, attached));
                inserted.map_or(Err(ENOMEM), |()| Ok(None))
            }
        }
    }

    /// Removes a queue pair, unless another one has its number.
    pub(super) fn remove(&mut self, qp_num: u16, qp: &Arc<QpRef>) -> Option<KBox<Attached>> {
        self.get(qp_num, qp)?;
        let (_, attached) = self.pairs.remove(self.last).ok()?;
        Some(attached)
    }

    /// Returns the queue pair with a number.
    #[inline]
    pub(super) fn find(&mut self, qp_num: u16) -> Option<&mut Attached> {
        if !matches!(self.pairs.get(self.last), Some((number, _)) if *number == qp_num) {
            return self.search(qp_num);
        }
        let (_, attached) = self.pairs.get_mut(self.last)?;
        Some(attached)
    }

    // Never inlined, so that polls have one check of the index.
    #[inline(never)]
    fn search(&mut self, qp_num: u16) -> Option<&mut Attached> {
        self.last = self.position(qp_num).ok()?;
        let (_, attached) = self.pairs.get_mut(self.last)?;
        Some(attached)
    }

    /// Returns a queue pair, unless another one has its number.
    pub(super) fn get(&mut self, qp_num: u16, qp: &Arc<QpRef>) -> Option<&mut Attached> {
        let attached = self.find(qp_num)?;
        Arc::ptr_eq(&attached.qp, qp).then_some(attached)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Attached> {
        self.pairs.iter().map(|(_, attached)| &**attached)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Attached> {
        self.pairs.iter_mut().map(|(_, attached)| &mut **attached)
    }
}

impl Attached {
    /// Creates the state of a queue pair. `from` gets its meaning by the first [reset](Self::reset).
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(qp: &Arc<QpRef>, sides: Sides, from: Mark) -> Result<KBox<Self>> {
        let attached = Self {
            qp: qp.clone(),
            sides,
            from,
            flushing_since: None,
        };
        Ok(KBox::new(attached, GFP_KERNEL)?)
    }

    /// Discards the work requests, whose posting sides are `sends` and `recvs`, and all completions.
    pub(super) fn reset(
        &mut self,
        rings: &CompletionRings<'_>,
        sends: &mut PostSide<WrToken>,
        recvs: Option<&mut PostSide<WrToken>>,
    ) {
        self.flushing_since = None;
        rings.set_mark(&mut self.from);
        if let Some(polls) = &mut self.sides.send {
            polls.reset(sends);
        }
        if let Some((polls, posts)) = self.sides.recv.as_mut().zip(recvs) {
            polls.reset(posts);
        }
    }

    /// Completes the work request of a completion. Returns `None` if there is none.
    #[inline]
    pub(super) fn complete(&mut self, completion: &Cdesc, place: WcPlace<'_, '_>) -> Option<()> {
        let Self { qp, sides, .. } = self;
        let q_type = completion.flags.q_type;
        let is_receive = q_type == u8::from(QueueType::Receive);
        let queue = match q_type {
            _ if is_receive => &mut sides.recv,
            _ if q_type == u8::from(QueueType::Send) => &mut sides.send,
            _ => return None,
        };
        let request = queue.as_mut()?.remove(completion.req_id)?;
        let outcome = WorkCompletion {
            qp,
            port_num: PORT,
            status: wc_status(completion.status),
            vendor_err: completion.status.into(),
        };
        if !is_receive {
            place.complete(request, &outcome);
            return Some(());
        }
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
        Some(())
    }

    /// Returns the queues that use this completion queue.
    pub(super) fn queues(&self) -> impl Iterator<Item = &PollSide<WrToken>> {
        [&self.sides.send, &self.sides.recv].into_iter().flatten()
    }

    /// Completes as flushed the work requests that `next` removes.
    pub(super) fn flush(
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
