// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Clients in the kernel, and what only they have.

use core::{
    marker::PhantomData,
    ops::Deref, //
};

#[cfg(not(kverbs))]
use core::convert::Infallible;

/// That a client is one in the kernel.
///
/// If the driver is built without kernel verbs there is none, and the compiler leaves out all that is theirs.
#[derive(Clone, Copy)]
pub(crate) struct KernelClient(#[cfg(not(kverbs))] Infallible);

impl KernelClient {
    /// One, if there can be any.
    pub(super) const ANY: Option<Self> = {
        #[cfg(kverbs)]
        let any = Some(Self());
        #[cfg(not(kverbs))]
        let any = None;
        any
    };

    /// Makes something of which there is none without such a client.
    pub(crate) fn own<T>(self, own: T) -> KernelOwned<T> {
        #[cfg(not(kverbs))]
        let own = {
            drop(own);
            self.0
        };
        KernelOwned(own, PhantomData)
    }
}

/// What a client in the kernel has of an object.
pub(crate) struct KernelOwned<T>(
    #[cfg(kverbs)] T,
    #[cfg(not(kverbs))] Infallible,
    PhantomData<T>,
);

impl<T> Deref for KernelOwned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        #[cfg(kverbs)]
        return &self.0;
        #[cfg(not(kverbs))]
        match self.0 {}
    }
}
