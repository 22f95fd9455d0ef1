// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Who is told of the completions that an event queue reports.

use kernel::{
    new_spinlock_irq,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};

/// What is told of completions in a completion queue.
pub(crate) trait CompletionHandler: Send + Sync + 'static {
    /// Called in interrupt context, with a spinlock held.
    fn completed(&self);
}

/// The handlers of an event queue, by the numbers of their completion queues.
#[pin_data]
pub(crate) struct Subscribers {
    #[pin]
    handlers: SpinLockIrq<RBTree<u16, Arc<dyn CompletionHandler>>>,
}

impl Subscribers {
    /// Makes an empty set.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                handlers <- new_spinlock_irq!(RBTree::new(), "efa_subscribers"),
            }),
            GFP_KERNEL,
        )
    }

    /// Has `handler` told of completions in the queue with number `cqn`.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    /// - [`EINVAL`] if there is a handler for this number.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        cqn: u16,
        handler: Arc<dyn CompletionHandler>,
    ) -> Result<Subscription> {
        let node = RBTreeNode::new(cqn, handler, GFP_KERNEL)?;

        let mut handlers = self.handlers.lock();
        if handlers.get(&cqn).is_some() {
            return Err(EINVAL);
        }
        handlers.insert(node);
        Ok(Subscription {
            subscribers: self.clone(),
            cqn,
        })
    }

    /// Tells the handler of a queue, and returns whether there is one.
    pub(super) fn notify(&self, cqn: u16) -> bool {
        let handlers = self.handlers.lock();
        let handler = handlers.get(&cqn);
        if let Some(handler) = handler {
            handler.completed();
        }
        handler.is_some()
    }
}

/// A handler's being told; when this is dropped it is not called any more.
pub(crate) struct Subscription {
    subscribers: Arc<Subscribers>,
    cqn: u16,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // The handler is dropped with no lock held.
        let handler = self.subscribers.handlers.lock().remove(&self.cqn);
        drop(handler);
    }
}
