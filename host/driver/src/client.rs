// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! In-kernel clients of the RDMA core, which use the device by its kernel verbs.

use core::{
    cell::{Cell, RefCell},
    ptr::null_mut,
};
use std::rc::Rc;

use ib_core::{client, cq, ffi::*, registry, uverbs::zeroed, verbs};
use kernel::{
    bindings::scatterlist,
    error::{to_result, Result},
    ffi::c_int,
    sim::{self, RawLock},
};

use crate::program::{qp_attr, QKEY, UP};

/// Poll context: the client polls its completion queue.
pub const DIRECT: ib_poll_context = ib_poll_context_IB_POLL_DIRECT;
/// Poll context: a work item of the core polls the completion queue.
pub const WORKQUEUE: ib_poll_context = ib_poll_context_IB_POLL_WORKQUEUE;

/// Length of a message in bytes.
const LENGTH: u32 = 1000;

/// One generation of a memory region's keys: `efa_inc_fast_reg_key_gen` in `efa_verbs.h` adds it.
pub const GENERATION: u32 = 1 << 20;

/// Number of buffers beyond the limit for a receive of [`Objects`].
const TOO_MANY: usize = 17;

/// Size of a client's memory in bytes: one page to send from, and one to receive into.
const MEMORY: usize = 8192;

/// Number of slots for messages of each direction, and their size in bytes.
const SLOTS: usize = 32;
const SLOT: usize = MEMORY / 2 / SLOTS;

/// Immediate data of each message, but for its low byte.
const MAGIC: u32 = 0x0102_0300;

/// A work request of a client. On its completion, the core calls the function of its `cqe`.
#[repr(C)]
pub struct Request {
    cqe: ib_cqe,
    /// Status of the completion, an `IB_WC_*`. `None` until then.
    pub status: Cell<Option<u32>>,
    /// Length and immediate data of the message that a receive has got.
    pub received: Cell<(u32, u32)>,
    /// Queue pair that sent it.
    pub source: Cell<u32>,
    /// Duration of the completion function in nanoseconds.
    takes: Cell<u64>,
}

extern "C" fn done(_: *mut ib_cq, wc: *mut ib_wc) {
    // SAFETY: The request exists until this function has been called.
    unsafe {
        let request = &*(*wc).__bindgen_anon_1.wr_cqe.as_ref().cast::<Request>();
        if request.takes.get() != 0 {
            sim::sleep(request.takes.get());
        }
        assert_eq!(request.status.get(), None, "a request has completed twice");
        request.status.set(Some((*wc).status));
        let immediate = u32::from_be(*(&raw const (*wc).ex).cast::<u32>());
        request.received.set(((*wc).byte_len, immediate));
        request.source.set((*wc).src_qp);
    }
}

impl Request {
    /// Creates a request whose completion function takes `takes` nanoseconds.
    pub fn new(takes: u64) -> Box<Self> {
        let (status, takes) = (Cell::new(None), Cell::new(takes));
        Box::new(Self {
            cqe: ib_cqe { done: Some(done) },
            status,
            received: Cell::default(),
            source: Cell::default(),
            takes,
        })
    }

    /// Returns the `wr_id` of its completions.
    pub fn id(&self) -> u64 {
        self.cqe() as u64
    }

    /// Returns a pointer to its `cqe`, which the core does not modify.
    pub fn cqe(&self) -> *mut ib_cqe {
        (&raw const self.cqe).cast_mut()
    }
}

/// The requests of the messages of a client, each with a slot of memory.
#[derive(Default)]
struct Messages {
    sends: [Option<Box<Request>>; SLOTS],
    recvs: [Option<Box<Request>>; SLOTS],
    /// Number of messages that were sent, and that have arrived.
    sent: u32,
    arrived: u32,
}

/// RDMA objects of a client on one device.
pub struct Objects {
    /// The device.
    pub device: *mut ib_device,
    /// Its protection domain.
    pub pd: *mut ib_pd,
    /// Its completion queue.
    pub cq: *mut ib_cq,
    /// Its queue pair, in the RTS state.
    pub qp: *mut ib_qp,
    /// Its address handle, of the device itself.
    pub ah: *mut ib_ah,
    /// Its memory: a page to send from, and one to receive into.
    pub memory: *mut u8,
    address: u64,
    messages: RefCell<Messages>,
    /// Limit on the messages in each of its queues.
    depth: u32,
    /// Whether the messages that arrive are those that were sent, as the device does not lie.
    pub is_honest: bool,
}

impl Objects {
    /// Creates all objects. `context` is the poll context of the completion queue.
    pub fn new(device: *mut ib_device, context: ib_poll_context) -> Result<Self> {
        Self::with_depth(device, context, 31)
    }

    /// As [`Objects::new`], with queues for `depth` requests and the one that a drain posts.
    #[allow(
        clippy::not_unsafe_ptr_arg_deref,
        reason = "the core gives registered devices only"
    )]
    pub fn with_depth(
        device: *mut ib_device,
        context: ib_poll_context,
        depth: u32,
    ) -> Result<Self> {
        // Objects that are not created are null, so that the drop skips them.
        let mut this = Self {
            device,
            pd: null_mut(),
            cq: null_mut(),
            qp: null_mut(),
            ah: null_mut(),
            memory: sim::memory::allocate(MEMORY, 4096),
            address: 0,
            messages: RefCell::default(),
            depth,
            is_honest: true,
        };
        this.address = sim::memory::map(this.memory, MEMORY);
        // SAFETY: The device is registered.
        unsafe {
            this.pd = verbs::alloc_pd(device, null_mut())?;
            this.cq = cq::alloc_cq(device, 4 * (depth + 1), context)?;
            this.qp = verbs::create_qp(this.pd, &mut this.qp_attr(), null_mut())?;
            this.modify_qp(&UP)?;
            this.ah = verbs::create_ah(this.pd, &registry::gid(device)?, null_mut())?;
        }
        Ok(this)
    }

    /// Returns the attributes with which its queue pair is created.
    pub fn qp_attr(&self) -> ib_qp_init_attr {
        let mut attr: ib_qp_init_attr = zeroed();
        attr.send_cq = self.cq;
        attr.recv_cq = self.cq;
        attr.qp_type = ib_qp_type_IB_QPT_RESERVED1;
        attr.sq_sig_type = ib_sig_type_IB_SIGNAL_ALL_WR;
        (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (self.depth + 1, self.depth + 1);
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        attr
    }

    /// Replaces the queue pair by one for `receives` receives with up to `buffers` buffers each.
    pub fn replace_qp(&mut self, receives: u32, buffers: u32) -> Result {
        let mut attr = self.qp_attr();
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (receives, buffers);
        self.new_qp(&mut attr)?;
        self.modify_qp(&UP)
    }

    /// Replaces the queue pair by one in the reset state.
    pub fn new_qp(&mut self, attr: &mut ib_qp_init_attr) -> Result {
        // SAFETY: The queue pair is not in use, and the objects that the new one needs exist.
        unsafe {
            verbs::destroy_qp(self.qp, null_mut())?;
            self.qp = null_mut();
            self.qp = verbs::create_qp(self.pd, attr, null_mut())?;
        }
        Ok(())
    }

    /// Moves the queue pair through `states`, each an `IB_QPS_*`.
    pub fn modify_qp(&self, states: &[u32]) -> Result {
        for state in states {
            let (mut attr, mask) = qp_attr(*state);
            // SAFETY: The queue pair exists.
            unsafe { verbs::modify_qp(self.qp, &raw mut attr, mask, null_mut())? };
        }
        Ok(())
    }

    /// Returns a buffer in its memory.
    pub fn sge(&self, offset: u64, length: u32) -> ib_sge {
        // SAFETY: The domain exists.
        let lkey = unsafe { (*self.pd).local_dma_lkey };
        ib_sge {
            addr: self.address + offset,
            length,
            lkey,
        }
    }

    /// Posts a receive.
    pub fn post_recv(&self, request: &Request) -> Result {
        self.post_recv_of(request, LENGTH)
    }

    /// Posts a receive with a buffer of `length` bytes. A message of the client fills its start.
    pub fn post_recv_of(&self, request: &Request, length: u32) -> Result {
        let mut sge = self.sge(4096, length);
        let mut wr: ib_recv_wr = zeroed();
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        // SAFETY: All variants of the union have the same size.
        unsafe { *wr.__bindgen_anon_1.wr_cqe.as_mut() = request.cqe() };
        self.post_receives(&raw const wr).0
    }

    /// As [`Objects::post`], for receives.
    fn post_receives(&self, first: *const ib_recv_wr) -> (Result, *const ib_recv_wr) {
        let mut bad = core::ptr::null();
        // SAFETY: The queue pair exists.
        let result = unsafe {
            let post = (*self.device).ops.post_recv.unwrap();
            to_result(post(self.qp, first, &raw mut bad))
        };
        (result, bad)
    }

    /// Posts a send to its own queue pair.
    pub fn post_send(&self, request: &Request) -> Result {
        // SAFETY: The queue pair exists.
        self.post_send_to(unsafe { (*self.qp).qp_num }, request)
    }

    /// Posts a send, with a solicited event, to the queue pair of a number.
    pub fn post_send_to(&self, remote_qpn: u32, request: &Request) -> Result {
        let mut sge = self.sge(0, LENGTH);
        let mut wr: ib_srd_wr = zeroed();
        wr.wr.sg_list = &raw mut sge;
        wr.wr.num_sge = 1;
        wr.wr.opcode = ib_wr_opcode_IB_WR_SEND;
        let flags = ib_send_flags_IB_SEND_SIGNALED | ib_send_flags_IB_SEND_SOLICITED;
        wr.wr.send_flags = flags as c_int;
        (wr.ah, wr.remote_qpn, wr.remote_qkey) = (self.ah, remote_qpn, QKEY);
        // SAFETY: All variants of the union have the same size.
        unsafe { *wr.wr.__bindgen_anon_1.wr_cqe.as_mut() = request.cqe() };
        self.post((&raw const wr).cast()).0
    }

    /// Posts work requests, each of the kind that its opcode names. Returns the result, and the one that has failed.
    #[allow(
        clippy::not_unsafe_ptr_arg_deref,
        reason = "each test passes requests of its own"
    )]
    pub fn post(&self, first: *const ib_send_wr) -> (Result, *const ib_send_wr) {
        let mut bad = core::ptr::null();
        // SAFETY: The queue pair exists.
        let result = unsafe {
            let post = (*self.device).ops.post_send.unwrap();
            to_result(post(self.qp, first, &raw mut bad))
        };
        (result, bad)
    }

    /// Posts a message to itself, or a receive, in a free slot. The bytes of the message and its immediate data are a number.
    pub fn post_message(&self, is_send: bool) -> Result {
        self.check_messages();
        let mut messages = self.messages.borrow_mut();
        let number = messages.sent as u8;
        let slots = if is_send {
            &mut messages.sends
        } else {
            &mut messages.recvs
        };
        let Some(slot) = slots[..self.depth as usize]
            .iter()
            .position(Option::is_none)
        else {
            return Ok(());
        };
        let request = slots[slot].insert(Request::new(0));
        let offset = slot * SLOT + if is_send { 0 } else { MEMORY / 2 };
        // SAFETY: The memory has this slot, and no request that is outstanding uses it.
        unsafe {
            self.memory
                .add(offset)
                .write_bytes(if is_send { number } else { !0 }, SLOT)
        };
        let mut sge = self.sge(offset as u64, SLOT as u32);
        let (mut send, mut recv): (ib_srd_wr, ib_recv_wr) = (zeroed(), zeroed());
        (send.wr.sg_list, send.wr.num_sge) = (&raw mut sge, 1);
        (recv.sg_list, recv.num_sge) = (&raw mut sge, 1);
        send.wr.opcode = ib_wr_opcode_IB_WR_SEND_WITH_IMM;
        send.wr.send_flags = ib_send_flags_IB_SEND_SIGNALED as c_int;
        (send.ah, send.remote_qkey) = (self.ah, QKEY);
        // SAFETY: The queue pair and its device exist, and all variants of the unions have the same size.
        let result = unsafe {
            send.remote_qpn = (*self.qp).qp_num;
            *send.wr.ex.imm_data.as_mut() = (MAGIC | u32::from(number)).to_be();
            *send.wr.__bindgen_anon_1.wr_cqe.as_mut() = request.cqe();
            *recv.__bindgen_anon_1.wr_cqe.as_mut() = request.cqe();
            match is_send {
                true => self.post((&raw const send).cast()).0,
                false => self.post_receives(&raw const recv).0,
            }
        };
        match result {
            Err(_) => slots[slot] = None,
            Ok(()) => messages.sent += u32::from(is_send),
        }
        result
    }

    /// Checks the messages that have arrived, and frees the slots of requests that have completed.
    fn check_messages(&self) {
        let mut messages = self.messages.borrow_mut();
        let has_ended = |request: &Request| request.status.get().is_some();
        for slot in 0..SLOTS {
            messages.sends[slot].take_if(|request| has_ended(request));
            let Some(request) = messages.recvs[slot].take_if(|request| has_ended(request)) else {
                continue;
            };
            if self.is_honest && request.status.get() == Some(ib_wc_status_IB_WC_SUCCESS) {
                let (length, immediate) = request.received.get();
                assert_eq!(
                    (length, immediate & !0xff),
                    (SLOT as u32, MAGIC),
                    "a message"
                );
                let start = MEMORY / 2 + slot * SLOT;
                // SAFETY: The memory has this slot.
                let bytes = unsafe { core::slice::from_raw_parts(self.memory.add(start), SLOT) };
                assert!(
                    bytes
                        .iter()
                        .all(|byte| u32::from(*byte) == immediate & 0xff),
                    "{bytes:?}"
                );
                messages.arrived += 1;
                assert!(
                    messages.arrived <= messages.sent,
                    "a message has arrived twice"
                );
            }
        }
    }

    /// Returns the number of requests of messages that have not completed: of sends, and of receives.
    pub fn outstanding(&self) -> (usize, usize) {
        self.check_messages();
        let messages = self.messages.borrow();
        let count = |slots: &[Option<Box<Request>>]| slots.iter().flatten().count();
        (count(&messages.sends), count(&messages.recvs))
    }

    /// Allocates a region, changes the low bits of its keys, as a client may do, and deregisters it.
    pub fn change_key(&self, by: u8) {
        let Ok(mr) = self.mapped_region() else {
            return;
        };
        // SAFETY: The region was just allocated, and nothing else uses it.
        unsafe {
            (*mr).lkey ^= u32::from(by);
            (*mr).rkey ^= u32::from(by);
            verbs::ignore("ib_dereg_mr", verbs::dereg_mr(mr, null_mut()));
        }
    }

    /// Posts receives, with too many buffers at index `bad`. Returns result and failed index.
    pub fn post_recvs(&self, requests: &[Box<Request>], bad: usize) -> (Result, Option<usize>) {
        let mut sges = [(); TOO_MANY].map(|()| self.sge(4096, LENGTH));
        let mut wrs: Vec<ib_recv_wr> = requests.iter().map(|_| zeroed()).collect();
        for (index, (wr, request)) in wrs.iter_mut().zip(requests).enumerate() {
            wr.sg_list = sges.as_mut_ptr();
            wr.num_sge = if index == bad { TOO_MANY as c_int } else { 1 };
            // SAFETY: All variants of the union have the same size.
            unsafe { *wr.__bindgen_anon_1.wr_cqe.as_mut() = request.cqe() };
        }
        for index in 1..wrs.len() {
            wrs[index - 1].next = &raw mut wrs[index];
        }
        let (result, end) = self.post_receives(wrs.as_ptr());
        (result, wrs.iter().position(|wr| core::ptr::eq(wr, end)))
    }

    /// As [`Objects::post_recvs`], for sends to itself with an invalid opcode at index `bad`.
    pub fn post_sends(&self, requests: &[Box<Request>], bad: usize) -> (Result, Option<usize>) {
        let mut sge = self.sge(0, LENGTH);
        let mut wrs: Vec<ib_srd_wr> = requests.iter().map(|_| zeroed()).collect();
        for (index, (wr, request)) in wrs.iter_mut().zip(requests).enumerate() {
            wr.wr.sg_list = &raw mut sge;
            wr.wr.num_sge = 1;
            wr.wr.opcode = if index == bad {
                ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP
            } else {
                ib_wr_opcode_IB_WR_SEND
            };
            wr.wr.send_flags = ib_send_flags_IB_SEND_SIGNALED as c_int;
            (wr.ah, wr.remote_qkey) = (self.ah, QKEY);
            // SAFETY: The queue pair exists, and all variants of the union have the same size.
            unsafe {
                wr.remote_qpn = (*self.qp).qp_num;
                *wr.wr.__bindgen_anon_1.wr_cqe.as_mut() = request.cqe();
            }
        }
        for index in 1..wrs.len() {
            wrs[index - 1].wr.next = (&raw mut wrs[index]).cast();
        }
        let (result, end) = self.post(wrs.as_ptr().cast());
        let is_end = |wr: &ib_srd_wr| core::ptr::eq((&raw const wr.wr), end);
        (result, wrs.iter().position(is_end))
    }

    /// Polls one completion without calling its function, and returns its id.
    pub fn poll_one(&self) -> Option<u64> {
        let mut wc: ib_wc = zeroed();
        // SAFETY: The queue exists.
        unsafe {
            let count = (*self.device).ops.poll_cq.unwrap()(self.cq, 1, &raw mut wc);
            (count == 1).then(|| *wc.__bindgen_anon_1.wr_id.as_ref())
        }
    }

    /// Polls the completion queue, unless the core polls it.
    pub fn poll(&self) {
        // SAFETY: The queue exists.
        unsafe {
            if (*self.cq).poll_ctx == DIRECT {
                cq::ib_process_cq_direct(self.cq, -1);
            }
        }
    }

    /// Sends a message filled with `value` to itself, and checks its arrival.
    pub fn exchange(&self, value: u8) {
        let (send, recv) = (Request::new(0), Request::new(0));
        // SAFETY: The memory is longer than a message.
        unsafe { self.memory.write_bytes(value, LENGTH as usize) };
        self.post_recv(&recv).expect("a receive");
        self.post_send(&send).expect("a send");
        // Reestablishing a connection takes longer.
        let pauses = [(100, 10_000), (100, 100_000_000)];
        for pause in pauses
            .into_iter()
            .flat_map(|(count, pause)| vec![pause; count])
        {
            self.poll();
            if send.status.get().is_some() && recv.status.get().is_some() {
                break;
            }
            sim::sleep(pause);
        }
        assert_eq!((send.status.get(), recv.status.get()), (Some(0), Some(0)));
        self.expect(4096, value);
    }

    /// Checks the bytes of a message at an offset in its memory.
    pub fn expect(&self, offset: usize, value: u8) {
        // SAFETY: The memory extends beyond these bytes.
        let bytes =
            unsafe { core::slice::from_raw_parts(self.memory.add(offset), LENGTH as usize) };
        assert!(
            bytes.iter().all(|byte| *byte == value),
            "other bytes have arrived"
        );
    }

    /// Posts a work request that the driver accepts. Returns its completion status, or `None` after 1 ms.
    #[expect(
        clippy::not_unsafe_ptr_arg_deref,
        reason = "each test passes a request of its own, of the kind that its opcode names"
    )]
    pub fn wait_for(&self, wr: *mut ib_send_wr) -> Option<u32> {
        let request = Request::new(0);
        // SAFETY: All variants of the union have the same size.
        unsafe { *(*wr).__bindgen_anon_1.wr_cqe.as_mut() = request.cqe() };
        self.post(wr).0.expect("a work request");
        for _ in 0..100 {
            self.poll();
            if request.status.get().is_some() {
                break;
            }
            sim::sleep(10_000);
        }
        request.status.get()
    }

    /// Allocates a region for fast registration, and maps all memory of the client into it.
    pub fn mapped_region(&self) -> Result<*mut ib_mr> {
        let mut list = [scatterlist {
            dma_address: self.address,
            length: MEMORY as u32,
        }];
        // SAFETY: The domain exists.
        let mr = unsafe { verbs::alloc_mr(self.pd, 4) }?;
        // SAFETY: The region was just allocated.
        assert_eq!(unsafe { verbs::map_mr_sg(mr, &mut list) }, Ok(1));
        Ok(mr)
    }

    /// Posts the registration of a region. Its completion is not used.
    pub fn register(&self, mr: *mut ib_mr) -> Result {
        let mut wr: ib_reg_wr = zeroed();
        wr.wr.opcode = ib_wr_opcode_IB_WR_REG_MR;
        wr.mr = mr;
        self.post((&raw const wr).cast()).0
    }

    /// Posts an RDMA write of inline data to remote address 0.
    pub fn write_inline(&self, data: &[u8]) -> Result {
        let mut sge = ib_sge {
            addr: data.as_ptr() as u64,
            length: data.len() as u32,
            lkey: 0,
        };
        let mut wr: ib_srd_rdma_wr = zeroed();
        wr.wr.wr.opcode = ib_wr_opcode_IB_WR_RDMA_WRITE;
        wr.wr.wr.send_flags = ib_send_flags_IB_SEND_INLINE as c_int;
        wr.wr.wr.sg_list = &raw mut sge;
        wr.wr.wr.num_sge = 1;
        wr.wr.ah = self.ah;
        wr.wr.remote_qkey = QKEY;
        self.post((&raw const wr).cast()).0
    }

    /// Registers its memory by a work request, writes and reads it by RDMA, and invalidates it. The keys have a new generation.
    pub fn use_region(&self) {
        let access = ib_access_flags_IB_ACCESS_LOCAL_WRITE
            | ib_access_flags_IB_ACCESS_REMOTE_WRITE
            | ib_access_flags_IB_ACCESS_REMOTE_READ;
        let mr = self.mapped_region().expect("a region");
        // SAFETY: The region exists until it is deregistered below.
        unsafe {
            (*mr).lkey += GENERATION;
            (*mr).rkey += GENERATION;
            let mut wr: ib_reg_wr = zeroed();
            wr.wr.opcode = ib_wr_opcode_IB_WR_REG_MR;
            wr.mr = mr;
            wr.key = (*mr).rkey;
            wr.access = access as c_int;
            assert_eq!(self.wait_for((&raw mut wr).cast()), Some(0));
            // Both copy from the first page to the second.
            self.rdma(
                ib_wr_opcode_IB_WR_RDMA_WRITE,
                0,
                (*mr).iova + 4096,
                (*mr).rkey,
            );
            self.rdma(ib_wr_opcode_IB_WR_RDMA_READ, 4096, (*mr).iova, (*mr).rkey);
            let mut wr: ib_send_wr = zeroed();
            wr.opcode = ib_wr_opcode_IB_WR_LOCAL_INV;
            *wr.ex.invalidate_rkey.as_mut() = (*mr).rkey;
            assert_eq!(self.wait_for(&raw mut wr), Some(0));
            verbs::dereg_mr(mr, null_mut()).expect("the end of a region");
        }
    }

    fn rdma(&self, opcode: ib_wr_opcode, local: u64, remote: u64, rkey: u32) {
        let value = opcode as u8 + 1;
        // SAFETY: The memory is longer than a message, and the queue pair exists.
        unsafe {
            self.memory.write_bytes(value, LENGTH as usize);
            let mut sge = self.sge(local, LENGTH);
            let mut wr: ib_srd_rdma_wr = zeroed();
            wr.wr.wr.opcode = opcode;
            wr.wr.wr.sg_list = &raw mut sge;
            wr.wr.wr.num_sge = 1;
            wr.wr.ah = self.ah;
            wr.wr.remote_qpn = (*self.qp).qp_num;
            wr.wr.remote_qkey = QKEY;
            wr.remote_addr = remote;
            wr.rkey = rkey;
            assert_eq!(self.wait_for((&raw mut wr).cast()), Some(0), "{opcode}");
        }
        self.expect(4096, value);
    }

    /// Destroys all objects. On a failure the core warns, and the object leaks.
    pub fn end(&mut self) {
        // SAFETY: None of the objects is in use any more.
        unsafe {
            if !self.ah.is_null() {
                verbs::ignore("rdma_destroy_ah", verbs::destroy_ah(self.ah));
                self.ah = null_mut();
            }
            if !self.qp.is_null() {
                verbs::ignore("ib_destroy_qp", verbs::destroy_qp(self.qp, null_mut()));
                self.qp = null_mut();
            }
            if !self.cq.is_null() {
                cq::free_cq(self.cq);
                self.cq = null_mut();
            }
            if !self.pd.is_null() {
                verbs::ignore("ib_dealloc_pd", verbs::dealloc_pd(self.pd, null_mut()));
                self.pd = null_mut();
            }
        }
        if self.address != 0 {
            sim::memory::unmap(self.address);
            // SAFETY: `new` has allocated the memory with this size and alignment.
            unsafe { sim::memory::free(self.memory, MEMORY, 4096) };
            self.address = 0;
        }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.end();
    }
}

/// A client that creates objects when a device appears, and keeps them until it is removed.
pub struct Ulp<F> {
    add: F,
    drains: bool,
    /// Its objects on the device, until that is removed.
    pub kept: RefCell<Option<Objects>>,
    /// Held while the kept objects are in use.
    pub lock: RawLock,
}

impl<F: Fn(*mut ib_device) -> Result<Objects>> Ulp<F> {
    /// Creates a client. `drains`: whether it drains its queue pair before the destruction.
    pub fn new(add: F, drains: bool) -> Rc<Self> {
        Rc::new(Self {
            add,
            drains,
            kept: RefCell::default(),
            lock: RawLock::new(),
        })
    }

    /// Calls `f` with the kept objects, if any.
    pub fn with<R>(&self, f: impl FnOnce(&Objects) -> R) -> Option<R> {
        self.lock.lock(true);
        let result = self.kept.borrow().as_ref().map(f);
        self.lock.unlock(true);
        result
    }
}

impl<F: Fn(*mut ib_device) -> Result<Objects>> client::Client for Ulp<F> {
    fn add(&self, device: *mut ib_device) -> Result<*mut core::ffi::c_void> {
        let objects = (self.add)(device)?;
        self.lock.lock(true);
        *self.kept.borrow_mut() = Some(objects);
        self.lock.unlock(true);
        Ok(null_mut())
    }

    fn remove(&self, _: *mut ib_device, _: *mut core::ffi::c_void) {
        self.lock.lock(true);
        let objects = self.kept.take();
        self.lock.unlock(true);
        if let Some(objects) = objects {
            if self.drains {
                // SAFETY: The sender has no access any more.
                unsafe { cq::drain(objects.qp) };
                objects.poll();
                assert_eq!(
                    objects.outstanding(),
                    (0, 0),
                    "requests of a queue pair that is drained"
                );
            }
            drop(objects);
        }
    }
}
