// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queues that report completions too early, to other queues, and of other queue pairs.

use std::cell::RefCell;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    rdma::{
        self,
        Context,
        CqInitAttr,
        Device,
        KernelCqInitAttr,
        QpInitAttr,
        QpRef,
        RecvWrs,
        Udata,
        WcStatus,
        WorkCompletion,
        WorkCompletions,
        WrToken, //
    },
    Careless,
    Object, //
};

std::thread_local! {
    /// Work requests that were accepted, the oldest first.
    static TOKENS: RefCell<Vec<WrToken>> = const { RefCell::new(Vec::new()) };
    /// Their queue pairs.
    static PAIRS: RefCell<Vec<Arc<QpRef>>> = const { RefCell::new(Vec::new()) };
}

#[vtable]
impl<'a> rdma::CompletionQueue<'a, Careless> for Object {
    /// Reports a completion of a queue that it does not create.
    fn create_user(
        _device: &Device<()>,
        _context: &mut Context<'_, 'a, Careless>,
        attr: &CqInitAttr<'_, 'a>,
        _udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        attr.events.notify();
        Err(ENOMEM)
    }

    fn create_kernel(
        _device: &Device<()>,
        _attr: &KernelCqInitAttr<'_>,
    ) -> impl PinInit<Self, Error> {
        Ok(Self)
    }

    /// Completes the newest work request of any queue, as one of the queue pair of the oldest.
    fn poll(&self, _device: &Device<()>, completions: &mut WorkCompletions<'_>) {
        let token = TOKENS.with(|all| all.borrow_mut().pop());
        if let Some((place, token)) = completions.place().zip(token) {
            let qp = PAIRS.with(|all| all.borrow_mut().remove(0));
            let completion = WorkCompletion {
                qp: &qp,
                port_num: 1,
                status: WcStatus::Success,
                vendor_err: 0,
            };
            place.complete(token, &completion);
        }
    }
}

/// A queue pair.
pub(crate) struct Pair(Arc<QpRef>);

#[vtable]
impl<'a> rdma::QueuePair<'a, Careless> for Pair {
    fn create_kernel(
        _device: &Device<()>,
        _attr: &QpInitAttr<'_, 'a, Careless>,
        qp: &Arc<QpRef>,
        _signal_all: bool,
    ) -> impl PinInit<Self, Error> {
        Ok(Self(qp.clone()))
    }

    fn post_recv(&self, _device: &Device<()>, wrs: &mut RecvWrs<'_>) -> Result {
        while let Some(next) = wrs.peek() {
            TOKENS.with(|all| all.borrow_mut().push(next.accept()));
            PAIRS.with(|all| all.borrow_mut().push(self.0.clone()));
        }
        Ok(())
    }
}
