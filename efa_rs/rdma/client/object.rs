// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects of the core, and their destruction.

use core::ptr::{
    null_mut,
    NonNull, //
};

use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::Arc, //
};

use super::handler::Gate;
use crate::ffi;

/// An object that the core has created for this client.
pub(super) struct Raw<T>(NonNull<T>);

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Raw<T> {}

// SAFETY: Verbs may use objects of the core from any task.
unsafe impl<T> Send for Raw<T> {}

// SAFETY: A shared reference gives access to the pointer only.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// Converts the result of a core function that creates an object.
    pub(super) fn created(object: *mut T) -> Result<Self> {
        Ok(Self(NonNull::new(from_err_ptr(object)?).ok_or(ENOMEM)?))
    }

    /// Returns the pointer.
    pub(super) fn as_ptr(self) -> *mut T {
        self.0.as_ptr()
    }
}

/// An object, with its type for the destruction.
#[derive(Clone)]
pub(super) enum Object {
    /// A protection domain.
    Pd(Raw<ffi::ib_pd>),
    /// An address handle.
    Ah(Raw<ffi::ib_ah>),
    /// A completion queue, and the gate of its handler.
    Cq(Raw<ffi::ib_cq>, Arc<Gate>),
    /// A queue pair.
    Qp(Raw<ffi::ib_qp>),
    /// A memory region.
    Mr(Raw<ffi::ib_mr>),
}

impl Object {
    /// Returns whether the object is a queue pair, whose work requests need other objects.
    pub(super) fn is_queue_pair(&self) -> bool {
        matches!(self, Self::Qp(_))
    }

    /// Returns the gate of the client's handler, if the object has one.
    pub(super) fn gate(&self) -> Option<&Arc<Gate>> {
        match self {
            Self::Cq(_, gate) => Some(gate),
            _ => None,
        }
    }

    /// Destroys the object, which remains valid if this fails. May sleep.
    ///
    /// # Errors
    ///
    /// - [`EBUSY`] if it is a queue or a queue pair that other objects of the core need.
    /// - Those of the provider, which should not fail.
    ///
    /// # Safety
    ///
    /// The object must exist. It must not be used any more if this succeeds, nor be needed by others.
    pub(super) unsafe fn destroy(&self) -> Result {
        // Objects of kernel clients have no userspace data.
        let udata = null_mut();
        to_result(match self {
            // SAFETY: The caller guarantees that the domain exists, and may be destroyed.
            Self::Pd(pd) => unsafe { ffi::ib_dealloc_pd_user(pd.as_ptr(), udata) },
            Self::Ah(ah) => {
                let flags = ffi::rdma_destroy_ah_flags_RDMA_DESTROY_AH_SLEEPABLE;
                // SAFETY: The caller guarantees that the handle exists, and may be destroyed.
                unsafe { ffi::rdma_destroy_ah_user(ah.as_ptr(), flags, udata) }
            }
            // SAFETY: The caller guarantees that the queue exists, and may be destroyed.
            Self::Cq(cq, _) => unsafe { ffi::ib_destroy_cq_user(cq.as_ptr(), udata) },
            // SAFETY: The caller guarantees that the queue pair exists, and may be destroyed.
            Self::Qp(qp) => unsafe { ffi::ib_destroy_qp_user(qp.as_ptr(), udata) },
            // SAFETY: The caller guarantees that the region exists, and may be destroyed.
            Self::Mr(mr) => unsafe { ffi::ib_dereg_mr_user(mr.as_ptr(), udata) },
        })
    }
}
