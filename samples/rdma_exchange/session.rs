// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A session from `open` to `close`: queue pairs, their memory, and waiting for completions.

use kernel::{
    new_condvar, new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        CondVarTimeoutResult,
        SpinLockIrq, //
    },
    time::{
        msecs_to_jiffies,
        Delta,
        Instant,
        Monotonic, //
    },
};

use crate::{
    rdma::{
        client::{
            AddressHandle,
            BringUpAttr,
            Buffer,
            Completion,
            CompletionHandler,
            CompletionQueue,
            Device,
            FastRegion,
            Operation,
            Pd,
            Peer,
            QueuePair,
            Received,
            RemoteMemory,
            Slice,
            Transport, //
        },
        Access,
        Gid,
        QpCap,
        WcStatus, //
    },
    wire::{
        self,
        Header,
        HEADER_SIZE, //
    }, //
};

/// The only port of a device.
pub(crate) const PORT: u32 = 1;
/// Number of concurrent calls or messages of a queue pair.
pub(crate) const SLOTS: usize = 8;
/// Bytes of the largest message.
pub(crate) const MESSAGE_SIZE: usize = 8192;
/// Bytes of the largest region.
pub(crate) const REGION_SIZE: usize = 65536;

const QKEY: u32 = 0x1111_1111;
const RECEIVES: usize = 16;
const DEPTH: u32 = 32;
/// Retries without limit.
const RNR_RETRY: u8 = 7;
/// Timeout of waiting for the next completion.
const PATIENCE: Delta = Delta::from_secs(20);

/// Events that a session waits for.
#[derive(Default)]
struct Events {
    /// There may be completions.
    completed: bool,
    /// The device is about to be removed.
    ended: bool,
}

/// Wakes the session for completions, and before the device is removed.
#[pin_data]
pub(crate) struct Wake {
    #[pin]
    events: SpinLockIrq<Events>,
    #[pin]
    changed: CondVar,
}

impl Wake {
    /// Creates a waker without pending events.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                events <- new_spinlock_irq!(Events::default(), "rdma_exchange_events"),
                changed <- new_condvar!("rdma_exchange_changed"),
            }),
            GFP_KERNEL,
        )
    }

    /// Ends the session's use of the device.
    pub(crate) fn end(&self) {
        self.events.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits for completions, and consumes their event.
    ///
    /// # Errors
    ///
    /// - [`EIO`] if the device is about to be removed.
    /// - [`ETIMEDOUT`] if there are none in time.
    /// - [`EINTR`] if the task has a pending signal.
    fn wait(&self, time: Delta) -> Result {
        let millis = time.as_millis().clamp(0, i64::from(u32::MAX));
        // CAST: Clamped to the range of `u32` above.
        let mut left = msecs_to_jiffies(millis as u32);
        let mut events = self.events.lock();
        loop {
            if events.ended {
                return Err(EIO);
            }
            if core::mem::take(&mut events.completed) {
                return Ok(());
            }
            left = match self.changed.wait_interruptible_timeout(&mut events, left) {
                CondVarTimeoutResult::Woken { jiffies } => jiffies,
                CondVarTimeoutResult::Signal { .. } => return Err(EINTR),
                CondVarTimeoutResult::Timeout => return Err(ETIMEDOUT),
            };
        }
    }
}

impl CompletionHandler for Wake {
    fn completed(&self) {
        self.events.lock().completed = true;
        self.changed.notify_all();
    }
}

/// Purposes of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Receives a message.
    Receive,
    /// Sends data.
    Data,
    /// Registers the region of a call.
    Register,
    /// Sends the call.
    Call,
    /// Invalidates the registration.
    Invalidate,
    /// Reads the region of a call.
    Read,
    /// Writes the region of a call.
    Write,
    /// Sends the answer.
    Answer,
}

/// Id of a work request.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) step: Step,
    /// Index of its queue pair.
    pub(crate) pair: usize,
    /// Index of its slot, or of the receive.
    pub(crate) slot: usize,
}

impl Work {
    fn encode(self) -> u64 {
        // CAST: A few bits each.
        (self.step as u64) << 32 | (self.pair as u64) << 16 | self.slot as u64
    }

    fn decode(id: u64) -> Result<Self> {
        use Step::*;

        const STEPS: [Step; 8] = [
            Receive, Data, Register, Call, Invalidate, Read, Write, Answer,
        ];
        // CAST: Each part has at most 32 bits.
        Ok(Self {
            step: *STEPS.get((id >> 32) as usize).ok_or(EBADMSG)?,
            pair: (id >> 16) as usize & 0xffff,
            slot: id as usize & 0xffff,
        })
    }
}

/// A queue pair, the peer's queue pair, and its memory.
pub(crate) struct Pair<'a> {
    index: usize,
    qp: QueuePair<'a>,
    peer: Option<(Arc<AddressHandle<'a>>, u32)>,
    /// Memory for received messages.
    received: Arc<Buffer<'a>>,
    /// Memory for sent messages: data and calls of each slot, then answers.
    sent: Arc<Buffer<'a>>,
    /// The region of each slot's calls.
    regions: KVec<Arc<FastRegion<'a>>>,
    /// Local memory for RDMA reads and writes of the peer's regions, for each slot.
    answers: KVec<Arc<Buffer<'a>>>,
}

impl<'a> Pair<'a> {
    /// Creates a queue pair, and posts its receives.
    fn new(pd: &Arc<Pd<'a>>, cq: &Arc<CompletionQueue<'a>>, index: usize) -> Result<Self> {
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut qp = QueuePair::new(pd, cq, cq, Transport::EFA_SRD, cap)?;
        qp.bring_up(&BringUpAttr {
            port: PORT,
            qkey: QKEY,
            sq_psn: 0,
            rnr_retry: Some(RNR_RETRY),
        })?;

        let mut regions = KVec::with_capacity(SLOTS, GFP_KERNEL)?;
        let mut answers = KVec::with_capacity(SLOTS, GFP_KERNEL)?;
        for _ in 0..SLOTS {
            regions.push(FastRegion::new(&Buffer::new(pd, REGION_SIZE)?)?, GFP_KERNEL)?;
            answers.push(Buffer::new(pd, REGION_SIZE)?, GFP_KERNEL)?;
        }
        let pair = Self {
            index,
            qp,
            peer: None,
            received: Buffer::new(pd, RECEIVES * MESSAGE_SIZE)?,
            sent: Buffer::new(pd, 2 * SLOTS * MESSAGE_SIZE)?,
            regions,
            answers,
        };
        (0..RECEIVES).try_for_each(|place| pair.receive(place))?;
        Ok(pair)
    }

    fn id(&self, step: Step, slot: usize) -> u64 {
        let pair = self.index;
        Work { step, pair, slot }.encode()
    }

    fn peer(&self) -> Result<Peer<'_, 'a>> {
        let (ah, qpn) = self.peer.as_ref().ok_or(ENOTCONN)?;
        Ok(Peer {
            ah,
            qpn: *qpn,
            qkey: QKEY,
        })
    }

    /// Returns the index of the queue pair in the session.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Returns the memory of a slot's calls.
    pub(crate) fn region(&self, slot: usize) -> &Buffer<'a> {
        self.regions[slot].buffer()
    }

    /// Returns the memory of the answers to the peer's calls of a slot.
    pub(crate) fn answer(&self, slot: usize) -> &Buffer<'a> {
        &self.answers[slot]
    }

    /// Returns the buffer and the offset of a receive's message.
    pub(crate) fn message(&self, place: usize) -> (&Buffer<'a>, usize) {
        (&self.received, place * MESSAGE_SIZE)
    }

    /// Returns the header of a message.
    ///
    /// # Errors
    ///
    /// - [`EBADMSG`] if the message is too short, or not from the peer.
    pub(crate) fn header(&self, place: usize, received: &Received) -> Result<Header> {
        let (length, from) = (received.byte_len, received.src_qp);
        // CAST: `usize` has 64 bits on every architecture that has RDMA.
        if (length as usize) < HEADER_SIZE || self.peer()?.qpn != from {
            pr_err!("A message of {length} bytes has come from queue pair {from}\n");
            return Err(EBADMSG);
        }
        let (buffer, offset) = self.message(place);
        let mut bytes = [0; HEADER_SIZE];
        buffer.read(offset, &mut bytes)?;
        Header::decode(&bytes)
    }

    /// Posts a receive.
    pub(crate) fn receive(&self, place: usize) -> Result {
        // CAST: At most `MESSAGE_SIZE`.
        let slice = Slice::new(&self.received, place * MESSAGE_SIZE, MESSAGE_SIZE as u32)?;
        self.qp.post_recv(self.id(Step::Receive, place), slice)
    }

    /// Sends a header, followed by `data` bytes of its pattern.
    pub(crate) fn send(&self, step: Step, slot: usize, header: &Header, data: usize) -> Result {
        let place = if step == Step::Answer {
            SLOTS + slot
        } else {
            slot
        };
        let offset = place * MESSAGE_SIZE;
        self.sent.write(offset, &header.encode())?;
        wire::fill(&self.sent, offset + HEADER_SIZE, data, header.seed)?;
        // CAST: At most `MESSAGE_SIZE`.
        let slice = Slice::new(&self.sent, offset, (HEADER_SIZE + data) as u32)?;
        let id = self.id(step, slot);
        self.qp.post_send(id, self.peer()?, slice, Operation::Send)
    }

    /// Registers `length` bytes of a slot's region; returns their address and remote key.
    pub(crate) fn register(&self, slot: usize, length: u32) -> Result<RemoteMemory> {
        let region = &self.regions[slot];
        let part = Slice::new(region.buffer(), 0, length)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let id = self.id(Step::Register, slot);
        self.qp.post_reg_mr(id, region, part, access)
    }

    /// Invalidates the registration of a slot's region.
    pub(crate) fn invalidate(&self, slot: usize) -> Result {
        let id = self.id(Step::Invalidate, slot);
        self.qp.post_local_inv(id, &self.regions[slot])
    }

    /// Reads the region of a peer's call into the memory of its answer.
    pub(crate) fn read(&self, call: &Header) -> Result {
        self.rdma(Step::Read, call, |memory| Operation::RdmaRead(memory))
    }

    /// Writes that memory to the region, optionally with immediate data.
    pub(crate) fn write(&self, call: &Header, imm_data: Option<u32>) -> Result {
        self.rdma(Step::Write, call, |memory| match imm_data {
            Some(data) => Operation::RdmaWriteWithImm(memory, data),
            None => Operation::RdmaWrite(memory),
        })
    }

    fn rdma(
        &self,
        step: Step,
        call: &Header,
        operation: impl FnOnce(&RemoteMemory) -> Operation<'_>,
    ) -> Result {
        let memory = RemoteMemory {
            addr: call.addr,
            rkey: call.rkey,
        };
        // CAST: `usize` has 64 bits on every architecture that has RDMA.
        let slot = call.slot as usize;
        let slice = Slice::new(&self.answers[slot], 0, call.length)?;
        let id = self.id(step, slot);
        self.qp
            .post_send(id, self.peer()?, slice, operation(&memory))
    }
}

/// Handler of completions.
pub(crate) trait Job<'a> {
    /// Handles the completion of a work request that succeeded.
    fn completed(&mut self, pair: &Pair<'a>, work: Work, received: Option<Received>) -> Result;

    /// Returns whether all work is done, and no work request of it outstanding.
    fn is_done(&self) -> bool;
}

/// Objects that exist from `open` to `close`.
pub(crate) struct Session<'a> {
    pub(crate) pairs: KVec<Pair<'a>>,
    cq: Arc<CompletionQueue<'a>>,
    pd: Arc<Pd<'a>>,
    wake: Arc<Wake>,
}

impl<'a> Session<'a> {
    /// Creates `pairs` queue pairs, and the objects that they need.
    pub(crate) fn open(device: &'a Device, wake: &Arc<Wake>, pairs: usize) -> Result<Self> {
        let pd = Pd::new(device)?;
        // CAST: A few pairs.
        let depth = pairs as u32 * 4 * DEPTH;
        let cq = CompletionQueue::new(device, depth, 0, wake.clone())?;
        let mut session = Self {
            pairs: KVec::with_capacity(pairs, GFP_KERNEL)?,
            cq,
            pd,
            wake: wake.clone(),
        };
        for index in 0..pairs {
            let pair = Pair::new(&session.pd, &session.cq, index)?;
            session.pairs.push(pair, GFP_KERNEL)?;
        }
        Ok(session)
    }

    /// Returns the numbers of the queue pairs.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + use<'_, 'a> {
        self.pairs.iter().map(|pair| pair.qp.qp_num())
    }

    /// Assigns one of the peer's queue pairs to each queue pair.
    pub(crate) fn meet(&mut self, gid: &Gid, numbers: &[u32]) -> Result {
        if numbers.len() != self.pairs.len() {
            return Err(EINVAL);
        }
        let ah = AddressHandle::new(&self.pd, PORT, gid)?;
        for (pair, number) in self.pairs.iter_mut().zip(numbers) {
            pair.peer = Some((ah.clone(), *number));
        }
        Ok(())
    }

    /// Polls completions for a job until it is done.
    ///
    /// # Errors
    ///
    /// - [`EIO`] if the device is about to be removed.
    /// - [`ETIMEDOUT`] if nothing completes in time, [`EINTR`] if the task has a pending signal.
    /// - [`EBADMSG`] if a work request fails.
    /// - Those of the job.
    pub(crate) fn run(&self, job: &mut impl Job<'a>) -> Result {
        let mut last = Instant::<Monotonic>::now();
        while !job.is_done() {
            if self.wake.events.lock().ended {
                return Err(EIO);
            }
            if let Some(completion) = self.cq.poll()? {
                self.completed(job, &completion)?;
                last = Instant::now();
            } else if !self.cq.request_notify()? {
                let waited = self.wake.wait(PATIENCE - last.elapsed());
                if waited == Err(ETIMEDOUT) {
                    pr_err!(
                        "Nothing has completed for {} s\n",
                        PATIENCE.as_millis() / 1000
                    );
                }
                waited?;
            }
        }
        Ok(())
    }

    fn completed(&self, job: &mut impl Job<'a>, completion: &Completion<'a>) -> Result {
        let work = Work::decode(completion.id)?;
        let pair = self.pairs.get(work.pair).ok_or(EBADMSG)?;
        match completion.status {
            WcStatus::Success => {}
            WcStatus::WrFlushErr => return Err(EIO),
            status => {
                pr_err!(
                    "{:?} in slot {} of queue pair {} has ended with status {} ({})\n",
                    work.step,
                    work.slot,
                    pair.qp.qp_num(),
                    status as u32,
                    completion.vendor_err
                );
                return Err(EBADMSG);
            }
        }
        job.completed(pair, work, completion.received)
    }
}
