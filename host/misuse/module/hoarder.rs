// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A client that leaks a region and completion queues, also in the handler of one.

use std::cell::Cell;

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use crate::rdma::client::{
    client_slot,
    Buffer,
    Client,
    CompletionHandler,
    CompletionQueue,
    Device,
    FastRegion,
    Pd,
    Registration, //
};

std::thread_local! {
    /// Number of calls of handlers.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Returns the number of calls of handlers.
pub fn calls() -> u32 {
    CALLS.get()
}

/// Registers the client, until the result is dropped.
///
/// # Errors
///
/// Those of the registration.
pub fn register() -> Result<Pin<KBox<impl Sized>>> {
    KBox::pin_init(Registration::<Hoarder>::new(), GFP_KERNEL)
}

/// The client.
struct Hoarder;

client_slot!(Hoarder);

impl Client for Hoarder {
    const NAME: &'static CStr = c"hoarder";
    type Data<'a> = ();

    fn add<'a>(device: &'a Device) -> impl PinInit<(), Error> + 'a {
        let buffer = Buffer::new(&Pd::new(device)?, 4096)?;
        core::mem::forget(FastRegion::new(&buffer)?);
        hoard(device, Arc::new(Slow(device), GFP_KERNEL)?)
    }
}

/// Creates a completion queue, and leaks it.
fn hoard<'a>(device: &'a Device, handler: Arc<dyn CompletionHandler + 'a>) -> Result {
    core::mem::forget(CompletionQueue::new(device, 1, 0, handler)?);
    Ok(())
}

/// A handler that creates another queue, after a while.
struct Slow<'a>(&'a Device);

impl CompletionHandler for Slow<'_> {
    fn completed(&self) {
        CALLS.set(CALLS.get() + 1);
        fsleep(Delta::from_millis(5));
        let _ = hoard(self.0, Arc::new(Counter, GFP_KERNEL).expect("memory"));
    }
}

/// A handler that counts its calls.
struct Counter;

impl CompletionHandler for Counter {
    fn completed(&self) {
        CALLS.set(CALLS.get() + 1);
    }
}
