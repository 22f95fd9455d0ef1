// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues.

use kernel::{
    error::to_result,
    ffi::c_int,
    new_spinlock_irq,
    pr_err_once,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};

use super::{
    ah::AddressHandle,
    device::{
        Device,
        Owned, //
    },
    handler::{
        on_completion,
        CompletionHandler,
        Handler, //
    },
    object::{
        Object,
        Raw, //
    },
    posted::{
        Held,
        Outstanding,
        Posted, //
    },
};
use crate::{
    ffi,
    rdma::{
        WcOpcode,
        WcStatus, //
    }, //
};

/// Completion of a work request. It returns the objects that the request has used.
pub(crate) struct Completion<'a> {
    /// Id of the work request that the client has chosen.
    pub(crate) id: u64,
    /// Status of the work request.
    pub(crate) status: WcStatus,
    /// Device-specific error code.
    pub(crate) vendor_err: u32,
    /// Operation of the work request.
    pub(crate) opcode: WcOpcode,
    /// Object that the work request has used. The device no longer uses it for this request.
    pub(crate) held: Held<'a>,
    /// Details of the received message, if a receive has succeeded.
    pub(crate) received: Option<Received>,
    /// Address handle of the peer. A drop may release the last reference, and so may sleep.
    _ah: Option<Arc<AddressHandle<'a>>>,
}

/// Details of a received message.
#[derive(Clone, Copy)]
pub(crate) struct Received {
    /// Number of received bytes.
    pub(crate) byte_len: u32,
    /// Number of the peer's queue pair.
    pub(crate) src_qp: u32,
    /// Immediate data, if there is any.
    pub(crate) imm_data: Option<u32>,
}

/// Outstanding work requests of a completion queue's queue pairs, by the address of the `ib_qp`.
type Pairs<'a> = RBTree<usize, Arc<Outstanding<'a>>>;

/// Queue of completions of one or more queue pairs.
#[pin_data]
pub(crate) struct CompletionQueue<'a> {
    owned: Owned<'a, ffi::ib_cq, KBox<Handler<'a>>>,
    #[pin]
    pairs: SpinLockIrq<Pairs<'a>>,
}

impl<'a> CompletionQueue<'a> {
    /// Creates a queue of at least `cqe` entries, whose events use a vector of the device.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if the number of entries is 0 or too large, or there is no such vector.
    /// - [`ENOMEM`] if there is no memory.
    /// - Those of the provider.
    pub(crate) fn new(
        device: &'a Device,
        cqe: u32,
        comp_vector: u32,
        handler: Arc<dyn CompletionHandler + 'a>,
    ) -> Result<Arc<Self>> {
        if cqe == 0 || comp_vector >= device.num_comp_vectors() {
            return Err(EINVAL);
        }
        let attr = ffi::ib_cq_init_attr {
            cqe,
            comp_vector,
            flags: 0,
        };
        let handler = Handler::new(handler)?;
        let gate = handler.gate().clone();
        let create = |handler: &KBox<Handler<'a>>| {
            let (raw, name) = (device.as_raw(), device.owner_name());
            let context = handler.context();
            // SAFETY: The device is registered, the name static, and `on_completion` takes the
            // context.
            let raw = unsafe {
                ffi::__ib_create_cq(raw, Some(on_completion), None, context, &attr, name)
            };
            Raw::created(raw)
        };
        let object = |cq| Object::Cq(cq, gate);
        // SAFETY: The queue is new, and needs only its handler, to which the gate belongs.
        let owned = unsafe { Owned::new(device, handler, object, create) }?;
        Arc::pin_init(
            pin_init!(Self {
                owned,
                pairs <- new_spinlock_irq!(RBTree::new(), "rdma_client_pairs"),
            }),
            GFP_KERNEL,
        )
    }

    /// Removes and returns a completion, if there is one. May be called in any context.
    ///
    /// # Errors
    ///
    /// - [`EIO`] if the provider has reported more invalid completions than there are entries.
    /// - Those of the provider.
    ///
    /// # Examples
    ///
    /// ```ignore
    /// while let Some(completion) = cq.poll()? {
    ///     if completion.status != WcStatus::Success {
    ///         return Err(EIO);
    ///     }
    ///     self.completed(completion.id)?;
    /// }
    /// ```
    pub(crate) fn poll(&self) -> Result<Option<Completion<'a>>> {
        // SAFETY: The device is registered, so this function does not change.
        let poll = unsafe { (*self.owned.device().ops()).poll_cq };
        let poll = poll.ok_or(EOPNOTSUPP)?;
        let mut wc = ffi::ib_wc::default();

        // No queue pair is removed from the tree while this lock is held.
        let pairs = self.pairs.lock();
        // SAFETY: `self` keeps the queue alive.
        for _ in 0..=unsafe { (*self.owned.as_ptr()).cqe } {
            // SAFETY: `self` keeps the queue alive; there is room for one completion.
            let count = unsafe { poll(self.owned.as_ptr(), 1, &mut wc) };
            if count <= 0 {
                to_result(count)?;
                return Ok(None);
            }
            // SAFETY: Both variants of the union, an integer and a pointer, have 64 bits.
            let number = unsafe { (&raw const wc.__bindgen_anon_1).cast::<u64>().read() };
            let posted = pairs.get(&wc.qp.addr()).and_then(|pair| pair.take(number));
            match posted {
                Some(posted) => return Ok(Some(Completion::new(posted, &wc))),
                // The work request was never posted, or has completed before.
                None => pr_err_once!("Ignored a completion without a work request\n"),
            }
        }
        // The bound prevents an endless loop if a provider keeps reporting invalid completions.
        Err(EIO)
    }

    /// Requests notification of the next completion. Returns whether completions may be pending.
    /// May be called in any context.
    ///
    /// # Errors
    ///
    /// - Those of the provider.
    pub(crate) fn request_notify(&self) -> Result<bool> {
        // SAFETY: The device is registered, so this function does not change.
        let notify = unsafe { (*self.owned.device().ops()).req_notify_cq };
        let notify = notify.ok_or(EOPNOTSUPP)?;
        let flags = ffi::ib_cq_notify_flags_IB_CQ_NEXT_COMP
            | ffi::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS;
        // SAFETY: `self` keeps the queue alive.
        let missed = unsafe { notify(self.owned.as_ptr(), flags) };
        if missed < 0 {
            to_result(missed)?;
        }
        Ok(missed > 0)
    }

    /// Returns the device.
    pub(super) fn device(&self) -> &'a Device {
        self.owned.device()
    }

    /// Returns the core's structure.
    pub(super) fn as_raw(&self) -> *mut ffi::ib_cq {
        self.owned.as_ptr()
    }
}

impl<'a> Completion<'a> {
    /// Makes a completion from the posted work request and the provider's completion.
    fn new(posted: Posted<'a>, wc: &ffi::ib_wc) -> Self {
        let status = status(wc.status);
        // Without success, only the id, queue pair, status and `vendor_err` need be valid.
        let succeeded = status == WcStatus::Success;
        let (opcode, received) = match posted.opcode {
            WcOpcode::Recv if succeeded => {
                // CAST: The flag fits in a `c_int`.
                let has_imm = wc.wc_flags & ffi::ib_wc_flags_IB_WC_WITH_IMM as c_int != 0;
                let opcode = match wc.opcode {
                    ffi::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM => WcOpcode::RecvRdmaWithImm,
                    _ => WcOpcode::Recv,
                };
                // SAFETY: All variants of the union are integers.
                let imm_data = u32::from_be(unsafe { (&raw const wc.ex).cast::<u32>().read() });
                let received = Received {
                    byte_len: wc.byte_len,
                    src_qp: wc.src_qp,
                    imm_data: has_imm.then_some(imm_data),
                };
                (opcode, Some(received))
            }
            opcode => (opcode, None),
        };
        Self {
            id: posted.id,
            status,
            vendor_err: wc.vendor_err,
            opcode,
            held: posted.held,
            received,
            _ah: posted.ah,
        }
    }
}

/// Converts the core's status. Unknown values become a general error.
fn status(raw: ffi::ib_wc_status) -> WcStatus {
    match raw {
        ffi::ib_wc_status_IB_WC_SUCCESS => WcStatus::Success,
        ffi::ib_wc_status_IB_WC_LOC_LEN_ERR => WcStatus::LocLenErr,
        ffi::ib_wc_status_IB_WC_LOC_QP_OP_ERR => WcStatus::LocQpOpErr,
        ffi::ib_wc_status_IB_WC_LOC_PROT_ERR => WcStatus::LocProtErr,
        ffi::ib_wc_status_IB_WC_WR_FLUSH_ERR => WcStatus::WrFlushErr,
        ffi::ib_wc_status_IB_WC_BAD_RESP_ERR => WcStatus::BadRespErr,
        ffi::ib_wc_status_IB_WC_REM_INV_REQ_ERR => WcStatus::RemInvReqErr,
        ffi::ib_wc_status_IB_WC_REM_ACCESS_ERR => WcStatus::RemAccessErr,
        ffi::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExcErr,
        ffi::ib_wc_status_IB_WC_REM_INV_RD_REQ_ERR => WcStatus::RemInvRdReqErr,
        ffi::ib_wc_status_IB_WC_REM_OP_ERR => WcStatus::RemOpErr,
        ffi::ib_wc_status_IB_WC_REM_ABORT_ERR => WcStatus::RemAbortErr,
        ffi::ib_wc_status_IB_WC_RESP_TIMEOUT_ERR => WcStatus::RespTimeoutErr,
        _ => WcStatus::GeneralErr,
    }
}

/// Entry of a queue pair in a completion queue, to be dropped after the queue pair is destroyed.
pub(super) struct Member<'a> {
    cq: Arc<CompletionQueue<'a>>,
    key: usize,
    outstanding: Arc<Outstanding<'a>>,
}

impl<'a> Member<'a> {
    /// Adds a queue pair without completions so far to a completion queue.
    pub(super) fn new(
        cq: Arc<CompletionQueue<'a>>,
        place: RBTreeNodeReservation<usize, Arc<Outstanding<'a>>>,
        pair: *mut ffi::ib_qp,
        outstanding: Arc<Outstanding<'a>>,
    ) -> Self {
        let key = pair.addr();
        let node = place.into_node(key, outstanding.clone());
        // This may replace the entry of a destroyed queue pair at the same address.
        let before = cq.pairs.lock().insert(node);
        drop(before);
        Self {
            cq,
            key,
            outstanding,
        }
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        // `poll` holds this lock while it handles a completion of the queue pair.
        let mut pairs = self.cq.pairs.lock();
        // A newer queue pair may have the same address.
        let is_own = |pair| Arc::ptr_eq(pair, &self.outstanding);
        let outstanding = if pairs.get(&self.key).is_some_and(is_own) {
            pairs.remove(&self.key)
        } else {
            None
        };
        drop(pairs);
        drop(outstanding);
    }
}
