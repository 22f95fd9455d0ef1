// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Replaces the C files in `efa_rs/ffi`: static inlines, macros, tracepoints, sizes of structures.
//!
//! A crate that links a module with `efa_rs/ffi.rs` links this crate.

#![allow(
    clippy::missing_safety_doc,
    missing_docs,
    reason = "the names and contracts are those of efa_rs/ffi"
)]

use core::mem::MaybeUninit;

use ib_core::{ffi, registry, umem, uverbs};
use kernel::{
    bindings::{self, net, nlattr, pgprot_t, sk_buff, vm_area_struct},
    error::code::EIO,
    ffi::{c_char, c_int, c_uint, c_void},
    sim,
};

/// The terminator of a list that the emulated core does not read.
struct Definitions(#[allow(dead_code)] MaybeUninit<[u64; 16]>);

// SAFETY: The value is constant.
unsafe impl Sync for Definitions {}

#[no_mangle]
static efa_uapi_definitions: Definitions = Definitions(MaybeUninit::zeroed());

#[no_mangle]
unsafe extern "C" fn efa_ib_mtu_int_to_enum(mtu: c_int) -> ffi::ib_mtu {
    match mtu {
        4096.. => ffi::ib_mtu_IB_MTU_4096,
        2048.. => ffi::ib_mtu_IB_MTU_2048,
        1024.. => ffi::ib_mtu_IB_MTU_1024,
        512.. => ffi::ib_mtu_IB_MTU_512,
        _ => ffi::ib_mtu_IB_MTU_256,
    }
}

// Netlink messages.

#[no_mangle]
unsafe extern "C" fn efa_nla_nest_driver(msg: *mut sk_buff) -> *mut nlattr {
    // SAFETY: The driver passes a message under construction.
    let before = unsafe { (*msg).values.borrow().len() };
    Box::into_raw(Box::new(nlattr { before }))
}

#[no_mangle]
unsafe extern "C" fn efa_nla_nest_end(_: *mut sk_buff, nest: *mut nlattr) {
    // SAFETY: `efa_nla_nest_driver` has returned the nest, which ends once.
    drop(unsafe { Box::from_raw(nest) });
}

#[no_mangle]
unsafe extern "C" fn efa_nla_nest_cancel(msg: *mut sk_buff, nest: *mut nlattr) {
    // SAFETY: The message is valid. `efa_nla_nest_driver` has returned the nest, which ends once.
    unsafe {
        (*msg)
            .values
            .borrow_mut()
            .truncate(Box::from_raw(nest).before)
    };
}

#[no_mangle]
unsafe extern "C" fn rdma_nl_put_driver_u64_hex(
    msg: *mut sk_buff,
    name: *const c_char,
    value: u64,
) -> c_int {
    // SAFETY: The driver passes a message under construction.
    let msg = unsafe { &*msg };
    if msg.values.borrow().len() >= msg.room {
        return -90;
    }
    // SAFETY: The driver passes a string that ends with a zero byte.
    let name = unsafe { core::ffi::CStr::from_ptr(name.cast()) };
    msg.values
        .borrow_mut()
        .push((name.to_string_lossy().into_owned(), value));
    0
}

// Network namespaces.

#[no_mangle]
unsafe extern "C" fn efa_net_cookie(device: *const ffi::ib_device) -> u64 {
    // SAFETY: The device has a namespace as long as it exists.
    unsafe { (*registry::net_of(device.cast_mut())).net_cookie }
}

#[no_mangle]
unsafe extern "C" fn efa_get_net(cookie: u64) -> *mut net {
    registry::get_net(cookie)
}

#[no_mangle]
unsafe extern "C" fn efa_put_net(net: *mut net) {
    // SAFETY: The driver puts a reference that it holds.
    let references = unsafe { &(*net).references };
    references.set(references.get() - 1);
}

// Processes.

#[no_mangle]
unsafe extern "C" fn efa_udata_to_ucontext(udata: *mut ffi::ib_udata) -> *mut ffi::ib_ucontext {
    if udata.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: The core has created `udata` for the current call.
    unsafe { uverbs::context_of(udata) }
}

#[no_mangle]
unsafe extern "C" fn efa_mmap_offset(entry: *const ffi::rdma_user_mmap_entry) -> u64 {
    // SAFETY: The driver has a reference to the entry.
    unsafe { ((*entry).start_pgoff << kernel::page::PAGE_SHIFT) as u64 }
}

#[no_mangle]
unsafe extern "C" fn efa_pgprot_noncached(vma: *const vm_area_struct) -> pgprot_t {
    // SAFETY: The core passes the area for the current call.
    unsafe { (*vma).vm_page_prot }
}

#[no_mangle]
unsafe extern "C" fn efa_pgprot_writecombine(vma: *const vm_area_struct) -> pgprot_t {
    // SAFETY: The core passes the area for the current call.
    unsafe { (*vma).vm_page_prot }
}

#[no_mangle]
unsafe extern "C" fn efa_mmap_pages(vma: *mut vm_area_struct, pages: *mut c_void) -> c_int {
    // SAFETY: The pages are allocated. The core passes the area for the current call.
    unsafe {
        bindings::get_pages(pages);
        (*vma).mapped = Some((pages as u64, None));
    }
    0
}

#[no_mangle]
unsafe extern "C" fn efa_umem_is_contiguous(umem: *mut ffi::ib_umem) -> bool {
    // SAFETY: The driver has not released the memory.
    unsafe { umem::of(umem) }.pieces().len() == 1
}

#[no_mangle]
unsafe extern "C" fn efa_umem_start(umem: *mut ffi::ib_umem) -> u64 {
    // SAFETY: The driver has not released the memory.
    unsafe { umem::of(umem) }.pieces()[0].0
}

#[no_mangle]
unsafe extern "C" fn efa_umem_num_blocks(umem: *mut ffi::ib_umem, size: usize) -> usize {
    // SAFETY: The driver has not released the memory.
    unsafe { umem::of(umem) }.count(size as u64)
}

#[no_mangle]
unsafe extern "C" fn efa_umem_iter_start(
    iter: *mut ffi::ib_block_iter,
    umem: *mut ffi::ib_umem,
    size: usize,
) {
    // SAFETY: The driver has not released the memory, and owns the iterator.
    unsafe {
        umem::of(umem).divide(size as u64);
        iter.write_bytes(0, 1);
        (*iter).__sg = umem.cast();
    }
}

#[no_mangle]
unsafe extern "C" fn efa_umem_iter_fill(
    iter: *mut ffi::ib_block_iter,
    blocks: *mut u64,
    count: usize,
) -> usize {
    // SAFETY: `efa_umem_iter_start` has set the iterator. `blocks` has room for `count` of them.
    unsafe {
        let umem = umem::of((*iter).__sg.cast());
        let blocks = core::slice::from_raw_parts_mut(blocks, count);
        let count = umem.copy_blocks((*iter).__sg_numblocks, blocks);
        (*iter).__sg_numblocks += count;
        count
    }
}

#[no_mangle]
unsafe extern "C" fn efa_ratelimit_init(slot: *mut bindings::ratelimit_state) {
    // SAFETY: The driver owns the slot, which does not move.
    unsafe { bindings::ratelimit_init(slot) }
}

#[no_mangle]
unsafe extern "C" fn efa_sema_init(slot: *mut bindings::semaphore, count: c_int) {
    // SAFETY: The driver owns the slot, which does not move.
    unsafe { bindings::sema_init(slot, count) }
}

#[no_mangle]
unsafe extern "C" fn efa_init_delayed_work(
    slot: *mut bindings::delayed_work,
    function: Option<unsafe extern "C" fn(*mut bindings::work_struct)>,
) {
    // SAFETY: The driver owns the slot, which does not move.
    unsafe { bindings::init_delayed_work(slot, function) }
}

#[no_mangle]
unsafe extern "C" fn efa_init_utsname(version: bool) -> *const c_char {
    let name = if version { c"#1 host" } else { c"7.0.0-host" };
    name.as_ptr().cast()
}

/// Number of CPUs.
const CPUS: u32 = 2;

#[no_mangle]
unsafe extern "C" fn efa_num_online_cpus() -> c_uint {
    CPUS
}

#[no_mangle]
unsafe extern "C" fn efa_cpumask_of_nth_online(n: c_uint) -> *const bindings::cpumask {
    if n < CPUS {
        &raw const bindings::ONE_CPU
    } else {
        core::ptr::null()
    }
}

#[no_mangle]
unsafe extern "C" fn efa_ioremap_wc(start: u64, length: usize) -> *mut c_void {
    // SAFETY: The driver has reserved the region.
    unsafe { bindings::ioremap_wc(start, length) }
}

#[no_mangle]
unsafe extern "C" fn efa_ring_ordered(value: u32, doorbell: *mut c_void) {
    // SAFETY: The driver has mapped the register.
    unsafe { bindings::writel(value, doorbell) }
}

#[no_mangle]
unsafe extern "C" fn efa_alloc_user_pages(size: usize) -> *mut c_void {
    // SAFETY: All sizes are allowed.
    unsafe { bindings::alloc_pages_exact(size) }
}

#[no_mangle]
unsafe extern "C" fn efa_dma_map(
    device: *mut bindings::device,
    pages: *mut c_void,
    size: usize,
    address: *mut u64,
) -> c_int {
    /// Bits of the addresses of pages.
    const WIDTH: u32 = 46;
    // SAFETY: The device is valid, and does DMA.
    if unsafe { *(*device).dma_mask } < (1 << WIDTH) - 1 {
        return EIO.to_errno();
    }
    // SAFETY: The pages are allocated. `address` points to a variable of the caller.
    unsafe { *address = sim::memory::map(pages.cast(), size) };
    0
}

#[no_mangle]
unsafe extern "C" fn efa_dma_unmap(_: *mut bindings::device, address: u64, _: usize) {
    sim::memory::unmap(address);
}

#[no_mangle]
unsafe extern "C" fn efa_coherent_to_pfn(memory: *mut c_void) -> usize {
    memory as usize >> 12
}

unsafe fn text<'a>(text: *const c_char, length: c_uint) -> &'a str {
    // SAFETY: The tracepoint passes address and length of a Rust string.
    unsafe { core::str::from_utf8_unchecked(core::slice::from_raw_parts(text, length as usize)) }
}

#[no_mangle]
extern "C" fn efa_trace_commands_enabled() -> bool {
    true
}

#[no_mangle]
unsafe extern "C" fn efa_trace_command_submitted(
    _: *const bindings::device,
    opcode: *const c_char,
    length: c_uint,
    id: u16,
) {
    // SAFETY: The tracepoint passes address and length of a Rust string.
    sim::log(format_args!("trace: {} submitted, id {id:#x}\n", unsafe {
        text(opcode, length)
    }));
}

#[no_mangle]
unsafe extern "C" fn efa_trace_command_completed(
    _: *const bindings::device,
    opcode: *const c_char,
    length: c_uint,
    status: u8,
    latency: u64,
) {
    // SAFETY: The tracepoint passes address and length of a Rust string.
    let opcode = unsafe { text(opcode, length) };
    sim::log(format_args!(
        "trace: {opcode} completed, status {status}, {latency} us\n"
    ));
}

#[no_mangle]
unsafe extern "C" fn efa_trace_event(_: *mut bindings::device, group: u16, syndrome: u16) {
    sim::log(format_args!("trace: event {group}, {syndrome}\n"));
}

#[no_mangle]
unsafe extern "C" fn efa_trace_reset(
    _: *mut bindings::device,
    reason: *const c_char,
    length: c_uint,
) {
    // SAFETY: The tracepoint passes address and length of a Rust string.
    sim::log(format_args!("trace: reset, {}\n", unsafe {
        text(reason, length)
    }));
}

#[no_mangle]
unsafe extern "C" fn efa_trace_state(
    _: *mut bindings::device,
    state: *const c_char,
    length: c_uint,
) {
    // SAFETY: The tracepoint passes address and length of a Rust string.
    sim::log(format_args!("trace: {}\n", unsafe { text(state, length) }));
}
