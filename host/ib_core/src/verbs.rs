// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects of a device, as `verbs.c` creates and destroys them for programs and in-kernel clients.
//!
//! The core counts the users of each object, and refuses the destruction of a queue or queue pair that is in use.

use core::ptr::null_mut;
use std::rc::Rc;

use kernel::{
    bindings::{scatterlist, sk_buff},
    error::{code::*, from_err_ptr, to_result, Error, Result},
    ffi::{c_int, c_void},
    sim, warn,
};

use crate::{ffi::*, registry::state, uverbs::Kind};

/// Allocates a zeroed object of the size that the driver asks for.
pub unsafe fn allocate<T>(size: usize) -> Result<*mut T> {
    // SAFETY: The caller guarantees the size.
    unsafe { allocate_in(size, true) }
}

unsafe fn allocate_in<T>(size: usize, may_sleep: bool) -> Result<*mut T> {
    if may_sleep {
        sim::might_sleep("an object is allocated");
    }
    if !sim::may_allocate() {
        return Err(ENOMEM);
    }
    assert!(size >= size_of::<T>());
    sim::count_allocated(size);
    Ok(sim::memory::allocate(size, 8).cast())
}

/// Frees an object.
pub unsafe fn free<T>(object: *mut T, size: usize) {
    sim::count_freed(size);
    // SAFETY: The caller guarantees that `allocate` has returned the object for this size, and that it is not used any more.
    unsafe { sim::memory::free(object.cast(), size, 8) };
}

fn ops<'d>(device: *mut ib_device) -> &'d ib_device_ops {
    // SAFETY: The device outlives its objects, and its table does not change once it is registered.
    unsafe { &(*device).ops }
}

/// Allocates a protection domain. One for the kernel has a region for all memory.
pub unsafe fn alloc_pd(device: *mut ib_device, udata: *mut ib_udata) -> Result<*mut ib_pd> {
    // SAFETY: The caller guarantees that the device is registered, and the domain has the size that the driver asks for.
    unsafe {
        let ops = ops(device);
        let pd: *mut ib_pd = allocate(ops.size_ib_pd)?;
        (*pd).device = device;
        if let Err(error) = to_result(ops.alloc_pd.unwrap()(pd, udata)) {
            free(pd, ops.size_ib_pd);
            return Err(error);
        }
        state(device).count("pd", 1);
        if udata.is_null() {
            // The device has no `local_dma_lkey`.
            let access = ib_access_flags_IB_ACCESS_LOCAL_WRITE as c_int;
            match from_err_ptr(ops.get_dma_mr.unwrap()(pd, access)) {
                Ok(mr) => {
                    (*mr).device = device;
                    (*mr).pd = pd;
                    (*pd).__internal_mr = mr;
                    (*pd).local_dma_lkey = (*mr).lkey;
                }
                Err(error) => {
                    ignore("ib_dealloc_pd", dealloc_pd(pd, null_mut()));
                    return Err(error);
                }
            }
        }
        Ok(pd)
    }
}

/// Deallocates a protection domain.
pub unsafe fn dealloc_pd(pd: *mut ib_pd, udata: *mut ib_udata) -> Result {
    // SAFETY: The caller guarantees that the domain exists; the driver has released it before it is freed.
    unsafe {
        // The core looks at no counter. Whatever uses the domain later uses freed memory.
        if (*pd).usecnt.counter != 0 {
            warn("ib_dealloc_pd: the domain is in use".into());
        }
        let ops = ops((*pd).device);
        if !(*pd).__internal_mr.is_null() {
            let result = to_result(ops.dereg_mr.unwrap()((*pd).__internal_mr, null_mut()));
            ignore("ib_dealloc_pd: the region", result);
            (*pd).__internal_mr = null_mut();
        }
        to_result(ops.dealloc_pd.unwrap()(pd, udata))?;
        state((*pd).device).count("pd", -1);
        free(pd, ops.size_ib_pd);
    }
    Ok(())
}

/// Turns an error into a warning, as the kernel does.
pub fn ignore(what: &str, result: Result) {
    if let Err(error) = result {
        warn(format!("{what}: {error:?}"));
    }
}

/// Creates a completion queue. `prepare` sets the fields that the driver reads.
pub unsafe fn create_cq(
    device: *mut ib_device,
    attr: &ib_cq_init_attr,
    attrs: *mut uverbs_attr_bundle,
    prepare: impl FnOnce(*mut ib_cq),
) -> Result<*mut ib_cq> {
    // SAFETY: The caller guarantees that the device is registered, and the queue has the size that the driver asks for.
    unsafe {
        if attr.cqe == 0 {
            if attrs.is_null() {
                warn("__ib_create_cq: a queue without entries".into());
            }
            return Err(EINVAL);
        }
        // The core checks the vector for programs only.
        if !attrs.is_null() && attr.comp_vector >= (*device).num_comp_vectors as u32 {
            return Err(EINVAL);
        }
        let ops = ops(device);
        let cq: *mut ib_cq = allocate(ops.size_ib_cq)?;
        (*cq).device = device;
        (*cq).comp_vector = attr.comp_vector;
        prepare(cq);
        let create = if attrs.is_null() {
            ops.create_cq
        } else {
            ops.create_user_cq
        };
        if let Err(error) = to_result(create.unwrap()(cq, attr, attrs)) {
            free(cq, ops.size_ib_cq);
            return Err(error);
        }
        state(device).count("cq", 1);
        state(device).track(Kind::Cq, cq);
        Ok(cq)
    }
}

/// Destroys a completion queue: by `post_destroy_cq` for `ib_free_cq`, if the driver has it.
pub(crate) unsafe fn end_cq(cq: *mut ib_cq, udata: *mut ib_udata, by_post_destroy: bool) -> Result {
    // SAFETY: The caller guarantees that the queue exists; the driver has released it before it is freed.
    unsafe {
        if (*cq).usecnt.counter != 0 {
            return Err(EBUSY);
        }
        let (ops, state) = (ops((*cq).device), state((*cq).device));
        state.untrack(cq);
        match ops.post_destroy_cq.filter(|_| by_post_destroy) {
            Some(post) => post(cq),
            None => to_result(ops.destroy_cq.unwrap()(cq, udata))
                .inspect_err(|_| state.track(Kind::Cq, cq))?,
        }
        state.count("cq", -1);
        free(cq, ops.size_ib_cq);
    }
    Ok(())
}

/// As `ib_destroy_cq_user`.
pub unsafe fn destroy_cq(cq: *mut ib_cq, udata: *mut ib_udata) -> Result {
    // SAFETY: The caller guarantees that the queue exists.
    unsafe { end_cq(cq, udata, false) }
}

/// Creates a queue pair.
pub unsafe fn create_qp(
    pd: *mut ib_pd,
    attr: &mut ib_qp_init_attr,
    udata: *mut ib_udata,
) -> Result<*mut ib_qp> {
    // SAFETY: The caller guarantees that the domain and the queues in `attr` exist until the queue pair is destroyed.
    unsafe {
        let device = (*pd).device;
        let ops = ops(device);
        let qp: *mut ib_qp = allocate(ops.size_ib_qp)?;
        (*qp).device = device;
        (*qp).pd = pd;
        (*qp).real_qp = qp;
        (*qp).qp_type = attr.qp_type;
        (*qp).qp_context = attr.qp_context;
        (*qp).event_handler = attr.event_handler;
        (*qp).send_cq = attr.send_cq;
        (*qp).recv_cq = attr.recv_cq;
        // As `rdma_rw_init_qp`: a registration, a transfer and an invalidation for each context.
        if udata.is_null() {
            attr.cap.max_send_wr += 3 * attr.cap.max_rdma_ctxs;
        }
        if let Err(error) = to_result(ops.create_qp.unwrap()(qp, attr, udata)) {
            free(qp, ops.size_ib_qp);
            return Err(error);
        }
        (*qp).max_write_sge = attr.cap.max_send_sge;
        (*qp).max_read_sge = attr.cap.max_send_sge.min((*device).attrs.max_sge_rd);
        count_users(qp, 1);
        state(device).count("qp", 1);
        state(device).track(Kind::Qp, qp);
        Ok(qp)
    }
}

unsafe fn count_users(qp: *mut ib_qp, by: c_int) {
    // SAFETY: The caller guarantees that the queue pair exists, and the domain and queues that it counts outlive it.
    unsafe {
        (*(*qp).pd).usecnt.counter += by;
        for cq in [(*qp).send_cq, (*qp).recv_cq] {
            if !cq.is_null() {
                (*cq).usecnt.counter += by;
            }
        }
    }
}

/// Modifies a queue pair.
pub unsafe fn modify_qp(
    qp: *mut ib_qp,
    attr: *mut ib_qp_attr,
    mask: u32,
    udata: *mut ib_udata,
) -> Result {
    // SAFETY: The caller guarantees that the queue pair exists, and that the attributes are valid.
    unsafe {
        let modify = ops((*qp).device).modify_qp.unwrap();
        to_result(modify(qp, attr, mask as c_int, udata))?;
        if mask & ib_qp_attr_mask_IB_QP_PORT != 0 {
            (*qp).port = (*attr).port_num;
        }
    }
    Ok(())
}

/// Destroys a queue pair.
pub unsafe fn destroy_qp(qp: *mut ib_qp, udata: *mut ib_udata) -> Result {
    // SAFETY: The caller guarantees that the queue pair exists; the driver has released it before it is freed.
    unsafe {
        if (*qp).usecnt.counter != 0 {
            return Err(EBUSY);
        }
        let (ops, state) = (ops((*qp).device), state((*qp).device));
        state.untrack(qp);
        to_result(ops.destroy_qp.unwrap()(qp, udata)).inspect_err(|_| state.track(Kind::Qp, qp))?;
        let attached = state.attached.borrow_mut().remove(&(qp as usize));
        for counter in attached.into_iter().flatten() {
            (*counter).usecnt.counter -= 1;
        }
        count_users(qp, -1);
        state.count("qp", -1);
        free(qp, ops.size_ib_qp);
    }
    Ok(())
}

/// Creates an address handle for the peer with a GID.
pub unsafe fn create_ah(
    pd: *mut ib_pd,
    gid: &[u8; 16],
    udata: *mut ib_udata,
) -> Result<*mut ib_ah> {
    // SAFETY: The caller guarantees that the domain exists; zeroes are valid attributes, and a GID is a union of numbers.
    unsafe {
        let mut attr: rdma_ah_attr = core::mem::zeroed();
        *attr.grh.dgid.raw.as_mut() = *gid;
        attr.port_num = 1;
        let flags = rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE;
        create_ah_of(pd, &raw mut attr, flags, udata)
    }
}

/// As `rdma_create_ah`: without `RDMA_CREATE_AH_SLEEPABLE` in `flags`, the caller may be in atomic context.
pub unsafe fn create_ah_of(
    pd: *mut ib_pd,
    attr: *mut rdma_ah_attr,
    flags: u32,
    udata: *mut ib_udata,
) -> Result<*mut ib_ah> {
    // SAFETY: The caller guarantees that domain and attributes are valid, and the handle has the size that the driver asks for.
    unsafe {
        let device = (*pd).device;
        let ops = ops(device);
        let has_route = u32::from((*attr).ah_flags) & ib_ah_flags_IB_AH_GRH != 0;
        let index = u32::from((*attr).grh.sgid_index);
        if !(1..=(*device).phys_port_cnt).contains(&(*attr).port_num)
            || has_route && index >= state(device).attr.get().0
        {
            return Err(EINVAL);
        }
        let create = if udata.is_null() {
            ops.create_ah
        } else {
            ops.create_user_ah
        };
        let create = create.ok_or(Error::from_errno(-95))?;
        let may_sleep = flags & rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE != 0;
        let ah: *mut ib_ah = allocate_in(ops.size_ib_ah, may_sleep)?;
        (*ah).device = device;
        (*ah).pd = pd;
        let mut init: rdma_ah_init_attr = core::mem::zeroed();
        init.ah_attr = attr;
        init.flags = flags;
        if let Err(error) = to_result(create(ah, &raw mut init, udata)) {
            free(ah, ops.size_ib_ah);
            return Err(error);
        }
        (*pd).usecnt.counter += 1;
        state(device).count("ah", 1);
        Ok(ah)
    }
}

/// Destroys an address handle.
pub unsafe fn destroy_ah(ah: *mut ib_ah) -> Result {
    // SAFETY: The caller guarantees that the handle exists; its domain counts it as a user, and so exists as well.
    unsafe {
        let ops = ops((*ah).device);
        to_result(ops.destroy_ah.unwrap()(
            ah,
            rdma_destroy_ah_flags_RDMA_DESTROY_AH_SLEEPABLE,
        ))?;
        (*(*ah).pd).usecnt.counter -= 1;
        state((*ah).device).count("ah", -1);
        free(ah, ops.size_ib_ah);
    }
    Ok(())
}

/// Sets the core's fields of a region that the driver has allocated, and counts it.
pub unsafe fn take_mr(pd: *mut ib_pd, mr: *mut ib_mr) -> Result<*mut ib_mr> {
    // SAFETY: The caller guarantees that the domain exists, and `mr` is an error or a region that the driver has just allocated.
    unsafe {
        let mr = from_err_ptr(mr)?;
        (*mr).device = (*pd).device;
        (*mr).pd = pd;
        (*pd).usecnt.counter += 1;
        state((*pd).device).count("mr", 1);
        state((*pd).device).track(Kind::Mr, mr);
        Ok(mr)
    }
}

/// Deregisters a memory region.
pub unsafe fn dereg_mr(mr: *mut ib_mr, udata: *mut ib_udata) -> Result {
    // SAFETY: The caller guarantees that the region exists; its domain counts it as a user, and so exists as well.
    unsafe {
        let (pd, device) = ((*mr).pd, (*mr).device);
        // The core does not track it again if this fails.
        state(device).untrack(mr);
        to_result(ops(device).dereg_mr.unwrap()(mr, udata))?;
        (*pd).usecnt.counter -= 1;
        state(device).count("mr", -1);
    }
    Ok(())
}

/// Returns what `rdma resource show` prints of an object that exists, besides the core's own. `room` values fit.
///
/// # Errors
///
/// - [`ENOENT`] if there is no such object, or it is being destroyed.
/// - [`EMSGSIZE`] if there are more values.
pub fn details(device: *mut ib_device, object: usize, room: usize) -> Result<Vec<(String, u64)>> {
    let state = state(device);
    let (kind, readers) = state.tracked.borrow().get(&object).cloned().ok_or(ENOENT)?;
    let mut message = sk_buff {
        room,
        ..sk_buff::default()
    };
    readers.set(readers.get() + 1);
    sim::point();
    let (ops, raw) = (ops(device), object as *mut c_void);
    // SAFETY: The object is not destroyed as long as it has readers. Its kind is that of its creation.
    let result = to_result(unsafe {
        match kind {
            Kind::Cq => ops.fill_res_cq_entry.unwrap()(&raw mut message, raw.cast()),
            Kind::Qp => ops.fill_res_qp_entry.unwrap()(&raw mut message, raw.cast()),
            _ => ops.fill_res_mr_entry.unwrap()(&raw mut message, raw.cast()),
        }
    });
    readers.set(readers.get() - 1);
    sim::signal(Rc::as_ptr(&readers) as usize);
    result.map(|()| message.values.take())
}

/// Returns the details of all objects of a device.
pub fn all_details(device: *mut ib_device) -> Vec<Vec<(String, u64)>> {
    let objects: Vec<_> = state(device).tracked.borrow().keys().copied().collect();
    let read = |object| details(device, object, usize::MAX).ok();
    objects.into_iter().filter_map(read).collect()
}

/// Creates a completion counter.
pub unsafe fn create_counter(
    device: *mut ib_device,
    attrs: *mut uverbs_attr_bundle,
) -> Result<*mut ib_comp_cntr> {
    // SAFETY: The caller guarantees that the device is registered, and the counter has the size that the driver asks for.
    unsafe {
        let ops = ops(device);
        let create = ops.create_comp_cntr.ok_or(Error::from_errno(-95))?;
        let counter: *mut ib_comp_cntr = allocate(ops.size_ib_comp_cntr)?;
        (*counter).device = device;
        if let Err(error) = to_result(create(counter, attrs)) {
            free(counter, ops.size_ib_comp_cntr);
            return Err(error);
        }
        state(device).count("comp_cntr", 1);
        Ok(counter)
    }
}

/// Attaches a completion counter to operations of a queue pair, until that is destroyed.
pub unsafe fn attach_counter(qp: *mut ib_qp, counter: *mut ib_comp_cntr, mask: u32) -> Result {
    // SAFETY: The caller guarantees that both exist; zeroes are valid attributes.
    unsafe {
        let attach = ops((*qp).device).qp_attach_comp_cntr;
        let attach = attach.ok_or(Error::from_errno(-95))?;
        if mask & (*qp).comp_cntr_op_mask != 0 {
            return Err(EBUSY);
        }
        let mut attr: ib_qp_attach_comp_cntr_attr = core::mem::zeroed();
        attr.op_mask = mask;
        to_result(attach(qp, counter, &raw mut attr))?;
        (*counter).usecnt.counter += 1;
        (*qp).comp_cntr_op_mask |= mask;
        let state = state((*qp).device);
        let mut attached = state.attached.borrow_mut();
        attached.entry(qp as usize).or_default().push(counter);
    }
    Ok(())
}

/// Destroys a completion counter.
pub unsafe fn destroy_counter(counter: *mut ib_comp_cntr) -> Result {
    // SAFETY: The caller guarantees that the counter exists; the driver has released it before it is freed.
    unsafe {
        if (*counter).usecnt.counter != 0 {
            return Err(EBUSY);
        }
        let ops = ops((*counter).device);
        to_result(ops.destroy_comp_cntr.unwrap()(counter))?;
        state((*counter).device).count("comp_cntr", -1);
        free(counter, ops.size_ib_comp_cntr);
    }
    Ok(())
}

/// Allocates a region of up to `pages` pages for fast registration.
pub unsafe fn alloc_mr(pd: *mut ib_pd, pages: u32) -> Result<*mut ib_mr> {
    // SAFETY: The caller guarantees that the domain exists, and the driver returns a region or an error.
    unsafe {
        let alloc = (*(*pd).device).ops.alloc_mr.ok_or(EINVAL)?;
        take_mr(pd, alloc(pd, ib_mr_type_IB_MR_TYPE_MEM_REG, pages))
    }
}

/// As `ib_map_mr_sg`.
pub unsafe fn map_mr_sg(mr: *mut ib_mr, list: &mut [scatterlist]) -> Result<usize> {
    // SAFETY: The caller guarantees that the region exists, and the list is a slice.
    unsafe {
        (*mr).page_size = 4096;
        let map = (*(*mr).device).ops.map_mr_sg.expect("a function");
        let count = map(mr, list.as_mut_ptr(), list.len() as c_int, null_mut());
        to_result(count)?;
        Ok(count as usize)
    }
}
