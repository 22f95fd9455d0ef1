// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion counters: how much of what queue pairs were asked for has ended, and how.

use core::marker::PhantomData;

use kernel::{
    ffi::c_int,
    prelude::*, //
};

use super::{
    context::Context,
    device::Device,
    umem::Umem, //
};
use crate::{
    ffi, //
};

/// What a completion counter can count of a queue pair: a set of
/// `enum ib_qp_attach_comp_cntr_op`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QpAttachOps(u32);

impl QpAttachOps {
    /// Sends.
    pub(crate) const SEND: Self =
        Self(ffi::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_SEND);
    /// Receives.
    pub(crate) const RECV: Self =
        Self(ffi::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_RECV);
    /// RDMA reads.
    pub(crate) const RDMA_READ: Self =
        Self(ffi::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_RDMA_READ);
    /// RDMA reads of peers.
    pub(crate) const REMOTE_RDMA_READ: Self =
        Self(ffi::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ);
    /// RDMA writes.
    pub(crate) const RDMA_WRITE: Self =
        Self(ffi::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE);
    /// RDMA writes of peers.
    pub(crate) const REMOTE_RDMA_WRITE: Self =
        Self(ffi::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE);

    /// Takes what the core passes.
    pub(super) fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns what the core expects.
    pub(super) fn into_raw(self) -> u32 {
        self.0
    }

    /// Returns whether all of `other` are in this set.
    pub(crate) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these, and `other` if the condition holds.
    #[must_use]
    pub(crate) fn with_if(self, condition: bool, other: Self) -> Self {
        Self(self.0 | if condition { other.0 } else { 0 })
    }
}

/// The two values of a completion counter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompCntrEntry {
    /// How much has ended well.
    Comp,
    /// How much has failed.
    Err,
}

/// How a value of a completion counter is to be changed.
#[derive(Clone, Copy)]
pub(crate) enum CompCntrModifyOp {
    /// To this.
    Set(u64),
    /// By this.
    Inc(u64),
}

impl CompCntrEntry {
    /// Takes what the core passes, which has checked it.
    pub(super) fn from_raw(raw: ffi::ib_comp_cntr_entry) -> Self {
        match raw {
            ffi::ib_comp_cntr_entry_IB_COMP_CNTR_ENTRY_ERR => Self::Err,
            _ => Self::Comp,
        }
    }
}

impl CompCntrModifyOp {
    /// Takes what the core passes, which has checked it.
    pub(super) fn from_raw(raw: ffi::ib_comp_cntr_modify_op, value: u64) -> Self {
        match raw {
            ffi::ib_comp_cntr_modify_op_IB_COMP_CNTR_MODIFY_OP_SET => Self::Set(value),
            _ => Self::Inc(value),
        }
    }
}

/// What completion counters of a device can do.
#[derive(Clone, Copy, Default)]
pub(crate) struct CompCntrCaps {
    /// How many there can be.
    pub(crate) max_counters: u32,
    /// The largest value, after which the next one is 0.
    pub(crate) max_value: u64,
    /// What they can count.
    pub(crate) supported_qp_attach_ops: QpAttachOps,
}

/// What a new completion counter shall be: attributes of the call, in which a driver has its own.
pub(crate) struct CompCntrInitAttr<'c, 'a> {
    device: *mut ffi::ib_device,
    attrs: *mut ffi::uverbs_attr_bundle,
    call: PhantomData<&'c ()>,
    registration: PhantomData<&'a ()>,
}

impl<'a> CompCntrInitAttr<'_, 'a> {
    /// Takes what the core passes.
    ///
    /// # Safety
    ///
    /// `device` must be of a registration whose data is valid for `'a`, and `attrs` those of a call that
    /// lasts for `'c`.
    pub(super) unsafe fn new(
        device: *mut ffi::ib_device,
        attrs: *mut ffi::uverbs_attr_bundle,
    ) -> Self {
        Self {
            device,
            attrs,
            call: PhantomData,
            registration: PhantomData,
        }
    }

    /// Pins the memory that the attribute with this number describes, for the device to write to.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is none, or less than `size` bytes.
    /// - Those of pinning memory.
    pub(crate) fn buffer(&self, attribute: u16, size: usize) -> Result<Umem<'a>> {
        // CAST: An access flag.
        let access = ffi::ib_access_flags_IB_ACCESS_LOCAL_WRITE as c_int;

        // SAFETY: By the requirement of `new`, both are valid now, and the registration for `'a`.
        unsafe {
            let raw = ffi::ib_umem_get_attr(self.device, self.attrs, attribute, size, access);
            Umem::from_raw(self.device, raw)?.ok_or(EINVAL)
        }
    }
}

/// A completion counter of a device with data `D`, created in a context with data `U`, for queue
/// pairs `Qp`.
#[vtable]
pub(crate) trait CompletionCounter<'a, D, U, Qp>: Sized + Send + Sync {
    /// Returns what completion counters can do.
    fn caps(_device: &Device<D>) -> CompCntrCaps {
        CompCntrCaps::default()
    }

    /// Creates a completion counter.
    fn create(
        _device: &Device<D>,
        _context: &Context<'_, 'a, U>,
        _attr: &CompCntrInitAttr<'_, 'a>,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Changes a value.
    fn modify(&self, _device: &Device<D>, _entry: CompCntrEntry, _op: CompCntrModifyOp) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Has it count these of a queue pair, until that is destroyed. The core sees to it that no other
    /// counts the same.
    fn attach(&self, _device: &Device<D>, _qp: &Qp, _ops: QpAttachOps) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Destroys the counter, which counts nothing any more.
    fn destroy(&self, _device: &Device<D>) {}
}
