// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A client that makes the calls of Lustre's efalnd, in their order, and its removal in each state of its device.
//!
//! The core polls, and the send queues are always full. A message whose post fails with `ENOMEM` waits for the next completion.
//! A removal waits for all work requests, and must end before the driver tries to recover the device.

use core::{
    cell::{Cell, RefCell},
    ptr::{null, null_mut},
};
use std::{collections::VecDeque, rc::Rc};

use driver::{
    client::{Objects, GENERATION, WORKQUEUE},
    fault::{always, command as of_command, death, silence, status},
    program::{qp_attr, QKEY, UP},
    rig::{self, Rig, SECOND},
};
use efa_hw::{admin::Opcode, aenq::AenqGroup};
use efa_model::{Death, FailedReset, Profile, Rule, Then};
use ib_core::{
    client, cq,
    ffi::{ib_wc_status_IB_WC_SUCCESS as SUCCESS, ib_wc_status_IB_WC_WR_FLUSH_ERR as FLUSHED, *},
    uverbs::zeroed,
    verbs,
};
use kernel::{
    error::{code::ENOMEM, to_result, Result},
    ffi::{c_int, c_void},
    sim::{self, Policy, RawLock, Work},
};

use crate::at_random;

const QPS: usize = 4;
const DEPTH: usize = 16;
/// More than a send queue has room for. A third of them are sends.
const MESSAGES: usize = 40;
const ROOM: usize = 32;
const LENGTH: u32 = 64;
/// Duration of a completion function. Without it, any number of messages would move in no time.
const PAUSE: u64 = SECOND / 200;
/// Number of pauses in the longest time for which the client waits for its work requests.
const PATIENCE: u32 = 24_000;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// It only posts receives.
    Idle,
    /// It also posts messages.
    Busy,
    /// Its messages stay in the send queues.
    Waiting,
}
use Mode::*;

/// Numbers of posts, of posts to a full queue, and of completions by status.
#[derive(Default)]
struct Counts {
    posted: Cell<usize>,
    full: Cell<usize>,
    moved: Cell<usize>,
    flushed: Cell<usize>,
}

fn add(count: &Cell<usize>, by: isize) {
    let sum = count.get().checked_add_signed(by);
    count.set(sum.expect("one completion for each work request"));
}

/// A message, or all receives of a queue.
#[repr(C)]
struct Message {
    cqe: ib_cqe,
    lnd: *const Lnd,
    queue: usize,
    index: usize,
    /// `None` for receives.
    opcode: Option<ib_wr_opcode>,
    in_flight: Cell<usize>,
}

struct Queue {
    qp: *mut ib_qp,
    /// The messages, and the receives.
    messages: Vec<Message>,
    /// Protects the following fields, and all posts.
    lock: RawLock,
    queued: RefCell<VecDeque<usize>>,
    is_stopped: Cell<bool>,
    work: RefCell<Work>,
}

impl Queue {
    fn modify(&self, state: u32) -> Result {
        let (mut attr, mask) = qp_attr(state);
        // SAFETY: The queue pair exists.
        unsafe { verbs::modify_qp(self.qp, &raw mut attr, mask, null_mut()) }
    }

    fn locked(&self, f: impl FnOnce()) {
        self.lock.lock(false);
        f();
        self.lock.unlock(false);
    }
}

/// The state of the client for a device.
struct Lnd {
    mode: Mode,
    counts: Rc<Counts>,
    /// The domain, the queue for completions of receives, the address handle, and the memory.
    objects: Objects,
    send_cq: *mut ib_cq,
    mr: *mut ib_mr,
    /// Number of work requests in flight.
    users: Cell<usize>,
    queues: Vec<Queue>,
}

extern "C" fn done(_: *mut ib_cq, wc: *mut ib_wc) {
    // SAFETY: The client exists until all work requests have completed.
    let (message, lnd, status) = unsafe {
        let message = &*(*wc).__bindgen_anon_1.wr_cqe.as_ref().cast::<Message>();
        (message, &*message.lnd, (*wc).status)
    };
    sim::sleep(PAUSE);
    add(&message.in_flight, -1);
    match status {
        SUCCESS => add(&lnd.counts.moved, 1),
        FLUSHED => add(&lnd.counts.flushed, 1),
        // There is no receive for a message, or its peer is in error.
        _ => {}
    }
    let queue = &lnd.queues[message.queue];
    queue.locked(|| {
        if message.opcode.is_none() {
            lnd.receive(queue);
        } else {
            queue.queued.borrow_mut().push_back(message.index);
            queue.work.borrow_mut().queue(0);
        }
    });
    add(&lnd.users, -1);
}

/// Posts queued messages while there is room. `message` is the first one of the queue.
fn run_queue(message: usize) {
    // SAFETY: The client exists, as the work is disabled first.
    let (queue, lnd) = unsafe {
        let message = &*(message as *const Message);
        (message.queue, &*message.lnd)
    };
    let queue = &lnd.queues[queue];
    queue.locked(|| {
        while !queue.is_stopped.get() {
            let next = queue.queued.borrow().front().copied();
            if next.is_none_or(|next| lnd.post(queue, next).is_err()) {
                break;
            }
            queue.queued.borrow_mut().pop_front();
        }
    });
}

impl Lnd {
    /// Posts a receive, for which there is room. The caller holds the lock.
    fn receive(&self, queue: &Queue) {
        if !queue.is_stopped.get() {
            self.post(queue, MESSAGES).expect("room for a receive");
        }
    }

    /// Posts a message. The caller holds the lock. A post may fail for lack of room only, whatever the device does.
    fn post(&self, queue: &Queue, index: usize) -> Result {
        let message = &queue.messages[index];
        let (mut wr, mut recv): (ib_srd_rdma_wr, ib_recv_wr) = (zeroed(), zeroed());
        let mut sge = self.objects.sge(0, LENGTH);
        (wr.wr.wr.sg_list, wr.wr.wr.num_sge) = (&raw mut sge, 1);
        (recv.sg_list, recv.num_sge) = (&raw mut sge, 1);
        (wr.wr.ah, wr.wr.remote_qkey) = (self.objects.ah, QKEY);
        wr.wr.wr.send_flags = ib_send_flags_IB_SEND_SIGNALED as c_int;
        let peer = &self.queues[(message.queue + 1) % QPS];
        let cqe = (&raw const message.cqe).cast_mut();
        [&self.users, &message.in_flight].map(|count| add(count, 1));
        // SAFETY: All objects exist, and all variants of the unions have the same size.
        let result = to_result(unsafe {
            wr.wr.remote_qpn = (*peer.qp).qp_num;
            (wr.remote_addr, wr.rkey) = ((*self.mr).iova, (*self.mr).rkey);
            *wr.wr.wr.__bindgen_anon_1.wr_cqe.as_mut() = cqe;
            *recv.__bindgen_anon_1.wr_cqe.as_mut() = cqe;
            let (ops, mut bad, mut bad_recv) = (&(*(*queue.qp).device).ops, null(), null());
            if let Some(opcode) = message.opcode {
                wr.wr.wr.opcode = opcode;
                ops.post_send.unwrap()(queue.qp, (&raw const wr).cast(), &raw mut bad)
            } else {
                ops.post_recv.unwrap()(queue.qp, &raw const recv, &raw mut bad_recv)
            }
        });
        if result.is_ok() {
            add(&self.counts.posted, 1);
        } else {
            assert_eq!(result, Err(ENOMEM));
            [&self.users, &message.in_flight].map(|count| add(count, -1));
            add(&self.counts.full, 1);
        }
        result
    }

    /// Creates all objects, and registers a region.
    fn new(device: *mut ib_device, mode: Mode, counts: &Rc<Counts>) -> Result<Box<Self>> {
        let kinds = [
            ib_wr_opcode_IB_WR_SEND,
            ib_wr_opcode_IB_WR_RDMA_WRITE,
            ib_wr_opcode_IB_WR_RDMA_READ,
        ];
        let objects = Objects::new(device, WORKQUEUE)?;
        let mut attr = objects.qp_attr();
        (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (DEPTH as u32, DEPTH as u32);
        // SAFETY: The device is registered.
        attr.send_cq = unsafe { cq::alloc_cq(device, (QPS * MESSAGES) as u32, WORKQUEUE)? };
        let mut this = Box::new(Self {
            mode,
            counts: counts.clone(),
            send_cq: attr.send_cq,
            mr: objects.mapped_region()?,
            users: Cell::new(0),
            queues: Vec::new(),
            objects,
        });
        for queue in 0..QPS {
            let messages = (0..=MESSAGES).map(|index| Message {
                cqe: ib_cqe { done: Some(done) },
                lnd: &raw const *this,
                queue,
                index,
                opcode: (index < MESSAGES).then(|| kinds[index % kinds.len()]),
                in_flight: Cell::new(0),
            });
            let messages: Vec<_> = messages.collect();
            let queue = Queue {
                // SAFETY: The domain and the queues exist.
                qp: unsafe { verbs::create_qp(this.objects.pd, &mut attr, null_mut())? },
                lock: RawLock::new(),
                queued: RefCell::new((0..MESSAGES).collect()),
                is_stopped: Cell::new(false),
                work: RefCell::new(Work::new(run_queue, messages.as_ptr() as usize)),
                messages,
            };
            UP.iter().try_for_each(|state| queue.modify(*state))?;
            this.queues.push(queue);
        }
        let mut wr: ib_reg_wr = zeroed();
        wr.wr.opcode = ib_wr_opcode_IB_WR_REG_MR;
        wr.access = (ib_access_flags_IB_ACCESS_LOCAL_WRITE
            | ib_access_flags_IB_ACCESS_REMOTE_READ
            | ib_access_flags_IB_ACCESS_REMOTE_WRITE) as c_int;
        // SAFETY: The region exists.
        unsafe {
            (*this.mr).lkey += GENERATION;
            (*this.mr).rkey += GENERATION;
            (wr.mr, wr.key) = (this.mr, (*this.mr).rkey);
        }
        assert_eq!(this.objects.wait_for((&raw mut wr).cast()), Some(SUCCESS));
        Ok(this)
    }

    /// Posts receives and messages.
    fn begin(&self) {
        for queue in &self.queues {
            queue.locked(|| (0..DEPTH).for_each(|_| self.receive(queue)));
            if self.mode == Waiting {
                queue.modify(ib_qp_state_IB_QPS_SQD).expect("a drain");
            }
            if self.mode != Idle {
                queue.work.borrow_mut().queue(0);
            }
        }
    }

    /// Waits until all work requests have completed, and destroys all objects.
    fn close(&self) {
        for queue in &self.queues {
            queue.locked(|| queue.is_stopped.set(true));
            // SAFETY: Nothing else borrows the work, as it is disabled.
            unsafe { (*queue.work.as_ptr()).disable_sync() };
        }
        for queue in &self.queues {
            // The driver resets a device that refuses.
            let _ = queue.modify(ib_qp_state_IB_QPS_ERR);
        }
        let waits = (0..PATIENCE).take_while(|_| self.users.get() != 0);
        waits.for_each(|_| sim::sleep(PAUSE));
        assert_eq!(self.users.get(), 0, "work requests have not completed");
        // SAFETY: None of the objects is in use any more.
        unsafe {
            for queue in &self.queues {
                verbs::ignore("ib_destroy_qp", verbs::destroy_qp(queue.qp, null_mut()));
            }
            verbs::ignore("ib_dereg_mr", verbs::dereg_mr(self.mr, null_mut()));
            cq::free_cq(self.send_cq);
        }
    }
}

struct Client(Mode, Rc<Counts>);

impl client::Client for Client {
    fn add(&self, device: *mut ib_device) -> Result<*mut c_void> {
        let lnd = Lnd::new(device, self.0, &self.1)?;
        lnd.begin();
        Ok(Box::into_raw(lnd).cast())
    }

    fn remove(&self, _: *mut ib_device, data: *mut c_void) {
        sim::log(format_args!("trace: removing\n"));
        // SAFETY: `add` has made this pointer, and this is the end of its use.
        let lnd = unsafe { Box::from_raw(data.cast::<Lnd>()) };
        lnd.close();
        sim::log(format_args!("trace: removed\n"));
    }
}

/// Returns the events of the client and the driver, without repetitions. The first command of an attempt is `GET_FEATURE`.
fn order(log: &[String]) -> String {
    let events = log.iter().filter_map(|line| line.split_once("trace: "));
    let mut events: Vec<_> = events
        .filter_map(|(_, event)| match event.trim_end() {
            event if event.starts_with("GET_FEATURE submitted") => Some("attempt"),
            event @ ("removing" | "removed" | "stopped" | "up") => Some(event),
            event => event.strip_prefix("reset, "),
        })
        .collect();
    events.dedup();
    events.join(" ")
}

/// Runs the client in a mode, sets the state of the device by `prepare`, and removes the client: as a user, by an unbind, or
/// not at all, as the driver does. The order of events begins accordingly.
fn removal(policy: Policy, mode: Mode, prepare: fn(&Rig), wanted: &[&str]) {
    rig::run(Profile::Efa3, policy, |rig| {
        rig.set(r#"{"keep_alive_ms": 500}"#);
        rig.probe().unwrap();
        let counts = Rc::<Counts>::default();
        let number = client::register_client(Rc::new(Client(mode, counts.clone())));
        let is_ready = || match mode {
            Idle => true,
            Busy => counts.moved.get() > 4 * QPS * MESSAGES,
            Waiting => counts.posted.get() == QPS * (DEPTH + ROOM),
        };
        while !is_ready() {
            sim::sleep(PAUSE);
        }
        sim::keep_log(true);
        prepare(rig);
        let by = wanted[0].split(' ').next();
        match by {
            Some("removing") => client::unregister_client(number),
            Some("stopped") => rig.remove(),
            _ => sim::sleep(10 * SECOND),
        }
        if rig.slot.is_bound() {
            rig.check_quiet();
        }
        let got = order(&sim::take_log());
        assert!(wanted.contains(&&*got), "{got}");
        sim::keep_log(false);
        if by != Some("removing") {
            let before = counts.moved.get();
            sim::sleep(5 * SECOND);
            let moves_again = rig.slot.is_bound() && mode == Busy;
            assert_eq!(counts.moved.get() > before, moves_again);
            client::unregister_client(number);
        }
        assert_eq!(counts.full.get() > 0, mode != Idle);
        if mode != Busy {
            assert_eq!(counts.flushed.get(), counts.posted.get());
        }
        // The device may have been pulled out, or have objects that it did not destroy.
        rig.heal();
        if rig.slot.is_bound() {
            rig.remove();
        }
        rig.shared.with(|device, machine, _| device.plug(machine));
        rig.shared.set_present(true);
        rig.probe().unwrap();
        rig.check_device();
    });
}

/// Makes a test of each state of the device, with the possible orders of events.
macro_rules! states {
    ($($name:ident: $mode:ident, $prepare:expr => $($wanted:literal)|+;)*) => {
        $(#[test]
        fn $name() {
            let policies = core::iter::once(Policy::Sequential).chain((0..10).map(at_random));
            policies.for_each(|policy| removal(policy, $mode, $prepare, &[$($wanted),+]));
        })*
    };
}

fn dies_silently(rig: &Rig) {
    rig.die(Death {
        silent: true,
        ..Death::default()
    });
}

fn on(opcode: Opcode, then: Then, times: usize) -> Rule {
    Rule {
        times: Some(times as u64),
        ..always(of_command(Some(opcode)), then)
    }
}

// A failure is detected during the removal by a user, or after it.
states! {
    is_idle: Idle, |_| {} => "removing removed";
    is_busy_and_unbound: Busy, |_| {} => "stopped removing removed";
    has_messages_that_wait: Waiting, |_| {} => "removing removed";
    refuses_to_modify_a_queue_pair: Busy, |rig| rig.inject(on(Opcode::ModifyQp, status(5), 1)) =>
        "removing memory_held removed attempt up" | "removing removed memory_held attempt up";
    refuses_to_destroy_queue_pairs: Busy, |rig| rig.inject(on(Opcode::DestroyQp, status(5), QPS)) => "removing removed";
    does_not_answer_a_command: Busy, |rig| rig.inject(on(Opcode::ModifyQp, silence(), 1)) =>
        "removing command_timeout removed attempt up" | "removing removed command_timeout attempt up";
    is_dead_and_unbound: Busy, dies_silently => "stopped removing removed";
    sends_no_keep_alives: Busy, |rig| {
        sim::sleep(5 * SECOND);
        rig.set(r#"{"keep_alive_ms": 0}"#);
    } => "keep_alive removing removed attempt up";
    has_a_fatal_error: Busy, |rig| rig.event(AenqGroup::FatalError.into(), 1) => "fatal_error removing removed attempt up";
    needs_two_resets: Busy, |rig| rig.die(death(2, FailedReset::NeverEnds)) => "fatal_error removing removed attempt up";
    is_reset_by_sysfs: Busy, Rig::reset => "requested removing removed attempt up";
    is_dead_and_has_messages_that_wait: Waiting, dies_silently =>
        "removing command_timeout removed attempt up" | "removing removed command_timeout attempt up";
    is_pulled_out: Busy, |rig| rig.shared.unplug() => "stopped removing removed";
}
