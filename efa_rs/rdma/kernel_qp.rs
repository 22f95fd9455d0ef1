// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Callbacks of queue pairs that only clients in the kernel use.

use kernel::{
    ffi::c_int,
    prelude::*, //
};

use super::{
    object::ObjectOf,
    ops::Ops,
    provider::Provider,
    qp::{
        add_common_ops,
        QueuePair, //
    },
    work::{
        RecvWrs,
        SendWrs, //
    }, //
};
use crate::ffi;

/// Adds the callbacks of queue pairs of clients in the kernel to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    if P::Qp::HAS_CREATE_KERNEL {
        add_common_ops::<P>(ops);
        ops.create_ah = ops.create_user_ah;
        ops.post_send = Some(Ops::<P>::post_send);
        ops.post_recv = Some(Ops::<P>::post_recv);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Posts send work requests. If this fails, `bad_wr` is the first one that was not posted.
    ///
    /// # Safety
    ///
    /// Each work request is in the structure of its transport, and
    /// refers to objects that are not destroyed before it has completed.
    unsafe extern "C" fn post_send(
        qp: *mut ffi::ib_qp,
        wr: *const ffi::ib_send_wr,
        bad_wr: *mut *const ffi::ib_send_wr,
    ) -> c_int {
        // SAFETY: By the contract, `create_qp` has created the queue pair.
        let (pair, device) = unsafe { Self::object(qp) };
        // SAFETY: By the contract, `create_qp` has initialized the data of the queue pair.
        let own = unsafe { ObjectOf::<P, _>::extra(qp) }.own.as_ref();
        // A queue pair of a program has none. Its work requests would have addresses of the program.
        let (left, result) = match own.and_then(|own| own.layout.zip(Some(own.queues()[0]))) {
            None => (wr, Err(EOPNOTSUPP)),
            Some((layout, queue)) => {
                // SAFETY: A work request names the region, which is not destroyed before it has completed.
                let mr_of = |mr| unsafe { Self::object(mr) }.0;
                // SAFETY: The requirement of this function guarantees valid references and this
                // layout, except for the core's own RDMA write, whose address is zero.
                let mut wrs = unsafe { SendWrs::new(wr, layout, queue, mr_of) };
                let result = pair.post_send(device, &mut wrs);
                (wrs.as_raw(), result)
            }
        };
        // SAFETY: By the contract, there is room for a pointer.
        unsafe { posted(bad_wr, left, result) }
    }

    /// Posts receive work requests. If this fails, `bad_wr` is the first one that was not posted.
    unsafe extern "C" fn post_recv(
        qp: *mut ffi::ib_qp,
        wr: *const ffi::ib_recv_wr,
        bad_wr: *mut *const ffi::ib_recv_wr,
    ) -> c_int {
        // SAFETY: By the contract, `create_qp` has created the queue pair.
        let (pair, device) = unsafe { Self::object(qp) };
        // SAFETY: By the contract, `create_qp` has initialized the data of the queue pair.
        let (left, result) = match &unsafe { ObjectOf::<P, _>::extra(qp) }.own {
            None => (wr, Err(EOPNOTSUPP)),
            Some(own) => {
                // SAFETY: By the contract, the work requests are valid, and so are the buffers that they point to.
                let mut wrs = unsafe { RecvWrs::new(wr, own.queues()[1]) };
                let result = pair.post_recv(device, &mut wrs);
                (wrs.as_raw(), result)
            }
        };
        // SAFETY: By the contract, there is room for a pointer.
        unsafe { posted(bad_wr, left, result) }
    }
}

/// Returns the result of a post callback. `left` is the first work request that was not accepted,
/// or null. The client considers those before it as posted, and frees the resources of the others.
///
/// # Safety
///
/// `place` must have room for a pointer.
unsafe fn posted<T>(place: *mut *const T, left: *const T, result: Result) -> c_int {
    if left.is_null() {
        return 0;
    }
    // SAFETY: The caller guarantees that there is room.
    unsafe { *place = left };
    result.err().unwrap_or(EINVAL).to_errno()
}
