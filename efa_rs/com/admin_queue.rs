// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue: commands to the device and their completions. Up to [`DEPTH`] commands are in flight.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    },
};

use super::{
    admin_in_flight::InFlight,
    admin_rings::DEPTH,
    error::CommandError,
    health::{
        Cause,
        Health, //
    },
    lent::Epoch,
    numbers::Numbers,
    registers::Registers,
    statistics::Statistics, //
};
use crate::{
    hw::{
        admin::{
            AcqEntry,
            AcqHeader,
            AqRequest,
            Opcode,
            Status, //
        },
        regs::{
            Caps,
            IntrMask,
            Register,
            Version, //
        },
    },
    sys::{
        log::{
            Hex,
            Limited, //
        },
        semaphore::Semaphore,
        trace, //
    },
};

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

/// How long to wait for a free slot, in times of what a command may take. A task behind the commands of a
/// dead device finds out that it is dead, as one timeout closes the queue.
const SLOT_TIMEOUTS: i64 = 2;

/// The admin queue.
#[pin_data]
pub(crate) struct AdminQueue<'bound> {
    dev: &'bound Device<Bound>,
    registers: Arc<Registers<'bound>>,
    #[pin]
    messages: Limited<'bound>,
    /// Messages that the device does not answer.
    #[pin]
    silence: Limited<'bound>,
    completion_timeout_ms: Atomic<u32>,
    /// Whether an interrupt was missing, so that waiters look for completions themselves.
    is_polled: Atomic<bool>,
    health: Arc<Health>,
    statistics: Arc<Statistics>,
    #[pin]
    free_slots: Semaphore,
    #[pin]
    in_flight: InFlight<'bound>,
    /// The numbers of the completion queues that there are.
    #[pin]
    pub(super) cq_numbers: Numbers,
}

impl<'bound> AdminQueue<'bound> {
    /// Makes a queue that the device does not know of before [`Self::start`].
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
        let completion_timeout_ms = match u32::from(caps.admin_cmd_timeout) {
            0 => COMPLETION_TIMEOUT_MS,
            units => units * COMPLETION_TIMEOUT_UNIT_MS,
        };

        Arc::pin_init(
            try_pin_init!(Self {
                dev,
                registers: registers.clone(),
                messages <- Limited::new(dev),
                silence <- Limited::new(dev),
                completion_timeout_ms: Atomic::new(completion_timeout_ms),
                is_polled: Atomic::new(false),
                health: health.clone(),
                statistics: statistics.clone(),
                free_slots <- Semaphore::new(DEPTH),
                in_flight <- InFlight::new(dev, registers, version, epoch, statistics)?,
                cq_numbers <- Numbers::new(),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Gives the rings to the device. Its interrupts are masked until [`Self::unmask_interrupts`].
    pub(super) fn start(&self, msix_vector: u8) {
        let masked = IntrMask { masked: true };
        self.registers.write(Register::IntrMask, masked.into_raw());
        self.in_flight.start(msix_vector);
    }

    /// Has the device raise interrupts for completions. Commands need them.
    pub(super) fn unmask_interrupts(&self) {
        self.registers
            .write(Register::IntrMask, IntrMask::default().into_raw());
    }

    /// Accepts no more commands, and gives up those in flight: whoever waits for one wakes up, and a
    /// late completion is ignored.
    pub(super) fn close(&self) {
        self.in_flight.close();
    }

    /// Handles what the device has completed.
    pub(super) fn handle_completions(&self) {
        self.in_flight.handle_completions();
    }

    /// Sets how long a command may take, in milliseconds, within bounds; 0 leaves it as it is.
    pub(super) fn set_completion_timeout(&self, millis: u16) {
        if millis != 0 {
            let millis =
                u32::from(millis).clamp(MIN_COMPLETION_TIMEOUT_MS, MAX_COMPLETION_TIMEOUT_MS);
            self.completion_timeout_ms.store(millis, Relaxed);
        }
    }

    /// Returns how long a command may take from its submission on.
    #[inline]
    fn completion_timeout(&self) -> Delta {
        Delta::from_millis(self.completion_timeout_ms.load(Relaxed).into())
    }

    /// Returns the device that the queue belongs to, for messages.
    pub(crate) fn dev(&self) -> &'bound Device<Bound> {
        self.dev
    }

    /// Logs that the device has said something that can't be, and returns the error for that.
    #[cold]
    #[inline(never)]
    pub(crate) fn distrust(&self, what: &str, value: u32) -> CommandError {
        self.messages
            .error(fmt!("The device tells {} ({})", what, value));
        CommandError::Nonsense
    }

    /// Gives an encoded command to the device. Waits for a slot if too many are in flight.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Closed`] if the queue accepts no commands.
    /// - [`CommandError::NoSlot`] if no slot becomes free.
    #[inline]
    pub(super) fn submit(
        &self,
        request: &AqRequest,
        opcode: Opcode,
        subject: &'static str,
    ) -> Result<Pending<'_, 'bound>, CommandError> {
        self.enter(opcode)?;

        let Some(turn) = self.in_flight.submit(request) else {
            // The next one finds out as well that the queue is closed.
            self.free_slots.release();
            self.statistics.cmds_err.increment();
            return Err(CommandError::Closed);
        };
        let pending = Pending {
            queue: self,
            opcode,
            subject,
            submitted: Instant::now(),
            slot: Some(turn.slot),
        };
        if trace::are_commands_traced() {
            trace::command_submitted(self.dev, opcode.name(), turn.id);
        }
        Ok(pending)
    }

    /// Waits for a free slot.
    fn enter(&self, opcode: Opcode) -> Result<(), CommandError> {
        if self.free_slots.try_acquire() {
            return Ok(());
        }
        let timeout = self.completion_timeout() * SLOT_TIMEOUTS;
        self.free_slots.acquire_timeout(timeout).map_err(|_| {
            self.statistics.cmds_err.increment();
            self.messages
                .error(fmt!("{} found no place in the admin queue", opcode.name()));
            CommandError::NoSlot
        })
    }

    /// Waits for the command in `slot`, frees the slot, and copies the completion. A command that times out
    /// closes the queue, so that no other one is waited for.
    #[inline(never)]
    fn finish(
        &self,
        slot: u16,
        opcode: Opcode,
        submitted: Instant<Monotonic>,
        entry: &mut AcqEntry,
    ) -> Result<(), CommandError> {
        let deadline = submitted + self.completion_timeout();
        let is_late = !self
            .in_flight
            .wait(slot, deadline, self.is_polled.load(Relaxed));
        let result = self.in_flight.end(slot, entry);
        let is_lost = matches!(result, Err(CommandError::Timeout));
        if is_late {
            self.report_late(opcode, is_lost);
        }
        self.free_slots.release();

        if result.is_ok() && trace::are_commands_traced() {
            let status = AcqHeader::of(entry).status;
            trace::command_completed(self.dev, opcode.name(), status, submitted.elapsed());
        }
        result
    }

    /// Waits for a command whose result matters to nobody.
    #[cold]
    #[inline(never)]
    fn forget(&self, slot: u16, opcode: Opcode, submitted: Instant<Monotonic>) {
        let mut entry = [0; size_of::<AcqEntry>()];
        let _ = self.finish(slot, opcode, submitted, &mut entry);
    }

    /// Reports a command without a completion in time, which `is_lost`, or of which only the interrupt was.
    #[cold]
    fn report_late(&self, opcode: Opcode, is_lost: bool) {
        self.statistics.no_completion_cmds.increment();
        let what_now = if is_lost {
            self.health.report(Cause::CommandTimeout);
            "the admin queue is closed"
        } else {
            self.is_polled.store(true, Relaxed);
            "its interrupt is missing, and completions are polled from now on"
        };
        self.silence.error(fmt!(
            "{} was not completed within {} ms; {}",
            opcode.name(),
            self.completion_timeout().as_millis(),
            what_now
        ));
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
    /// Waits for the command's completion, copies it to `entry`, and logs why the command failed.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Status`] if the device refused the command.
    /// - [`CommandError::Timeout`] if it does not answer.
    /// - [`CommandError::Abandoned`] if the queue was closed under the command.
    #[inline]
    pub(super) fn wait(mut self, entry: &mut AcqEntry) -> Result<(), CommandError> {
        let Some(slot) = self.slot.take() else {
            return Err(CommandError::Closed);
        };
        let result = self.queue.finish(slot, self.opcode, self.submitted, entry);
        let status = AcqHeader::of(entry).status;
        if result.is_ok() && status == u8::from(Status::Success) {
            return Ok(());
        }
        self.queue.statistics.cmds_err.increment();
        result?;
        self.queue.messages.error(fmt!(
            "{}({}) failed: the device says {} ({})",
            self.opcode.name(),
            self.subject,
            Status::try_from(status).map_or("something unknown", Status::name),
            Hex(status.into())
        ));
        Err(CommandError::Status(status))
    }
}

impl Drop for Pending<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.queue.forget(slot, self.opcode, self.submitted);
        }
    }
}
