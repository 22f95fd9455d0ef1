// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The handlers of the completions that an event queue reports.

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::Arc, //
};

use crate::sys::lock::{
    new_irq_lock,
    IrqLock, //
};

/// Limit on handlers that are woken with interrupts disabled. A program may have 2^16 queues.
const BUDGET: u32 = 64;

/// The handler of events of a completion queue.
pub(crate) trait CompletionHandler: Send + Sync + 'static {
    /// Called in interrupt context, with a spinlock held.
    fn completed(&self);

    /// Called when there may be completions that the device does not report, with a spinlock held.
    fn wake(&self) {}
}

/// The handlers of an event queue, by the numbers of their completion queues.
#[pin_data]
pub(crate) struct Subscribers {
    #[pin]
    handlers: IrqLock<RBTree<u16, Arc<dyn CompletionHandler>>>,
}

impl Subscribers {
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                handlers <- new_irq_lock!(RBTree::new(), c"efa_subscribers"),
            }),
            GFP_KERNEL,
        )
    }

    /// Registers `handler` for completions in the queue with number `cqn`. It replaces the handler
    /// of a queue with this number that is being destroyed.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        cqn: u16,
        handler: Arc<dyn CompletionHandler>,
    ) -> Result<Subscription> {
        let place = place_of(&handler);
        let node = RBTreeNode::new(cqn, handler, GFP_KERNEL)?;

        // The replaced handler is dropped with no lock held.
        let before = self.handlers.with(|handlers| handlers.insert(node));
        drop(before);
        Ok(Subscription {
            subscribers: self.clone(),
            cqn,
            place,
        })
    }

    /// Wakes all handlers: see [`CompletionHandler::wake`].
    pub(super) fn wake(&self) {
        let mut next = Some(0);
        while let Some(first) = next {
            next = self.wake_some(first);
        }
    }

    /// Wakes at most [`BUDGET`] handlers, from the one of queue `first` on. Returns where to go on.
    fn wake_some(&self, first: u16) -> Option<u16> {
        self.handlers.with(|handlers| {
            let mut next = Some(first);
            for _ in 0..BUDGET {
                let cursor = handlers.cursor_lower_bound(&next?)?;
                let (number, handler) = cursor.current();
                handler.wake();
                next = number.checked_add(1);
            }
            next
        })
    }

    /// Calls the handler of a queue, and returns whether there is one.
    pub(super) fn notify(&self, cqn: u16) -> bool {
        self.handlers.with(|handlers| {
            let handler = handlers.get(&cqn);
            if let Some(handler) = handler {
                handler.completed();
            }
            handler.is_some()
        })
    }
}

/// The subscription of a handler. Drop unregisters the handler.
pub(crate) struct Subscription {
    subscribers: Arc<Subscribers>,
    cqn: u16,
    /// Address of the handler, as another queue may get the number before this is dropped.
    place: usize,
}

fn place_of(handler: &Arc<dyn CompletionHandler>) -> usize {
    Arc::as_ptr(handler).cast::<()>().addr()
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let handler = self.subscribers.handlers.with(|handlers| {
            let handler = handlers.get(&self.cqn)?;
            if place_of(handler) != self.place {
                return None;
            }
            handlers.remove(&self.cqn)
        });
        // The handler is dropped with no lock held.
        drop(handler);
    }
}
