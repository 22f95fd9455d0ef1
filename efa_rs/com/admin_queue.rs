// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue: commands to the device and their completions.
//!
//! Up to [`DEPTH`] commands are in flight at once. Each has a slot, whose number is the low part of
//! its command id; the high part tells a slot's uses apart, so that a completion that comes twice
//! or too late is recognised.

use core::mem::replace;

use kernel::{
    device::{
        Bound,
        Device, //
    },
    fmt, new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        barrier::{
            dma_mb,
            Read, //
        },
        Arc,
        SpinLockIrq, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    },
};

use super::{
    error::CommandError,
    health::{
        Cause,
        Health, //
    },
    lent::{
        Epoch,
        Lent, //
    },
    numbers::Numbers,
    registers::Registers,
    statistics::Statistics, //
};
use crate::{
    hw::{
        admin::{
            self,
            AcqEntry,
            AcqHeader,
            AqEntry,
            AqRequest,
            Command,
            Opcode,
            Protocol,
            Response,
            Status,
            AQ_BLOCK_SIZE, //
        },
        checksum,
        regs::{
            AqCaps,
            Caps,
            EventRingCaps,
            IntrMask,
            Register,
            Version, //
        },
    },
    sys::{
        completion::Completion,
        dma::Entries,
        log::Hex,
        ratelimit::RateLimit,
        semaphore::Semaphore,
        trace, //
    },
};

/// Entries in each of the two rings, and commands in flight. The depth that Linux's C driver uses.
const DEPTH: u16 = 32;

/// Binary logarithm of [`DEPTH`].
const DEPTH_SHIFT: u32 = DEPTH.trailing_zeros();

/// The bits of a command id.
const COMMAND_ID_MASK: u16 = (1 << admin::COMMAND_ID_BITS) - 1;

/// How long a command may take where the device does not say, in milliseconds. The value that
/// Linux's C driver uses.
const COMPLETION_TIMEOUT_MS: u32 = 30_000;

/// The unit of [`Caps::admin_cmd_timeout`], in milliseconds.
const COMPLETION_TIMEOUT_UNIT_MS: u32 = 100;

/// The least that a hint can have a command take, in milliseconds: what CAPS can say. Below, a busy
/// host would take a healthy device for a dead one.
const MIN_COMPLETION_TIMEOUT_MS: u32 = COMPLETION_TIMEOUT_UNIT_MS;

/// The most that a hint can have a command take, in milliseconds. With [`SLOT_TIMEOUTS`] no task waits
/// for longer than 90 s, so that the kernel does not report it as hung, which it does after 120 s.
const MAX_COMPLETION_TIMEOUT_MS: u32 = 30_000;

/// How often a waiter looks for a completion whose interrupt may be missing.
const POLL_INTERVAL: Delta = Delta::from_millis(10);

/// How long to wait for a free slot, in times of what a command may take. Twice, so that who waits
/// behind the commands of a dead device learns that it is dead: one timeout closes the queue.
const SLOT_TIMEOUTS: i64 = 2;

/// From this version on, completions have checksums.
const CHECKSUM_VERSION: Version = Version { major: 0, minor: 2 };

/// The admin queue.
#[pin_data]
pub(crate) struct AdminQueue<'bound> {
    dev: &'bound Device<Bound>,
    registers: Arc<Registers<'bound>>,
    /// Of each entry its blocks, one after the other.
    submissions: Lent<'bound, Entries<'bound, AQ_BLOCK_SIZE>>,
    completions: Lent<'bound, Entries<'bound, { size_of::<AcqEntry>() }>>,
    protocol: Protocol,
    has_checksums: bool,
    #[pin]
    messages: RateLimit,
    /// Of messages that are not to be lost for the noise of others: the device does not answer.
    #[pin]
    silence: RateLimit,
    completion_timeout_ms: Atomic<u32>,
    /// Whether an interrupt was missing, so that waiters look for completions themselves.
    is_polled: Atomic<bool>,
    /// What the parts of command ids that differ from use to use begin with: where those of the session
    /// before have ended, so that an answer to one of its commands is no answer to any of this.
    first_use: u16,
    health: Arc<Health>,
    statistics: Arc<Statistics>,
    #[pin]
    free_slots: Semaphore,
    #[pin]
    state: SpinLockIrq<State>,
    /// Signalled when the command in the slot of the same number is complete.
    #[pin]
    completed: [Completion; DEPTH as usize],
    /// The numbers of the completion queues that there are.
    #[pin]
    pub(super) cq_numbers: Numbers,
}

/// What submitters and the interrupt handler share.
struct State {
    /// Whether commands are accepted. Once false, this stays so.
    running: bool,
    /// Commands ever submitted; their entry and phase follow from it.
    produced: u16,
    /// Completions ever consumed; likewise.
    consumed: u16,
    slots: [Slot; DEPTH as usize],
}

/// Room for a command in flight.
struct Slot {
    progress: Progress,
    /// What the device completed the command with, if it did.
    completion: AcqEntry,
}

/// How far the command in a slot has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// There is none.
    Free,
    /// It has this id, and is not complete.
    Submitted(u16),
    /// It is complete.
    Completed,
    /// The queue was closed under it.
    Abandoned,
}

impl State {
    /// Returns whether the command in `slot` has come to an end.
    fn is_over(&self, slot: u16) -> bool {
        let slot = self.slots.get(usize::from(slot));
        slot.is_some_and(|slot| matches!(slot.progress, Progress::Completed | Progress::Abandoned))
    }

    /// Frees `slot`, whose command [is over](Self::is_over), and returns how that ended.
    fn take(&mut self, slot: u16) -> Result<AcqEntry, CommandError> {
        let Some(slot) = self.slots.get_mut(usize::from(slot)) else {
            return Err(CommandError::Closed);
        };
        match replace(&mut slot.progress, Progress::Free) {
            Progress::Completed => Ok(slot.completion),
            _ => Err(CommandError::Abandoned),
        }
    }
}

/// Returns the phase of an entry: set in the first round through a ring, and in every other one.
#[inline]
fn phase(count: u16) -> bool {
    count >> DEPTH_SHIFT & 1 == 0
}

/// Makes a ring that the device does not know of.
///
/// # Errors
///
/// - [`ENOMEM`] if there is no memory.
fn ring<'bound, const N: usize>(
    dev: &'bound Device<Bound>,
    count: usize,
    epoch: &Arc<Epoch<'bound>>,
) -> Result<Lent<'bound, Entries<'bound, N>>> {
    // CAST: At most twice `DEPTH`.
    let ring = Entries::zeroed(dev, count as u32)?;
    Lent::new(epoch, "the admin queue", Arc::new(ring, GFP_KERNEL)?)
}

impl<'bound> AdminQueue<'bound> {
    /// Makes rings that the device does not know of before [`Self::start`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        dev: &'bound Device<Bound>,
        registers: &Arc<Registers<'bound>>,
        version: Version,
        caps: Caps,
        epoch: &Arc<Epoch<'bound>>,
        health: &Arc<Health>,
        statistics: &Arc<Statistics>,
    ) -> Result<Arc<Self>> {
        let protocol = Protocol::of(version);
        let submissions = ring(dev, usize::from(DEPTH) * protocol.blocks(), epoch)?;
        let completions = ring(dev, usize::from(DEPTH), epoch)?;

        let completion_timeout_ms = match u32::from(caps.admin_cmd_timeout) {
            0 => COMPLETION_TIMEOUT_MS,
            units => units * COMPLETION_TIMEOUT_UNIT_MS,
        };

        Arc::pin_init(
            try_pin_init!(Self {
                dev,
                registers: registers.clone(),
                submissions,
                completions,
                protocol,
                has_checksums: version >= CHECKSUM_VERSION,
                messages <- RateLimit::new(),
                silence <- RateLimit::new(),
                completion_timeout_ms: Atomic::new(completion_timeout_ms),
                is_polled: Atomic::new(false),
                // CAST: What is cut off is not part of an id.
                first_use: statistics.submitted_cmds.get() as u16,
                health: health.clone(),
                statistics: statistics.clone(),
                free_slots <- Semaphore::new(DEPTH),
                state <- new_spinlock_irq!(
                    State {
                        running: true,
                        produced: 0,
                        consumed: 0,
                        slots: [const {
                            Slot {
                                progress: Progress::Free,
                                completion: [0; size_of::<AcqEntry>()],
                            }
                        }; DEPTH as usize],
                    },
                    "efa_admin_queue"
                ),
                completed <- pin_init::pin_init_array_from_fn(|_| Completion::new()),
                cq_numbers <- Numbers::new(),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Gives the rings to the device, which has them until its next reset. Its interrupts are masked
    /// until [`Self::unmask_interrupts`].
    pub(super) fn start(&self, msix_vector: u8) {
        let masked = IntrMask { masked: true };
        self.registers.write(Register::IntrMask, masked.into_raw());

        self.submissions.lend_until_stop();
        self.completions.lend_until_stop();
        self.registers.write_address(
            Register::AqBaseLo,
            Register::AqBaseHi,
            self.submissions.dma_address(),
        );
        let submission_caps = AqCaps {
            depth: DEPTH,
            // CAST: At most 128.
            entry_size: self.protocol.entry_size() as u16,
        };
        self.registers
            .write(Register::AqCaps, submission_caps.into_raw());

        self.registers.write_address(
            Register::AcqBaseLo,
            Register::AcqBaseHi,
            self.completions.dma_address(),
        );
        let completion_caps = EventRingCaps {
            depth: DEPTH,
            entry_size: size_of::<AcqEntry>() as u8,
            msix_vector,
        };
        self.registers
            .write(Register::AcqCaps, completion_caps.into_raw());
    }

    /// Has the device raise interrupts for completions. Commands need them.
    pub(super) fn unmask_interrupts(&self) {
        self.registers
            .write(Register::IntrMask, IntrMask::default().into_raw());
    }

    /// Sets how long a command may take, in milliseconds, within bounds; 0 leaves it as it is.
    pub(super) fn set_completion_timeout(&self, millis: u16) {
        if millis != 0 {
            let millis =
                u32::from(millis).clamp(MIN_COMPLETION_TIMEOUT_MS, MAX_COMPLETION_TIMEOUT_MS);
            self.completion_timeout_ms.store(millis, Relaxed);
        }
    }

    /// Says that the device has told something that can't be, and returns the error for that.
    #[cold]
    #[inline(never)]
    pub(crate) fn distrust(&self, what: &str, value: u32) -> CommandError {
        self.complain(fmt!("The device tells {} ({})", what, value));
        CommandError::Nonsense
    }

    /// Logs an error, unless there were too many: the device and programs can provoke them.
    fn complain(&self, message: fmt::Arguments<'_>) {
        self.log(&self.messages, message);
    }

    #[cold]
    #[inline(never)]
    fn log(&self, limit: &RateLimit, message: fmt::Arguments<'_>) {
        if limit.allows() {
            dev_err!(self.dev, "{}\n", message);
        }
    }

    /// Accepts no more commands, and gives up those in flight: whoever waits for one wakes up, and a
    /// late completion is ignored.
    pub(super) fn close(&self) {
        self.abandon(&mut self.state.lock());
    }

    /// Does what [`Self::close`] does.
    fn abandon(&self, state: &mut State) {
        state.running = false;
        for (slot, completed) in state.slots.iter_mut().zip(&self.completed) {
            if matches!(slot.progress, Progress::Submitted(_)) {
                slot.progress = Progress::Abandoned;
                completed.complete();
            }
        }
    }

    /// Returns how long a command may take from its submission on.
    fn completion_timeout(&self) -> Delta {
        Delta::from_millis(self.completion_timeout_ms.load(Relaxed).into())
    }

    /// Returns the device that the queue belongs to, for messages.
    pub(crate) fn dev(&self) -> &'bound Device<Bound> {
        self.dev
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    ///
    /// Those of [`Self::submit`] and [`Pending::wait`].
    #[inline]
    pub(crate) fn execute<C: Command>(&self, command: &C) -> Result<C::Response, CommandError> {
        let entry = self.run(&command.to_request(), C::OPCODE, "")?;
        Ok(C::Response::from_entry(&entry))
    }

    /// Runs an encoded command to its end. `subject` is what messages say of it besides the opcode.
    ///
    /// # Errors
    ///
    /// Those of [`Self::submit`] and [`Pending::wait`].
    // One copy for all commands: what is typed is no more than the two conversions.
    #[inline(never)]
    pub(super) fn run(
        &self,
        request: &AqRequest,
        opcode: Opcode,
        subject: &'static str,
    ) -> Result<AcqEntry, CommandError> {
        self.submit(request, opcode, subject)?.wait()
    }

    /// Gives an encoded command to the device. Waits for a slot if too many are in flight.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Closed`] if the queue accepts no commands.
    /// - [`CommandError::NoSlot`] if no slot becomes free.
    pub(super) fn submit(
        &self,
        request: &AqRequest,
        opcode: Opcode,
        subject: &'static str,
    ) -> Result<Pending<'_, 'bound>, CommandError> {
        let timeout = self.completion_timeout() * SLOT_TIMEOUTS;
        if self.free_slots.acquire_timeout(timeout).is_err() {
            self.statistics.cmds_err.increment();
            self.complain(fmt!("{} found no place in the admin queue", opcode.name()));
            return Err(CommandError::NoSlot);
        }

        let mut state = self.state.lock();
        let (running, produced) = (state.running, state.produced);
        let free = (0u16..)
            .zip(&mut state.slots)
            .zip(&self.completed)
            .find(|((_, slot), _)| slot.progress == Progress::Free);
        // Slots of commands that timed out are never free again, but then the queue is closed.
        let Some(((number, slot), completed)) = free.filter(|_| running) else {
            drop(state);
            self.free_slots.release();
            self.statistics.cmds_err.increment();
            return Err(CommandError::Closed);
        };
        let turn = produced.wrapping_add(self.first_use);
        let id = (number | turn << DEPTH_SHIFT) & COMMAND_ID_MASK;
        slot.progress = Progress::Submitted(id);
        completed.reinit();

        self.put(produced, id, request);
        state.produced = produced.wrapping_add(1);
        self.statistics.submitted_cmds.increment();
        // Under the lock, so that the device never sees the count go back.
        self.registers
            .write(Register::AqProdDb, u32::from(state.produced));
        drop(state);
        self.statistics.in_flight.change(1);
        trace::command_submitted(self.dev, opcode.name(), id);

        Ok(Pending {
            queue: self,
            opcode,
            subject,
            submitted: Instant::now(),
            slot: Some(number),
        })
    }

    /// Writes a command into the ring, of which the first was number 0.
    fn put(&self, number: u16, id: u16, request: &AqRequest) {
        let entry = AqEntry::new(self.protocol, request, id, phase(number));
        // CAST: An entry has at most two blocks.
        let first = u32::from(number) * self.protocol.blocks() as u32;
        for (index, block) in (first..).zip(entry.blocks()) {
            self.submissions.write(index, &block);
        }
    }

    /// Handles what the device has completed.
    pub(super) fn handle_completions(&self) {
        self.consume(&mut self.state.lock());
    }

    /// Handles at most one ring of completions: a device can't keep the caller here.
    fn consume(&self, state: &mut State) {
        for _ in 0..DEPTH {
            let index = u32::from(state.consumed);
            let flags = self
                .completions
                .read_byte::<{ admin::ACQ_PHASE_OFFSET }>(index);
            if admin::AcqFlags::from_raw(flags).phase != phase(state.consumed) {
                break;
            }

            // The device writes the phase last.
            dma_mb(Read);
            let entry = self.completions.read(index);
            state.consumed = state.consumed.wrapping_add(1);
            self.accept(state, &entry);
        }
    }

    /// Gives a completion to the command it belongs to.
    fn accept(&self, state: &mut State, entry: &AcqEntry) {
        let header = AcqHeader::of(entry);

        if self.has_checksums && header.checksum != checksum::of_entry(entry) {
            self.complain(fmt!(
                "A completion has the wrong checksum ({}) and is ignored",
                Hex(header.checksum.into())
            ));
            return;
        }

        let id = header.command_id.id;
        let index = usize::from(id & (DEPTH - 1));
        if let (Some(slot), Some(completed)) =
            (state.slots.get_mut(index), self.completed.get(index))
        {
            if slot.progress == Progress::Submitted(id) {
                slot.progress = Progress::Completed;
                slot.completion = *entry;
                self.statistics.completed_cmds.increment();
                completed.complete();
                return;
            }
        }
        // The device may complete what a closed queue has given up.
        if !state.running {
            return;
        }
        self.complain(fmt!(
            "A completion has the id {}, which no command has, and is ignored",
            Hex(id.into())
        ));
    }

    /// Waits for the command in `slot`, and frees the slot if the device is done with it.
    #[inline(never)]
    fn finish(
        &self,
        slot: u16,
        opcode: Opcode,
        submitted: Instant<Monotonic>,
    ) -> Result<AcqEntry, CommandError> {
        let result = self.await_completion(slot, opcode, submitted);
        self.free_slots.release();
        self.statistics.in_flight.change(-1);

        if let Ok(entry) = &result {
            let latency = submitted.elapsed();
            self.statistics.latencies.count(opcode, latency);
            trace::command_completed(
                self.dev,
                opcode.name(),
                AcqHeader::of(entry).status,
                latency,
            );
        }
        result
    }

    /// Does all of [`Self::finish`] but let the next one in.
    ///
    /// A command that times out closes the queue, so that no other one is waited for.
    fn await_completion(
        &self,
        slot: u16,
        opcode: Opcode,
        submitted: Instant<Monotonic>,
    ) -> Result<AcqEntry, CommandError> {
        let timeout = self.completion_timeout();
        self.sleep(slot, submitted + timeout);

        let mut state = self.state.lock();
        if state.is_over(slot) {
            return state.take(slot);
        }

        // The completion may be there, and only the interrupt lost.
        self.statistics.no_completion_cmds.increment();
        self.consume(&mut state);
        let (result, what_now) = if state.is_over(slot) {
            self.is_polled.store(true, Relaxed);
            (
                state.take(slot),
                "its interrupt is missing, and completions are polled from now on",
            )
        } else {
            self.abandon(&mut state);
            (Err(CommandError::Timeout), "the admin queue is closed")
        };
        drop(state);
        if result.is_err() {
            self.health.report(Cause::CommandTimeout);
        }
        self.log(
            &self.silence,
            fmt!(
                "{} was not completed within {} ms; {}",
                opcode.name(),
                timeout.as_millis(),
                what_now
            ),
        );
        result
    }

    /// Sleeps until the command in `slot` is over, or until `deadline`.
    fn sleep(&self, slot: u16, deadline: Instant<Monotonic>) {
        let Some(completed) = self.completed.get(usize::from(slot)) else {
            return;
        };
        loop {
            let left = deadline - Instant::now();
            if left <= Delta::ZERO {
                return;
            }
            if !self.is_polled.load(Relaxed) {
                completed.wait_timeout(left);
                return;
            }
            let is_last = left < POLL_INTERVAL;
            if completed.wait_timeout(if is_last { left } else { POLL_INTERVAL }) {
                return;
            }
            let mut state = self.state.lock();
            self.consume(&mut state);
            if state.is_over(slot) {
                return;
            }
        }
    }
}

/// A command in flight.
///
/// One that is dropped is waited for all the same, as its slot is in use until then.
#[must_use = "the command's result is known only after a wait"]
pub(super) struct Pending<'a, 'bound> {
    queue: &'a AdminQueue<'bound>,
    opcode: Opcode,
    /// What messages say of the command besides the opcode.
    subject: &'static str,
    /// When the device was given the command.
    submitted: Instant<Monotonic>,
    /// `None` once the command was waited for.
    slot: Option<u16>,
}

impl Pending<'_, '_> {
    /// Waits for the command's completion, and logs why it failed.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Status`] if the device refused the command.
    /// - [`CommandError::Timeout`] if it does not answer.
    /// - [`CommandError::Abandoned`] if the queue was closed under the command.
    pub(super) fn wait(mut self) -> Result<AcqEntry, CommandError> {
        let Some(slot) = self.slot.take() else {
            return Err(CommandError::Closed);
        };
        let result = self.queue.finish(slot, self.opcode, self.submitted);
        let result = result.and_then(|entry| {
            let status = AcqHeader::of(&entry).status;
            if status == u8::from(Status::Success) {
                return Ok(entry);
            }
            self.queue.complain(fmt!(
                "{}({}) failed: the device says {} ({})",
                self.opcode.name(),
                self.subject,
                Status::try_from(status).map_or("something unknown", Status::name),
                Hex(status.into())
            ));
            Err(CommandError::Status(status))
        });
        if result.is_err() {
            self.queue.statistics.cmds_err.increment();
        }
        result
    }
}

impl Drop for Pending<'_, '_> {
    #[inline(never)]
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            // The command's own result matters to nobody.
            let _ = self.queue.finish(slot, self.opcode, self.submitted);
        }
    }
}
