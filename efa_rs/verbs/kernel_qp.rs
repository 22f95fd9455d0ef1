// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs that clients in the kernel post to.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    ah::Ah,
    attached::Sides,
    kernel_cq::KernelCq,
    kernel_qp_sizes::Limits,
    kernel_wqe,
    mr::Mr, //
};
use crate::{
    com::{
        Cause,
        CommandError,
        Epoch, //
    },
    io::{
        Buffer,
        PostSide,
        PostState,
        RecvRing,
        SendRing, //
    },
    rdma::{
        QpRef,
        QpState,
        QpType,
        RecvWrs,
        SendWrs,
        WrToken, //
    },
    sys::lock::{
        new_irq_lock,
        IrqLock, //
    },
};

/// A send queue.
pub(super) struct SendQueue<'a> {
    pub(super) ring: SendRing<'a>,
    pub(super) requests: PostSide<WrToken>,
}

/// A receive queue.
pub(super) struct RecvQueue<'a> {
    pub(super) ring: RecvRing<'a>,
    pub(super) requests: PostSide<WrToken>,
}

/// A queue pair that a client in the kernel posts to.
#[pin_data]
pub(super) struct KernelQp<'a> {
    #[pin]
    send: IrqLock<SendQueue<'a>>,
    #[pin]
    recv: IrqLock<Option<RecvQueue<'a>>>,
    epoch: Arc<Epoch<'a>>,
    fixed: Fixed<'a>,
}

/// What does not change.
pub(super) struct Fixed<'a> {
    pub(super) send_cq: Arc<KernelCq<'a>>,
    pub(super) recv_cq: Arc<KernelCq<'a>>,
    /// The queue pair in completions. Distinguishes it from earlier ones with the same number.
    pub(super) qp: Arc<QpRef>,
    pub(super) qp_num: u16,
    pub(super) qp_type: QpType,
    pub(super) limits: Limits,
    /// Whether all work requests have completions, signaled or not. The device completes each one,
    /// so unsignaled ones are refused otherwise.
    pub(super) signals_all: bool,
}

impl<'a> KernelQp<'a> {
    /// Creates a queue pair of its parts, and attaches it to its completion queues. `sides` are the
    /// polling sides of the queues.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        send: SendQueue<'a>,
        recv: Option<RecvQueue<'a>>,
        sides: Sides,
        fixed: Fixed<'a>,
    ) -> Result<Arc<Self>> {
        let pair = Arc::pin_init(
            pin_init!(Self {
                epoch: fixed.send_cq.epoch().clone(),
                send <- new_irq_lock!(send, c"efa_send_queue"),
                recv <- new_irq_lock!(recv, c"efa_receive_queue"),
                fixed,
            }),
            GFP_KERNEL,
        )?;
        pair.attach(sides).inspect_err(|_| pair.detach())?;
        Ok(pair)
    }

    fn attach(&self, mut sides: Sides) -> Result {
        if !Arc::ptr_eq(&self.fixed.send_cq, &self.fixed.recv_cq) {
            let recv = sides.recv.take();
            let recv = Sides { send: None, recv };
            self.fixed
                .recv_cq
                .attach(self.fixed.qp_num, &self.fixed.qp, recv)?;
        }
        self.fixed
            .send_cq
            .attach(self.fixed.qp_num, &self.fixed.qp, sides)
    }

    /// Detaches it from its completion queues. The device has destroyed it, or was stopped.
    pub(super) fn detach(&self) {
        self.cqs()
            .for_each(|cq| cq.detach(self.fixed.qp_num, &self.fixed.qp));
    }

    /// Returns whether the device may use memory of work requests, which were not polled as completed.
    pub(super) fn has_posted(&self) -> bool {
        self.cqs()
            .any(|cq| cq.has_posted(self.fixed.qp_num, &self.fixed.qp))
    }

    /// Returns the completion queues, each once.
    fn cqs(&self) -> impl Iterator<Item = &Arc<KernelCq<'a>>> {
        let is_one = Arc::ptr_eq(&self.fixed.send_cq, &self.fixed.recv_cq);
        let recv_cq = (!is_one).then_some(&self.fixed.recv_cq);
        [Some(&self.fixed.send_cq), recv_cq].into_iter().flatten()
    }

    /// Changes the state from `old` to `new` by a command.
    ///
    /// # Errors
    ///
    /// Those of the command, unless `new` is the error state. A client frees posted buffers once
    /// they are flushed, so a device that does not enter that state is halted, and this succeeds.
    /// A device that refuses may have entered it by itself before, see `is_in_error`.
    pub(super) fn change_state<R>(
        &self,
        old: Option<QpState>,
        new: QpState,
        command: impl FnOnce() -> Result<R, CommandError>,
        is_in_error: impl FnOnce() -> bool,
    ) -> Result {
        if new == QpState::Err {
            self.close();
            match command() {
                Ok(_) => {}
                Err(CommandError::Status(_)) if is_in_error() => {}
                Err(CommandError::Status(_)) => self.epoch.halt(Cause::MemoryHeld),
                Err(_) => self.epoch.halt(Cause::CommandTimeout),
            }
            return Ok(());
        }
        command()?;
        if new == QpState::Reset || old == Some(QpState::Reset) {
            self.reset();
        }
        Ok(())
    }

    /// Closes the queues. Later work requests complete as flushed, after those that the device has.
    pub(super) fn close(&self) {
        self.send.with(|send| send.requests.close());
        self.recv.with(|recv| {
            if let Some(recv) = recv {
                recv.requests.close();
            }
        });
        self.cqs()
            .for_each(|cq| cq.expect_flush(self.fixed.qp_num, &self.fixed.qp));
    }

    /// Empties the queues, as the device does in the reset state: discards posted work requests
    /// and completions that were not polled.
    fn reset(&self) {
        self.send.with(|send| {
            self.recv.with(|recv| {
                self.cqs().for_each(|cq| {
                    let recv = recv.as_mut().map(|recv| &mut recv.requests);
                    cq.reset(self.fixed.qp_num, &self.fixed.qp, &mut send.requests, recv);
                });
                send.ring.reset();
                if let Some(recv) = recv {
                    recv.ring.reset();
                }
            });
        });
    }

    /// Lets clients post as the state permits.
    pub(super) fn enter(&self, state: QpState) {
        let can_send = matches!(state, QpState::Rts | QpState::Sqd);
        let can_receive = !matches!(state, QpState::Reset | QpState::Err);
        self.send.with(|send| send.requests.set_ready(can_send));
        self.recv.with(|recv| {
            if let Some(recv) = recv {
                recv.requests.set_ready(can_receive);
            }
        });
    }

    /// Posts send work requests. In the error state or on a stopped device, they are flushed.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the queue pair can't send in its state, or does not support the operation.
    /// - [`ENOMEM`] if the queue is full.
    pub(super) fn post_send(&self, wrs: &mut SendWrs<'_, Ah, Mr<'a>>) -> Result {
        let (result, is_waiting) = self.send.with(|queue| {
            match self.state(&mut queue.requests) {
                PostState::Open => {
                    let result = self.post_sends(queue, wrs);
                    queue.ring.ring_doorbell();
                    // The client is woken if the device was stopped meanwhile, as its last poll may
                    // have been before the post. The doorbell was followed by a full barrier. A
                    // poll reads in the reverse order: first the epoch, then the work requests.
                    (result, self.epoch.is_halted())
                }
                PostState::Closed => (flush_sends(queue, wrs), true),
                PostState::Unready => (Err(EINVAL), false),
            }
        });
        if is_waiting {
            self.fixed.send_cq.wake();
        }
        result
    }

    #[inline]
    fn post_sends(&self, queue: &mut SendQueue<'a>, wrs: &mut SendWrs<'_, Ah, Mr<'a>>) -> Result {
        while let Some(next) = wrs.peek() {
            let wr = next.wr();
            if !wr.is_signaled() && !self.fixed.signals_all {
                return Err(EINVAL);
            }
            let room = queue.requests.room().ok_or(ENOMEM)?;
            let wqe = queue.ring.next().ok_or(EINVAL)?;
            kernel_wqe::write(
                wr,
                self.fixed.qp_type,
                &self.fixed.limits,
                room.index(),
                wqe,
            )?;
            room.put(next.accept()?);
            queue.ring.push();
        }
        Ok(())
    }

    /// Returns whether work requests can be posted. The queues of a stopped device are closed.
    #[inline]
    fn state(&self, requests: &mut PostSide<WrToken>) -> PostState {
        let state = requests.state();
        if state == PostState::Open && self.epoch.is_closed() {
            requests.close();
            return PostState::Closed;
        }
        state
    }

    /// Posts receive work requests. In the error state or on a stopped device, they are flushed.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the queue pair can't receive in its state, or there are too many buffers.
    /// - [`ENOMEM`] if the queue is full, or the queue pair has no receive queue.
    pub(super) fn post_recv(&self, wrs: &mut RecvWrs<'_>) -> Result {
        let (result, is_waiting) = self.recv.with(|queue| {
            let Some(queue) = queue else {
                return (Err(ENOMEM), false);
            };
            match self.state(&mut queue.requests) {
                PostState::Open => {
                    let result = self.post_recvs(queue, wrs);
                    queue.ring.ring_doorbell();
                    // As in `post_send`.
                    (result, self.epoch.is_halted())
                }
                PostState::Closed => (flush_recvs(queue, wrs), true),
                PostState::Unready => (Err(EINVAL), false),
            }
        });
        if is_waiting {
            self.fixed.recv_cq.wake();
        }
        result
    }

    #[inline]
    fn post_recvs(&self, queue: &mut RecvQueue<'a>, wrs: &mut RecvWrs<'_>) -> Result {
        while let Some(next) = wrs.peek() {
            let sges = next.sges();
            if sges.len() > self.fixed.limits.recv_sges {
                return Err(EINVAL);
            }
            let room = queue.requests.room().ok_or(ENOMEM)?;
            let index = room.index();
            room.put(next.accept());
            queue.ring.push(
                index,
                sges.iter().map(|sge| Buffer {
                    addr: sge.addr(),
                    // A descriptor has 16 bits for the length. No device supports longer messages.
                    length: sge.length().try_into().unwrap_or(u16::MAX),
                    lkey: sge.lkey(),
                }),
            );
        }
        Ok(())
    }
}

/// Adds send work requests to a closed queue. The core's for a drain have no destination.
#[cold]
fn flush_sends(queue: &mut SendQueue<'_>, wrs: &mut SendWrs<'_, Ah, Mr<'_>>) -> Result {
    while let Some(next) = wrs.peek() {
        let room = queue.requests.room().ok_or(ENOMEM)?;
        room.put_closed(next.accept()?);
    }
    Ok(())
}

/// Adds receive work requests to a closed queue.
#[cold]
fn flush_recvs(queue: &mut RecvQueue<'_>, wrs: &mut RecvWrs<'_>) -> Result {
    while let Some(next) = wrs.peek() {
        let room = queue.requests.room().ok_or(ENOMEM)?;
        room.put_closed(next.accept());
    }
    Ok(())
}
