// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs.

use kernel::{
    bindings,
    error::from_result,
    ffi::c_int,
    prelude::*, //
};

use super::{
    details::Details,
    device::Device,
    mmap::{
        Context,
        Mapped, //
    },
    object::{
        core_object,
        ObjectOf, //
    },
    ops::Ops,
    provider::Provider,
    qp_attr::{
        QpAttr,
        QpAttrMask,
        QpCap,
        QpType,
        QueriedQp, //
    },
    udata::Udata, //
};
use crate::ffi;

#[cfg(kverbs)]
use {
    super::{
        completions::QpRef,
        work::{
            RecvWrs,
            SendWrs, //
        },
        wr_layout::SendWrLayout, //
    },
    kernel::sync::Arc, //
};

/// Attributes of a new queue pair.
pub(crate) struct QpInitAttr<'c, 'a, P: Provider> {
    /// Protection domain.
    pub(crate) pd: &'c P::Pd<'a>,
    /// Completion queue of the send queue; absent for some transports.
    pub(crate) send_cq: Option<&'c P::Cq<'a>>,
    /// Completion queue of the receive queue; absent for some transports.
    pub(crate) recv_cq: Option<&'c P::Cq<'a>>,
    /// Transport.
    pub(crate) qp_type: QpType,
    /// Requested capacity.
    pub(crate) cap: QpCap,
    /// Whether it uses a shared receive queue.
    pub(crate) has_srq: bool,
    /// Flags that the core defines.
    pub(crate) create_flags: u32,
}

/// A queue pair of a device of the provider `P`.
#[vtable]
pub(crate) trait QueuePair<'a, P: Provider>: Sized + Send + Sync {
    /// Structure of send work requests of a driver-defined transport: [`QpType::RESERVED1`].
    #[cfg(kverbs)]
    const SEND_WR_LAYOUT: Option<&'static SendWrLayout> = None;

    /// Creates a queue pair for a process.
    fn create(
        _device: &Device<P::Data<'a>>,
        _context: &mut Context<'_, 'a, P>,
        _attr: &QpInitAttr<'_, 'a, P>,
        _udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Creates a queue pair for a client in the kernel.
    ///
    /// Completions name the queue pair as `qp`. If `signal_all` is set, each work request has a
    /// completion.
    #[cfg(kverbs)]
    fn create_kernel(
        _device: &Device<P::Data<'a>>,
        _attr: &QpInitAttr<'_, 'a, P>,
        _qp: &Arc<QpRef>,
        _signal_all: bool,
    ) -> impl PinInit<Self, Error> {
        Err(EOPNOTSUPP)
    }

    /// Posts send work requests up to the first that it rejects. Called in any context.
    ///
    /// The client gets the returned error, or else `EINVAL`, for the rejected work request.
    ///
    /// To drain a queue pair, the core posts a work request in the error state. It must complete as
    /// flushed, whatever its operation, after all that were posted before.
    #[cfg(kverbs)]
    fn post_send(
        &self,
        _device: &Device<P::Data<'a>>,
        _wrs: &mut SendWrs<'_, P::Ah<'a>, P::Mr<'a>>,
    ) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Posts receive work requests, like [`Self::post_send`]. Called in any context.
    ///
    /// In the error state, they complete like those of [`Self::post_send`].
    #[cfg(kverbs)]
    fn post_recv(&self, _device: &Device<P::Data<'a>>, _wrs: &mut RecvWrs<'_>) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Returns the capacity, which may exceed the request of a client in the kernel.
    #[cfg(kverbs)]
    fn cap(&self) -> QpCap {
        QpCap::default()
    }

    /// Returns the number of the queue pair.
    fn qp_num(&self) -> u32 {
        0
    }

    /// Adds the values that `rdma resource show` prints.
    ///
    /// # Errors
    ///
    /// Those of [`Details::put`].
    fn details(&self, _details: &mut Details) -> Result {
        Ok(())
    }

    /// Changes attributes of the queue pair.
    fn modify(&self, _device: &Device<P::Data<'a>>, _attr: &QpAttr, _udata: &Udata<'_>) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Returns attributes of the queue pair.
    fn query(&self, _device: &Device<P::Data<'a>>, _mask: QpAttrMask) -> Result<QueriedQp> {
        Err(EOPNOTSUPP)
    }

    /// Destroys the queue pair.
    fn destroy(&self, _device: &Device<P::Data<'a>>) {}
}

/// The layer's own data of a queue pair.
pub(super) struct QpExtra {
    /// Reference of completions to a queue pair of the kernel.
    #[cfg(kverbs)]
    pub(super) own: Option<Arc<QpRef>>,
    /// Memory of a queue pair of a process.
    _mapped: Mapped,
}

core_object!(ib_qp, QueuePair, P::Qp<'a>, QpExtra);

/// Adds the callbacks of queue pairs to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    ops.size_ib_qp = ObjectOf::<P, ffi::ib_qp>::SIZE;
    if P::Qp::HAS_CREATE {
        add_common_ops::<P>(ops);
    }
}

/// Adds the callbacks that queue pairs of programs and of the kernel have in common.
pub(super) const fn add_common_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    ops.create_qp = Some(Ops::<P>::create_qp);
    ops.modify_qp = Some(Ops::<P>::modify_qp);
    ops.query_qp = Some(Ops::<P>::query_qp);
    ops.destroy_qp = Some(Ops::<P>::destroy_qp);
    ops.fill_res_qp_entry = Some(Ops::<P>::fill_res_qp_entry);
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Initializes a new queue pair, and returns its data.
    ///
    /// # Errors
    ///
    /// Those of `init`.
    ///
    /// # Safety
    ///
    /// By the contract of [`Ops`], `qp` must be new. It must not be destroyed for `'o`. Its extra data must
    /// be set afterwards.
    unsafe fn init_qp<'o, 'a: 'o>(
        qp: *mut ffi::ib_qp,
        init: impl PinInit<P::Qp<'a>, Error>,
    ) -> Result<&'o P::Qp<'a>> {
        // SAFETY: The caller guarantees that the queue pair is new, of the size of `ObjectOf`.
        let pair = unsafe { ObjectOf::<P, _>::init(qp, init) }?;
        // SAFETY: The queue pair is valid. The core reads this field only after the creation.
        unsafe { (*qp).qp_num = pair.qp_num() };
        Ok(pair)
    }

    /// Creates a queue pair.
    ///
    /// `udata` is null if the caller is in the kernel.
    unsafe extern "C" fn create_qp(
        qp: *mut ffi::ib_qp,
        init_attr: *mut ffi::ib_qp_init_attr,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, the core has set the domain of the new queue pair.
            let pd = unsafe { (*qp).pd };
            // SAFETY: By the contract, `alloc_pd` has created the domain.
            let (pd, device) = unsafe { Self::object(pd) };
            // SAFETY: By the contract, `udata` is null or valid during the call.
            let udata = unsafe { Udata::from_raw(udata) };
            // SAFETY: By the contract, the attributes are valid.
            let raw = unsafe { &*init_attr };
            let queue = |cq: *mut ffi::ib_cq| {
                // SAFETY: By the contract, the core passes null or a queue that was created.
                (!cq.is_null()).then(|| unsafe { Self::object(cq) }.0)
            };
            let attr = QpInitAttr {
                pd,
                send_cq: queue(raw.send_cq),
                recv_cq: queue(raw.recv_cq),
                qp_type: QpType::from_raw(raw.qp_type),
                cap: QpCap::from_raw(&raw.cap),
                has_srq: !raw.srq.is_null(),
                create_flags: raw.create_flags,
            };
            #[cfg(kverbs)]
            if udata.is_kernel() {
                for cq in [raw.send_cq, raw.recv_cq] {
                    // SAFETY: By the contract, the core passes null or a queue of the same client.
                    unsafe { Self::start_events(cq) };
                }
                // `rdma_rw` would post work requests of connected transports.
                if raw.cap.max_rdma_ctxs != 0 {
                    return Err(EOPNOTSUPP);
                }
                let layout = match attr.qp_type {
                    QpType::UD => Some(&SendWrLayout::UD),
                    QpType::RESERVED1 => P::Qp::SEND_WR_LAYOUT,
                    _ => None,
                };
                let own = QpRef::new(qp, [raw.send_cq, raw.recv_cq], layout)?;
                let signal_all = raw.sq_sig_type == ffi::ib_sig_type_IB_SIGNAL_ALL_WR;
                let init = P::Qp::create_kernel(device, &attr, &own, signal_all);
                // SAFETY: By the contract, the queue pair is new.
                let pair = unsafe { Self::init_qp(qp, init) }.inspect_err(|_| own.forget())?;
                let extra = QpExtra {
                    own: Some(own),
                    _mapped: Mapped::default(),
                };
                // SAFETY: The queue pair has just been initialized.
                unsafe { ObjectOf::<P, _>::set_extra(qp, extra) };
                // SAFETY: By the contract, the attributes are valid. The caller reads the capacity.
                unsafe { (*init_attr).cap = pair.cap().into_raw() };
                return Ok(0);
            }
            // SAFETY: The input is of a verb of this device.
            let mut context = unsafe { Self::context(&udata) }?;
            let init = P::Qp::create(device, &mut context, &attr, &udata);
            // SAFETY: By the contract, the queue pair is new.
            unsafe { Self::init_qp(qp, init) }?;
            let extra = QpExtra {
                #[cfg(kverbs)]
                own: None,
                _mapped: context.into_mapped(),
            };
            // SAFETY: The queue pair has just been initialized.
            unsafe { ObjectOf::<P, _>::set_extra(qp, extra) };
            Ok(0)
        })
    }

    /// Changes attributes of a queue pair.
    ///
    /// `udata` may be null.
    unsafe extern "C" fn modify_qp(
        qp: *mut ffi::ib_qp,
        attr: *mut ffi::ib_qp_attr,
        mask: c_int,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        // CAST: A set of bits.
        let mask = mask as u32;
        if mask & !ffi::ib_qp_attr_mask_IB_QP_ATTR_STANDARD_BITS != 0 {
            return EOPNOTSUPP.to_errno();
        }
        // SAFETY: By the contract, `create_qp` has created the queue pair.
        let (pair, device) = unsafe { Self::object(qp) };
        // SAFETY: By the contract, the attributes are valid.
        let attr = QpAttr::from_raw(unsafe { &*attr }, mask);
        // SAFETY: By the contract, `udata` is null or valid during the call.
        let udata = unsafe { Udata::from_raw(udata) };
        from_result(|| pair.modify(device, &attr, &udata).map(|()| 0))
    }

    /// Returns attributes of a queue pair.
    ///
    /// `attr` and `init_attr` need not be initialized.
    unsafe extern "C" fn query_qp(
        qp: *mut ffi::ib_qp,
        attr: *mut ffi::ib_qp_attr,
        mask: c_int,
        init_attr: *mut ffi::ib_qp_init_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, `create_qp` has created the queue pair.
            let (pair, device) = unsafe { Self::object(qp) };
            // CAST: A set of bits.
            let queried = pair.query(device, QpAttrMask::from_raw(mask as u32))?;
            // SAFETY: By the contract, there is room for the attributes.
            unsafe { attr.write(queried.to_raw()) };

            let initial = ffi::ib_qp_init_attr {
                // SAFETY: By the contract, the queue pair is valid. This field does not change.
                qp_type: unsafe { (*qp).qp_type },
                // SAFETY: By the contract, the queue pair is valid. This field does not change.
                recv_cq: unsafe { (*qp).recv_cq },
                // SAFETY: By the contract, the queue pair is valid. This field does not change.
                send_cq: unsafe { (*qp).send_cq },
                // SAFETY: By the contract, the queue pair is valid. This field does not change.
                qp_context: unsafe { (*qp).qp_context },
                cap: queried.cap.into_raw(),
                ..Default::default()
            };
            // SAFETY: By the contract, there is room for the attributes.
            unsafe { init_attr.write(initial) };
            Ok(0)
        })
    }

    /// Destroys a queue pair.
    unsafe extern "C" fn destroy_qp(qp: *mut ffi::ib_qp, _udata: *mut ffi::ib_udata) -> c_int {
        // SAFETY: By the contract, `create_qp` has created the queue pair.
        let (pair, device) = unsafe { Self::object(qp) };
        pair.destroy(device);
        #[cfg(kverbs)]
        // SAFETY: By the contract, the queue pair was created, and its data is dropped only below.
        if let Some(own) = &unsafe { ObjectOf::<P, _>::extra(qp) }.own {
            own.forget();
        }
        // SAFETY: By the contract, the queue pair is not used any more.
        unsafe { Self::destroy(qp) }
    }

    /// Writes the details of a queue pair into a message.
    unsafe extern "C" fn fill_res_qp_entry(
        msg: *mut bindings::sk_buff,
        qp: *mut ffi::ib_qp,
    ) -> c_int {
        // SAFETY: By the contract, the queue pair was created. It is not destroyed during the call, as the
        // core removes it from its list first.
        let (pair, _) = unsafe { Self::object(qp) };
        // SAFETY: By the contract, the message is being built.
        unsafe { Details::fill(msg, |details| pair.details(details)) }
    }
}
