// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! C functions that clients and drivers call for objects.

use core::ptr::null_mut;

use kernel::{
    bindings::scatterlist,
    error::{code::*, Error, Result},
    ffi::{c_char, c_int, c_uint, c_void},
};

use crate::{ffi::*, verbs};

/// Converts a result to a pointer, or to an error pointer.
fn pointer<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(Error::to_ptr)
}

fn errno(result: Result) -> c_int {
    result.err().map_or(0, Error::to_errno)
}

#[no_mangle]
unsafe extern "C" fn __ib_alloc_pd(
    device: *mut ib_device,
    _: c_uint,
    _: *const c_char,
) -> *mut ib_pd {
    // SAFETY: By the contract of `__ib_alloc_pd`, the device is registered.
    pointer(unsafe { verbs::alloc_pd(device, null_mut()) })
}

#[no_mangle]
unsafe extern "C" fn ib_dealloc_pd_user(pd: *mut ib_pd, udata: *mut ib_udata) -> c_int {
    // SAFETY: By the contract of `ib_dealloc_pd_user`, the domain exists and is not in use.
    errno(unsafe { verbs::dealloc_pd(pd, udata) })
}

#[no_mangle]
unsafe extern "C" fn rdma_create_ah(
    pd: *mut ib_pd,
    attr: *mut rdma_ah_attr,
    flags: u32,
) -> *mut ib_ah {
    // SAFETY: By the contract of `rdma_create_ah`, the domain exists and the attributes are valid.
    pointer(unsafe { verbs::create_ah_of(pd, attr, flags, null_mut()) })
}

#[no_mangle]
unsafe extern "C" fn rdma_destroy_ah_user(ah: *mut ib_ah, _: u32, _: *mut ib_udata) -> c_int {
    // SAFETY: By the contract of `rdma_destroy_ah_user`, the handle exists and is not in use.
    errno(unsafe { verbs::destroy_ah(ah) })
}

type EventHandler = Option<unsafe extern "C" fn(*mut ib_event, *mut c_void)>;

#[no_mangle]
unsafe extern "C" fn __ib_create_cq(
    device: *mut ib_device,
    comp_handler: ib_comp_handler,
    event_handler: EventHandler,
    context: *mut c_void,
    attr: *const ib_cq_init_attr,
    _: *const c_char,
) -> *mut ib_cq {
    // SAFETY: `create_cq` passes the queue that it has just allocated.
    let prepare = |cq: *mut ib_cq| unsafe {
        (*cq).comp_handler = comp_handler;
        (*cq).event_handler = event_handler;
        (*cq).cq_context = context;
    };
    // SAFETY: By the contract of `__ib_create_cq`, the device is registered and the attributes are valid.
    pointer(unsafe { verbs::create_cq(device, &*attr, null_mut(), prepare) })
}

#[no_mangle]
unsafe extern "C" fn ib_destroy_cq_user(cq: *mut ib_cq, udata: *mut ib_udata) -> c_int {
    // SAFETY: By the contract of `ib_destroy_cq_user`, the queue exists and is not in use.
    errno(unsafe { verbs::destroy_cq(cq, udata) })
}

#[no_mangle]
unsafe extern "C" fn ib_create_qp_kernel(
    pd: *mut ib_pd,
    attr: *mut ib_qp_init_attr,
    _: *const c_char,
) -> *mut ib_qp {
    // SAFETY: By the contract of `ib_create_qp_kernel`, the domain and the queues exist, and nothing else uses the attributes.
    pointer(unsafe { verbs::create_qp(pd, &mut *attr, null_mut()) })
}

#[no_mangle]
unsafe extern "C" fn ib_modify_qp(qp: *mut ib_qp, attr: *mut ib_qp_attr, mask: c_int) -> c_int {
    // SAFETY: By the contract of `ib_modify_qp`, the queue pair exists and the attributes are valid.
    errno(unsafe { verbs::modify_qp(qp, attr, mask as u32, null_mut()) })
}

#[no_mangle]
unsafe extern "C" fn ib_destroy_qp_user(qp: *mut ib_qp, udata: *mut ib_udata) -> c_int {
    // SAFETY: By the contract of `ib_destroy_qp_user`, the queue pair exists and is not in use.
    errno(unsafe { verbs::destroy_qp(qp, udata) })
}

#[no_mangle]
unsafe extern "C" fn ib_alloc_mr(pd: *mut ib_pd, kind: ib_mr_type, pages: u32) -> *mut ib_mr {
    if kind != ib_mr_type_IB_MR_TYPE_MEM_REG {
        return EINVAL.to_ptr();
    }
    // SAFETY: By the contract of `ib_alloc_mr`, the domain exists.
    pointer(unsafe { verbs::alloc_mr(pd, pages) })
}

#[no_mangle]
unsafe extern "C" fn ib_dereg_mr_user(mr: *mut ib_mr, udata: *mut ib_udata) -> c_int {
    // SAFETY: By the contract of `ib_dereg_mr_user`, the region exists and is not in use.
    errno(unsafe { verbs::dereg_mr(mr, udata) })
}

#[no_mangle]
unsafe extern "C" fn ib_map_mr_sg(
    mr: *mut ib_mr,
    list: *mut scatterlist,
    count: c_int,
    offset: *mut c_uint,
    page_size: c_uint,
) -> c_int {
    // SAFETY: By the contract of `ib_map_mr_sg`, the region exists, the list has `count` entries, and `offset` is null or valid.
    unsafe {
        (*mr).page_size = page_size;
        (*(*mr).device).ops.map_mr_sg.expect("a function")(mr, list, count, offset)
    }
}

#[no_mangle]
unsafe extern "C" fn rdma_query_gid(
    device: *mut ib_device,
    port: u32,
    index: c_int,
    gid: *mut ib_gid,
) -> c_int {
    // SAFETY: By the contract of `rdma_query_gid`, the device is registered and there is room for a GID.
    unsafe {
        if port != 1 || index < 0 || index as u32 >= crate::registry::state(device).attr.get().0 {
            return EINVAL.to_errno();
        }
        (*device).ops.query_gid.expect("a function")(device, port, index, gid)
    }
}

/// Checks a state transition of unreliable datagrams, the only type that the driver asks for.
#[no_mangle]
unsafe extern "C" fn ib_modify_qp_is_ok(
    from: ib_qp_state,
    to: ib_qp_state,
    kind: ib_qp_type,
    mask: ib_qp_attr_mask,
) -> bool {
    use self::{
        ib_qp_attr_mask_IB_QP_CUR_STATE as CUR_STATE,
        ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY as NOTIFY,
        ib_qp_attr_mask_IB_QP_PKEY_INDEX as PKEY, ib_qp_attr_mask_IB_QP_PORT as PORT,
        ib_qp_attr_mask_IB_QP_QKEY as QKEY, ib_qp_attr_mask_IB_QP_SQ_PSN as PSN,
        ib_qp_attr_mask_IB_QP_STATE as STATE,
    };
    assert_eq!(kind, ib_qp_type_IB_QPT_UD, "unsupported type");
    const RESET: u32 = 0;
    const INIT: u32 = 1;
    const RTR: u32 = 2;
    const RTS: u32 = 3;
    const SQD: u32 = 4;
    const SQE: u32 = 5;
    const ERR: u32 = 6;
    if mask & CUR_STATE != 0 && !matches!(from, RTR | RTS | SQD | SQE) {
        return false;
    }
    let (required, optional) = match (from, to) {
        (RESET, ERR) => return false,
        (_, RESET) | (_, ERR) => (0, 0),
        (RESET, INIT) => (PKEY | PORT | QKEY, 0),
        (INIT, INIT) => (0, PKEY | PORT | QKEY),
        (INIT, RTR) => (0, PKEY | QKEY),
        (RTR, RTS) => (PSN, CUR_STATE | QKEY),
        (RTS, RTS) | (SQD, RTS) | (SQE, RTS) => (0, CUR_STATE | QKEY),
        (RTS, SQD) => (0, NOTIFY),
        (SQD, SQD) => (0, PKEY | QKEY),
        _ => return false,
    };
    mask & required == required && mask & !(required | optional | STATE) == 0
}

#[no_mangle]
unsafe extern "C" fn ib_sg_to_pages(
    mr: *mut ib_mr,
    list: *mut scatterlist,
    count: c_int,
    offset: *mut c_uint,
    set_page: Option<unsafe extern "C" fn(*mut ib_mr, u64) -> c_int>,
) -> c_int {
    // SAFETY: By the contract of `ib_sg_to_pages`, the region exists, the list has `count` entries, and `offset` is null or valid.
    unsafe {
        let mut skip = offset.as_ref().copied().unwrap_or(0);
        if count <= 0 || skip > (*list).length {
            return EINVAL.to_errno();
        }
        let size = u64::from((*mr).page_size);
        let set_page = set_page.expect("a function");
        (*mr).iova = (*list).dma_address + u64::from(skip);
        (*mr).length = 0;
        let mut last_end = 0;
        for index in 0..count {
            let one = &*list.add(index as usize);
            let start = one.dma_address + u64::from(skip);
            let end = one.dma_address + u64::from(one.length);
            let mut page = start / size * size;
            // Only the first and the last address of the list may be within a page, unless an element continues the
            // previous one, whose last page is set already.
            if index > 0 && (last_end % size != 0 || page != start) {
                if last_end != start {
                    set_offset(offset, 0);
                    return index;
                }
                page += size;
            }
            // The core sets a page for an empty element, too.
            let mut is_first = page <= start;
            while is_first || page < end {
                let result = set_page(mr, page);
                if result < 0 {
                    let done = page.max(start) - start;
                    (*mr).length += done;
                    skip += done as u32;
                    set_offset(offset, skip);
                    return if index > 0 || skip > 0 { index } else { result };
                }
                (is_first, page) = (false, page + size);
            }
            (*mr).length += end - start;
            (last_end, skip) = (end, 0);
        }
        set_offset(offset, 0);
    }
    count
}

/// Writes the offset in the first element that was not mapped, if the caller wants it.
unsafe fn set_offset(place: *mut c_uint, offset: u32) {
    // SAFETY: The caller guarantees that the place is null or valid.
    if let Some(place) = unsafe { place.as_mut() } {
        *place = offset;
    }
}
