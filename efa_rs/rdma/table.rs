// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The table of functions through which the core calls a [`Provider`].

use core::mem::MaybeUninit;

use super::{
    ah,
    comp_cntr,
    context,
    counters,
    cq,
    mmap,
    mr,
    ops::Ops,
    pd,
    provider::{
        self,
        Provider, //
    },
    qp, //
};
use crate::ffi;

#[cfg(kverbs)]
use super::{
    kernel_cq,
    kernel_mr,
    kernel_qp, //
};

impl<P: Provider> Ops<P> {
    /// The table, without its owner, which the registration sets.
    pub(super) const TABLE: ffi::ib_device_ops = {
        // SAFETY: The table has functions, sizes and flags, for which zero means absent.
        let mut ops = unsafe { MaybeUninit::<ffi::ib_device_ops>::zeroed().assume_init() };
        provider::add_ops::<P>(&mut ops);
        context::add_ops::<P>(&mut ops);
        mmap::add_ops::<P>(&mut ops);
        pd::add_ops::<P>(&mut ops);
        mr::add_ops::<P>(&mut ops);
        ah::add_ops::<P>(&mut ops);
        cq::add_ops::<P>(&mut ops);
        qp::add_ops::<P>(&mut ops);
        comp_cntr::add_ops::<P>(&mut ops);
        counters::add_ops::<P>(&mut ops);
        #[cfg(kverbs)]
        kernel_cq::add_ops::<P>(&mut ops);
        #[cfg(kverbs)]
        kernel_mr::add_ops::<P>(&mut ops);
        #[cfg(kverbs)]
        kernel_qp::add_ops::<P>(&mut ops);
        ops
    };
}
