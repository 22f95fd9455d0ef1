// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion counters, which count successful and failed operations of queue pairs.

use core::marker::PhantomData;

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*, //
};

use super::{
    device::Device,
    object::{
        core_object,
        ObjectOf, //
    },
    ops::Ops,
    provider::Provider,
    udata::Udata,
    umem::Umem, //
};
use crate::ffi;

/// Operations that a completion counter counts: a set of `enum ib_qp_attach_comp_cntr_op`.
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

    /// Returns whether all of `other` are in this set.
    pub(crate) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union with `other` if the condition holds, else this set.
    ///
    /// # Examples
    ///
    /// ```
    /// use kernel::rdma::QpAttachOps;
    ///
    /// let has_rdma = false;
    /// let ops = QpAttachOps::SEND
    ///     .with_if(true, QpAttachOps::RECV)
    ///     .with_if(has_rdma, QpAttachOps::RDMA_READ);
    /// assert!(ops.contains(QpAttachOps::RECV));
    /// assert!(!ops.contains(QpAttachOps::RDMA_READ));
    /// ```
    #[must_use]
    pub(crate) fn with_if(self, condition: bool, other: Self) -> Self {
        Self(self.0 | if condition { other.0 } else { 0 })
    }
}

/// The two values of a completion counter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompCntrEntry {
    /// Number of successful operations.
    Comp,
    /// Number of failed operations.
    Err,
}

/// Modification of a value of a completion counter.
#[derive(Clone, Copy)]
pub(crate) enum CompCntrModifyOp {
    /// Sets the value to this.
    Set(u64),
    /// Increments the value by this.
    Inc(u64),
}

impl CompCntrEntry {
    /// Converts a value that the core has checked.
    fn from_raw(raw: ffi::ib_comp_cntr_entry) -> Self {
        match raw {
            ffi::ib_comp_cntr_entry_IB_COMP_CNTR_ENTRY_ERR => Self::Err,
            _ => Self::Comp,
        }
    }
}

impl CompCntrModifyOp {
    /// Converts an operation that the core has checked.
    fn from_raw(raw: ffi::ib_comp_cntr_modify_op, value: u64) -> Self {
        match raw {
            ffi::ib_comp_cntr_modify_op_IB_COMP_CNTR_MODIFY_OP_SET => Self::Set(value),
            _ => Self::Inc(value),
        }
    }
}

/// Capabilities of a device's completion counters.
#[derive(Clone, Copy, Default)]
pub(crate) struct CompCntrCaps {
    /// Limit on completion counters.
    pub(crate) max_counters: u32,
    /// Largest value, after which a counter wraps to 0.
    pub(crate) max_value: u64,
    /// Operations that can be counted.
    pub(crate) supported_qp_attach_ops: QpAttachOps,
}

/// Attributes of the call that creates a completion counter. Drivers add attributes of their own.
///
/// # Invariants
///
/// `device` is of a registration whose data is valid for `'a`. `attrs` is valid for `'c`.
pub(crate) struct CompCntrInitAttr<'c, 'a> {
    device: *mut ffi::ib_device,
    attrs: *mut ffi::uverbs_attr_bundle,
    call: PhantomData<&'c ()>,
    registration: PhantomData<&'a ()>,
}

impl<'a> CompCntrInitAttr<'_, 'a> {
    /// Pins the memory that the attribute with this number describes, for the device to write to.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`] if there is no such attribute, or less memory than `size` bytes.
    /// - Those of pinning memory.
    pub(crate) fn buffer(&self, attribute: u16, size: usize) -> Result<Umem<'a>> {
        // For any other number, the core would read outside of its table.
        if !is_attribute(attribute) {
            return Err(EINVAL);
        }
        // CAST: An access flag.
        let access = ffi::ib_access_flags_IB_ACCESS_LOCAL_WRITE as c_int;
        let (device, attrs) = (self.device, self.attrs);

        // SAFETY: By the type invariant, device and attributes are valid.
        let raw = unsafe { ffi::ib_umem_get_attr(device, attrs, attribute, size, access) };
        // SAFETY: The memory is owned, and of this device. By the type invariant, the registration is valid for `'a`.
        unsafe { Umem::from_raw(raw) }?.ok_or(EINVAL)
    }
}

/// Limit on the number of an attribute of a driver. The core's limit on its own is one more. See
/// `uapi_key_attr` in `include/rdma/uverbs_ioctl.h`.
const MAX_ATTRIBUTES: u16 = 31;

/// Returns whether an attribute of a method can have this number.
fn is_attribute(number: u16) -> bool {
    number & !(1 << ffi::UVERBS_ID_NS_SHIFT) < MAX_ATTRIBUTES
}

/// A completion counter for queue pairs of a device of the provider `P`.
#[vtable]
pub(crate) trait CompletionCounter<'a, P: Provider>: Sized + Send + Sync {
    /// Returns the capabilities of completion counters.
    fn caps(_device: &Device<P::Data<'a>>) -> CompCntrCaps {
        CompCntrCaps::default()
    }

    /// Creates a completion counter.
    fn create(
        _device: &Device<P::Data<'a>>,
        _context: &P::Ucontext<'a>,
        _attr: &CompCntrInitAttr<'_, 'a>,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Changes a value.
    fn modify(
        &self,
        _device: &Device<P::Data<'a>>,
        _entry: CompCntrEntry,
        _op: CompCntrModifyOp,
    ) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Counts operations of a queue pair until that is destroyed.
    ///
    /// The core makes sure that no other counter counts the same operations.
    fn attach(&self, _device: &Device<P::Data<'a>>, _qp: &P::Qp<'a>, _ops: QpAttachOps) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Destroys the counter, which is no longer attached.
    fn destroy(&self, _device: &Device<P::Data<'a>>) {}
}

core_object!(ib_comp_cntr, CompletionCounter, P::CompCntr<'a>, ());

/// Adds the callbacks of completion counters to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    ops.size_ib_comp_cntr = ObjectOf::<P, ffi::ib_comp_cntr>::SIZE;
    if P::CompCntr::HAS_CREATE {
        ops.query_comp_cntr_caps = Some(Ops::<P>::query_comp_cntr_caps);
        ops.create_comp_cntr = Some(Ops::<P>::create_comp_cntr);
        ops.modify_comp_cntr = Some(Ops::<P>::modify_comp_cntr);
        ops.qp_attach_comp_cntr = Some(Ops::<P>::qp_attach_comp_cntr);
        ops.destroy_comp_cntr = Some(Ops::<P>::destroy_comp_cntr);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Returns the capabilities of completion counters.
    unsafe extern "C" fn query_comp_cntr_caps(
        device: *mut ffi::ib_device,
        caps: *mut ffi::ib_comp_cntr_caps,
        _attrs: *mut ffi::uverbs_attr_bundle,
    ) -> c_int {
        // SAFETY: By the contract, the device is registered.
        let found = P::CompCntr::caps(unsafe { Self::device(device) });
        // SAFETY: By the contract, the core passes a structure to be filled.
        let caps = unsafe { &mut *caps };
        caps.max_counters = found.max_counters;
        caps.max_value = found.max_value;
        caps.supported_qp_attach_ops = found.supported_qp_attach_ops.0;
        0
    }

    /// Creates a completion counter.
    unsafe extern "C" fn create_comp_cntr(
        counter: *mut ffi::ib_comp_cntr,
        attrs: *mut ffi::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, the core has set the device of the new counter.
            let device = unsafe { Self::device_of(counter) };
            // SAFETY: By the contract, the attributes are valid during the call.
            let udata = unsafe { Udata::of(attrs) };
            // SAFETY: The attributes are of a verb of this device.
            let context = unsafe { Self::context(&udata) }?;
            // INVARIANT: By the contract, both are valid during the call.
            let attr = CompCntrInitAttr {
                device: device.as_raw(),
                attrs,
                call: PhantomData,
                registration: PhantomData,
            };
            let init = P::CompCntr::create(device, context.data(), &attr);
            // SAFETY: By the contract, the counter is new.
            unsafe { Self::create(counter, init) }
        })
    }

    /// Changes a value of a completion counter.
    unsafe extern "C" fn modify_comp_cntr(
        counter: *mut ffi::ib_comp_cntr,
        entry: ffi::ib_comp_cntr_entry,
        op: ffi::ib_comp_cntr_modify_op,
        value: u64,
    ) -> c_int {
        // SAFETY: By the contract, `create_comp_cntr` has created the counter.
        let (counter, device) = unsafe { Self::object(counter) };
        let op = CompCntrModifyOp::from_raw(op, value);
        from_result(|| {
            counter
                .modify(device, CompCntrEntry::from_raw(entry), op)
                .map(|()| 0)
        })
    }

    /// Attaches a completion counter to a queue pair.
    unsafe extern "C" fn qp_attach_comp_cntr(
        qp: *mut ffi::ib_qp,
        counter: *mut ffi::ib_comp_cntr,
        attr: *mut ffi::ib_qp_attach_comp_cntr_attr,
    ) -> c_int {
        // SAFETY: By the contract, the attributes are valid.
        let ops = QpAttachOps(unsafe { (*attr).op_mask });
        // SAFETY: By the contract, `create_qp` has created the queue pair.
        let (pair, device) = unsafe { Self::object(qp) };
        // SAFETY: By the contract, `create_comp_cntr` has created the counter.
        let (counter, _) = unsafe { Self::object(counter) };
        from_result(|| counter.attach(device, pair, ops).map(|()| 0))
    }

    /// Destroys a completion counter.
    unsafe extern "C" fn destroy_comp_cntr(counter: *mut ffi::ib_comp_cntr) -> c_int {
        // SAFETY: By the contract, `create_comp_cntr` has created the counter.
        let (data, device) = unsafe { Self::object(counter) };
        data.destroy(device);
        // SAFETY: By the contract, the counter is not used any more.
        unsafe { Self::destroy(counter) }
    }
}
