// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Types that bindgen's output refers to. A type whose fields are not used has none.

use core::cell::{Cell, RefCell};

use crate::ffi::{c_int, c_ulong};

pub type __u8 = u8;
pub type __u16 = u16;
pub type __u32 = u32;
pub type __u64 = u64;
pub type __s32 = i32;
pub type __s64 = i64;
pub type u8_ = u8;
pub type u16_ = u16;
pub type u32_ = u32;
pub type u64_ = u64;
pub type s64 = i64;
pub type bool_ = bool;
pub type __be16 = u16;
pub type __be32 = u32;
pub type __be64 = u64;
pub type __sum16 = u16;
pub type dma_addr_t = u64;
pub type phys_addr_t = u64;
pub type gfp_t = u32;
pub type off_t = isize;
pub type ktime_t = i64;
pub type work_func_t = Option<unsafe extern "C" fn(*mut super::work_struct)>;

macro_rules! empty {
    ($($name:ident)*) => {$(
        #[derive(Clone, Copy, Default)]
        pub struct $name;
    )*};
}

empty! {
    net_device nlmsghdr inode netlink_ext_ack file_operations cgroup_file
    phys_vec p2pdma_provider netlink_callback module mm_struct dma_buf_attachment
    dma_buf_attach_ops cgroup_subsys_state task_struct sg_table sg_append_table file
    callback_head list_head hlist_node xarray rwlock_t
    mutex rw_semaphore atomic64_t refcount_t sockaddr page
}

/// Memory for a lock. C structures that contain one are copied while it is not in use.
#[derive(Clone, Copy, Default)]
pub struct spinlock_t(#[allow(dead_code, reason = "a `RawLock` is stored there")] [usize; 8]);

pub struct lock_class_key;

#[derive(Clone, Copy, Default)]
pub struct atomic_t {
    pub counter: c_int,
}

#[derive(Clone, Copy, Default)]
pub struct kref {
    pub refcount: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct pgprot_t {
    pub pgprot: c_ulong,
}

/// A network namespace.
pub struct net {
    pub net_cookie: u64,
    pub references: Cell<u32>,
}

/// A mapping that a process is creating.
#[derive(Default)]
pub struct vm_area_struct {
    pub vm_start: c_ulong,
    pub vm_end: c_ulong,
    pub vm_pgoff: c_ulong,
    pub vm_page_prot: pgprot_t,
    /// Address of the first mapped page, and that of the entry to which the mapping refers, unless the pages are host memory.
    pub mapped: Option<(u64, Option<usize>)>,
}

/// A netlink message under construction: names and values.
#[derive(Default)]
pub struct sk_buff {
    pub values: RefCell<Vec<(String, u64)>>,
    /// Limit on the number of values.
    pub room: usize,
}

pub struct nlattr {
    /// Number of values before the nest.
    pub before: usize,
}

/// An entry of the list that a client maps.
#[derive(Clone, Copy, Default)]
pub struct scatterlist {
    pub dma_address: u64,
    pub length: u32,
}

pub unsafe fn sg_init_table(list: *mut scatterlist, count: u32) {
    // SAFETY: The caller guarantees that there is room.
    unsafe { list.write_bytes(0, count as usize) };
}
