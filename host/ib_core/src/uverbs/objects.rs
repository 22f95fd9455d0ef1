// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Calls of programs that create, query and modify objects.

use core::ptr::null_mut;
use std::rc::Rc;

use kernel::{
    error::{to_result, Result},
    ffi::{c_int, c_void},
};

use super::{Call, Kind, Process, Uobject, CQ_BUFFER};
use crate::{
    ffi::{self, ib_device, ib_qp_attr_mask_IB_QP_STATE as STATE},
    verbs,
};

/// Attributes of a new queue pair.
pub struct QpAttr {
    /// Protection domain.
    pub pd: u32,
    /// Completion queue of sends.
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// An `IB_QPT_*`.
    pub kind: u32,
    /// Capacities.
    pub cap: ffi::ib_qp_cap,
}

/// Keys of a memory region.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// Key for the owner's work requests.
    pub local: u32,
    /// Key for work requests of peers.
    pub remote: u32,
}

extern "C" fn completed(_: *mut ffi::ib_cq, object: *mut c_void) {
    // SAFETY: The context of a queue is its object, which is not freed before the queue is destroyed.
    let object = unsafe { &*object.cast::<Uobject>() };
    object.events.set(object.events.get() + 1);
}

impl Process {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn alloc_pd(&self, input: &[u8], output: &mut [u8]) -> Result<u32> {
        self.with_context(|device, context| {
            let mut call = Call::new(context, input, output);
            // SAFETY: The device stays registered while the call runs, and the data is that of this call.
            let pd = unsafe { verbs::alloc_pd(device, call.udata())? };
            Ok(self.add(self.new_object(Kind::Pd), pd))
        })
    }

    /// Creates a completion queue. `memory`: address and length of the program's ring, if any.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn create_cq(
        &self,
        entries: u32,
        memory: Option<(u64, usize)>,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<u32> {
        self.with_context(|device, context| {
            let mut call = Call::new(context, input, output);
            call.buffers
                .extend(memory.map(|memory| (CQ_BUFFER, memory)));
            let attr = ffi::ib_cq_init_attr {
                cqe: entries,
                comp_vector: 0,
                flags: 0,
            };
            let object = self.new_object(Kind::Cq);
            // SAFETY: The device stays registered while the call runs, and `create_cq` passes the queue that it has just allocated.
            let cq = unsafe {
                verbs::create_cq(device, &attr, call.attrs(), |cq| {
                    (*cq).comp_handler = Some(completed);
                    (*cq).cq_context = Rc::as_ptr(&object).cast_mut().cast();
                })
            };
            if cq.is_err() && object.events.get() != 0 {
                kernel::warn("an event refers to a queue that was not created".into());
            }
            Ok(self.add(object, cq?))
        })
    }

    /// Creates a queue pair. Returns its id and its number.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn create_qp(&self, wanted: QpAttr, input: &[u8], output: &mut [u8]) -> Result<(u32, u32)> {
        self.with_context(|_, context| {
            let mut call = Call::new(context, input, output);
            let mut attr: ffi::ib_qp_init_attr = super::zeroed();
            attr.send_cq = self.raw(wanted.send_cq, Kind::Cq)?;
            attr.recv_cq = self.raw(wanted.recv_cq, Kind::Cq)?;
            attr.cap = wanted.cap;
            attr.qp_type = wanted.kind;
            let pd = self.raw(wanted.pd, Kind::Pd)?;
            // SAFETY: The domain and the queues are objects of the process, which no other thread destroys meanwhile.
            unsafe {
                let qp = verbs::create_qp(pd, &mut attr, call.udata())?;
                let number = (*qp).qp_num;
                Ok((self.add(self.new_object(Kind::Qp), qp), number))
            }
        })
    }

    /// Modifies a queue pair.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn modify_qp(
        &self,
        id: u32,
        attr: &mut ffi::ib_qp_attr,
        mask: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result {
        self.with_context(|_, context| {
            let qp = self.raw(id, Kind::Qp)?;
            let mut call = Call::new(context, input, output);
            // SAFETY: The queue pair is an object of the process, which no other thread destroys meanwhile.
            unsafe { verbs::modify_qp(qp, attr, mask, call.udata()) }
        })
    }

    /// Creates an address handle for the peer with a GID.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn create_ah(
        &self,
        pd: u32,
        gid: &[u8; 16],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<u32> {
        self.with_context(|_, context| {
            let mut call = Call::new(context, input, output);
            // SAFETY: The domain is an object of the process, which no other thread destroys meanwhile.
            let ah = unsafe { verbs::create_ah(self.raw(pd, Kind::Pd)?, gid, call.udata())? };
            Ok(self.add(self.new_object(Kind::Ah), ah))
        })
    }

    /// Registers memory with `IB_ACCESS_*` flags. Returns the id and the keys.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn register(
        &self,
        pd: u32,
        (start, length): (u64, u64),
        access: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(u32, Keys)> {
        let access = access as c_int;
        self.new_region(pd, input, output, |device, pd, udata, _| {
            // SAFETY: The domain is an object of the process, and the data is that of the call.
            unsafe {
                (*device).ops.reg_user_mr.unwrap()(
                    pd,
                    start,
                    length,
                    start,
                    access,
                    null_mut(),
                    udata,
                )
            }
        })
    }

    /// Registers a dma-buf by its number. Returns the id and the keys.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn register_dmabuf(
        &self,
        pd: u32,
        number: c_int,
        length: u64,
        access: u32,
    ) -> Result<(u32, Keys)> {
        let access = access as c_int;
        self.new_region(pd, &[], &mut [], |device, pd, _, attrs| {
            // SAFETY: The domain is an object of the process, and the attributes are those of the call.
            unsafe {
                let register = (*device).ops.reg_user_mr_dmabuf.unwrap();
                register(pd, 0, length, 0, number, access, null_mut(), attrs)
            }
        })
    }

    fn new_region(
        &self,
        pd: u32,
        input: &[u8],
        output: &mut [u8],
        make: impl FnOnce(
            *mut ib_device,
            *mut ffi::ib_pd,
            *mut ffi::ib_udata,
            *mut ffi::uverbs_attr_bundle,
        ) -> *mut ffi::ib_mr,
    ) -> Result<(u32, Keys)> {
        self.with_context(|device, context| {
            let pd = self.raw(pd, Kind::Pd)?;
            let mut call = Call::new(context, input, output);
            let (udata, attrs) = (call.udata(), call.attrs());
            // SAFETY: The domain is an object of the process, and the driver returns a new region or an error.
            unsafe {
                let mr = verbs::take_mr(pd, make(device, pd, udata, attrs))?;
                let keys = Keys {
                    local: (*mr).lkey,
                    remote: (*mr).rkey,
                };
                Ok((self.add(self.new_object(Kind::Mr), mr), keys))
            }
        })
    }

    /// Creates a completion counter, whose buffers are passed as attributes of the driver.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn create_counter(&self, buffers: &[(u16, (u64, usize))]) -> Result<u32> {
        self.with_context(|device, context| {
            let mut call = Call::new(context, &[], &mut []);
            call.buffers.extend(buffers);
            // SAFETY: The device stays registered while the call runs, and the attributes are those of this call.
            let counter = unsafe { verbs::create_counter(device, call.attrs())? };
            Ok(self.add(self.new_object(Kind::Counter), counter))
        })
    }

    /// Queries the state of a queue pair.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn query_qp(&self, id: u32) -> Result<ffi::ib_qp_attr> {
        self.with_context(|device, _| {
            let qp = self.raw(id, Kind::Qp)?;
            let mut attr: ffi::ib_qp_attr = super::zeroed();
            let mut init: ffi::ib_qp_init_attr = super::zeroed();
            // SAFETY: The device stays registered while the call runs, and so does its table.
            let query = unsafe { (*device).ops.query_qp.expect("a function") };
            // SAFETY: The queue pair is an object of the process, which no other thread destroys meanwhile.
            to_result(unsafe { query(qp, &raw mut attr, STATE as c_int, &raw mut init) })?;
            Ok(attr)
        })
    }

    /// Modifies a value of a completion counter by an `IB_COMP_CNTR_MODIFY_OP_*`.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn modify_counter(
        &self,
        id: u32,
        entry: ffi::ib_comp_cntr_entry,
        op: ffi::ib_comp_cntr_modify_op,
        value: u64,
    ) -> Result {
        self.with_context(|device, _| {
            let counter = self.raw(id, Kind::Counter)?;
            // SAFETY: The device stays registered while the call runs, and so does its table.
            let modify = unsafe { (*device).ops.modify_comp_cntr.expect("a function") };
            // SAFETY: The counter is an object of the process, which no other thread destroys meanwhile.
            to_result(unsafe { modify(counter, entry, op, value) })
        })
    }

    /// Attaches a counter to operations of a queue pair, a set of `IB_QP_ATTACH_COMP_CNTR_OP_*`.
    ///
    /// # Errors
    ///
    /// See [`Process`].
    pub fn attach_counter(&self, qp: u32, id: u32, operations: u32) -> Result {
        self.with_context(|_, _| {
            let (qp, counter) = (self.raw(qp, Kind::Qp)?, self.raw(id, Kind::Counter)?);
            // SAFETY: Both are objects of the process, which no other thread destroys meanwhile.
            unsafe { verbs::attach_counter(qp, counter, operations) }
        })
    }
}
