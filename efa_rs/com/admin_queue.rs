// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The admin queue: commands to the device, up to [`DEPTH`] in flight, and their completions.

use kernel::{
    bitmap::BitmapVec,
    device::{
        Bound,
        Device, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        msecs_to_jiffies,
        Delta,
        Instant,
        Jiffies,
        Monotonic, //
    },
};

use super::{
    admin_in_flight::InFlight,
    admin_rings::DEPTH,
    epoch::Epoch,
    error::CommandError,
    health::Cause, //
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
        atomic::{
            AtomicBool,
            AtomicU32,
            AtomicUsize,
            Relaxed, //
        },
        log::Hex,
        semaphore::Semaphore,
        time::{
            from_jiffies,
            to_jiffies, //
        },
        trace, //
    },
};

/// The timeout of a command if the device announces none, in milliseconds. Linux's C driver uses
/// the same value.
const COMPLETION_TIMEOUT_MS: u32 = 30_000;

/// The unit of [`Caps::admin_cmd_timeout`], in milliseconds.
const COMPLETION_TIMEOUT_UNIT_MS: u32 = 100;

/// Lower bound of a hint for the timeout of a command, in milliseconds: the unit of CAPS. With
/// less, commands of a healthy device would time out on a busy host.
const MIN_COMPLETION_TIMEOUT_MS: u32 = COMPLETION_TIMEOUT_UNIT_MS;

/// Upper bound of a hint for the timeout of a command, in milliseconds. With [`SLOT_TIMEOUTS`] no
/// task waits longer than 90 s. The kernel reports a task as hung after 120 s.
const MAX_COMPLETION_TIMEOUT_MS: u32 = 30_000;

/// Timeout of the wait for a free slot, as a multiple of the timeout of a command. If the device is
/// dead, the first command that times out closes the queue.
const SLOT_TIMEOUTS: Jiffies = 2;

/// Time in milliseconds after which a command counts as slow: a fifteenth of the default timeout.
/// EC2's devices were not measured.
const SLOW_MS: u32 = 2_000;

/// Time during which each command may take longer than [`SLOW_MS`]. Then the device has failed, so
/// that the destruction of many objects ends.
const SLOW_LIMIT: Delta = Delta::from_millis(60_000);

/// Longest pause between two commands that counts as time of the device.
const SLOW_PAUSE: Delta = Delta::from_millis(1_000);

/// The time during which all commands were slow.
struct Slowness {
    since: Instant<Monotonic>,
    until: Instant<Monotonic>,
}

#[pin_data]
pub(crate) struct AdminQueue<'bound> {
    pub(super) epoch: Arc<Epoch<'bound>>,
    /// Timeout of a command, in milliseconds.
    completion_timeout_ms: AtomicU32,
    /// The same timeout in jiffies, the unit of waits.
    completion_timeout: AtomicUsize,
    /// Whether an interrupt was missed, so that waiters poll for completions.
    is_polled: AtomicBool,
    /// [`SLOW_MS`] in jiffies.
    slow_wait: Jiffies,
    /// Whether the last command was slow.
    is_slow: AtomicBool,
    #[pin]
    slowness: Mutex<Option<Slowness>>,
    #[pin]
    free_slots: Semaphore,
    /// Held by the one task that may have several commands in flight while it waits for a slot.
    #[pin]
    pub(super) several: Mutex<()>,
    #[pin]
    pub(super) in_flight: InFlight<'bound>,
    /// Numbers of the completion queues that exist.
    #[pin]
    pub(super) cq_numbers: Mutex<BitmapVec>,
}

impl<'bound> AdminQueue<'bound> {
    /// Creates a queue that the device does not use before [`Self::start`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(
        version: Version,
        caps: Caps,
        epoch: Arc<Epoch<'bound>>,
    ) -> Result<Arc<Self>> {
        let timeout_ms = match u32::from(caps.admin_cmd_timeout) {
            0 => COMPLETION_TIMEOUT_MS,
            units => units * COMPLETION_TIMEOUT_UNIT_MS,
        };

        Arc::pin_init(
            try_pin_init!(Self {
                completion_timeout_ms: AtomicU32::new(timeout_ms),
                completion_timeout: AtomicUsize::new(msecs_to_jiffies(timeout_ms)),
                is_polled: AtomicBool::new(false),
                slow_wait: msecs_to_jiffies(SLOW_MS),
                is_slow: AtomicBool::new(false),
                slowness <- new_mutex!(None),
                free_slots <- Semaphore::new(DEPTH),
                several <- new_mutex!(()),
                in_flight <- InFlight::new(version, &epoch)?,
                cq_numbers <- new_mutex!(BitmapVec::new(1 << u16::BITS, GFP_KERNEL)?),
                epoch,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Gives the rings to the device, with interrupts masked.
    pub(super) fn start(&self, msix_vector: u8) {
        self.mask_interrupts(true);
        let registers = &self.epoch.device.registers;
        self.in_flight.rings.start(registers, msix_vector);
    }

    /// Masks or unmasks the interrupts for completions, which commands need.
    pub(super) fn mask_interrupts(&self, masked: bool) {
        let mask = IntrMask { masked }.into_raw();
        self.epoch.device.registers.write(Register::IntrMask, mask);
    }

    /// Sets the timeout of a command in milliseconds, clamped to its bounds; 0 leaves it unchanged.
    pub(super) fn set_completion_timeout(&self, millis: u16) {
        if millis != 0 {
            let millis =
                u32::from(millis).clamp(MIN_COMPLETION_TIMEOUT_MS, MAX_COMPLETION_TIMEOUT_MS);
            self.completion_timeout_ms.store(millis, Relaxed);
            self.completion_timeout
                .store(msecs_to_jiffies(millis), Relaxed);
        }
    }

    pub(crate) fn dev(&self) -> &'bound Device<Bound> {
        self.epoch.device.dev()
    }

    /// Logs that the device has returned an impossible value, and returns the matching error.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_invalid(&self, what: &str, value: u32) -> CommandError {
        let messages = &self.epoch.device.messages.commands;
        messages.error(fmt!("The device returned {} ({})", what, value));
        CommandError::InvalidResponse
    }

    /// Submits an encoded command, waits for it, and copies its completion to `entry`. `subject`
    /// follows the opcode in messages.
    ///
    /// # Errors
    ///
    /// Those of [`Self::begin`] and [`Self::finish`].
    // One copy for all commands: only their encoding and decoding depend on their types.
    #[inline(never)]
    pub(super) fn run(
        &self,
        request: &AqRequest,
        opcode: Opcode,
        subject: &'static str,
        entry: &mut AcqEntry,
    ) -> Result<(), CommandError> {
        let started = self.begin(request, opcode, subject)?;
        self.finish(&started, self.completion_timeout.load(Relaxed), entry)
    }

    /// Submits an encoded command without a wait for its completion. Waits if no slot is free.
    /// [`Self::finish`] has to follow, which frees the slot.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Closed`] if the queue accepts no commands.
    /// - [`CommandError::NoSlot`] if no slot becomes free.
    // Inlined, like `finish`, because nearly all commands are executed by `run`.
    #[inline(always)]
    pub(super) fn begin(
        &self,
        request: &AqRequest,
        opcode: Opcode,
        subject: &'static str,
    ) -> Result<Started, CommandError> {
        self.take_slot(opcode)?;

        let Some(id) = self.in_flight.submit(request) else {
            // The queue is closed, so the next waiter for a slot fails as well.
            self.free_slots.release();
            self.epoch.device.statistics.cmds_err.increment();
            return Err(CommandError::Closed);
        };
        let traced = trace::are_commands_traced().then(Instant::now);
        if traced.is_some() {
            trace::command_submitted(self.dev(), opcode.name(), id);
        }
        Ok(Started {
            id,
            opcode,
            subject,
            traced,
        })
    }

    /// Returns the time that is left to a command.
    pub(super) fn time_left(&self, submitted: Instant<Monotonic>) -> Jiffies {
        let timeout = self.completion_timeout_ms.load(Relaxed);
        to_jiffies(Delta::from_millis(timeout.into()) - submitted.elapsed())
    }

    fn take_slot(&self, opcode: Opcode) -> Result<(), CommandError> {
        if self.free_slots.try_acquire() {
            return Ok(());
        }
        let timeout = self.completion_timeout.load(Relaxed) * SLOT_TIMEOUTS;
        self.free_slots.acquire_timeout(timeout).map_err(|_| {
            self.epoch.device.statistics.cmds_err.increment();
            self.epoch.device.messages.commands.error(fmt!(
                "Failed to submit command {}: no slot of the admin queue became free",
                opcode.name()
            ));
            CommandError::NoSlot
        })
    }

    /// Waits for a command for at most `timeout`, frees its slot, copies its completion to `entry`,
    /// and logs a failure. A timeout closes the queue, so that no other command is waited for.
    ///
    /// # Errors
    ///
    /// - [`CommandError::Status`] if the device refused the command.
    /// - [`CommandError::Timeout`] if the device does not answer.
    /// - [`CommandError::Abandoned`] if the queue was closed while the command was in flight.
    #[inline(always)]
    pub(super) fn finish(
        &self,
        started: &Started,
        timeout: Jiffies,
        entry: &mut AcqEntry,
    ) -> Result<(), CommandError> {
        let (id, opcode) = (started.id, started.opcode);
        let is_polled = self.is_polled.load(Relaxed);
        let left = self.in_flight.wait(id, timeout, is_polled);
        let waited = timeout.saturating_sub(left);
        if waited > self.slow_wait {
            self.note_slow(waited);
        } else if self.is_slow.load(Relaxed) {
            self.is_slow.store(false, Relaxed);
        }
        let result = self.in_flight.end(id, entry);
        match result {
            Ok(true) => {
                self.is_polled.store(true, Relaxed);
                self.report_late(
                    opcode,
                    "The device sent a completion but the driver received no MSI-X interrupt",
                    "Completions are polled from now on",
                );
            }
            Err(CommandError::Timeout) => {
                self.epoch.report(Cause::CommandTimeout);
                self.report_late(
                    opcode,
                    "The device didn't send any completion",
                    "Admin queue is closed",
                );
            }
            _ => (),
        }
        self.free_slots.release();

        let status = AcqHeader::of(entry).status;
        if let (Ok(_), Some(submitted)) = (&result, started.traced) {
            trace::command_completed(self.dev(), opcode.name(), status, submitted.elapsed());
        }
        if result.is_ok() && status == u8::from(Status::Success) {
            return Ok(());
        }
        self.epoch.device.statistics.cmds_err.increment();
        result?;
        self.epoch.device.messages.commands.error(fmt!(
            "Failed to process command {}({}): the device returned {} ({})",
            opcode.name(),
            started.subject,
            Status::try_from(status).map_or("an unknown status", Status::name),
            Hex(status.into())
        ));
        Err(CommandError::Status(status))
    }

    /// Records a slow command. If all commands have been slow for [`SLOW_LIMIT`], reports the device
    /// as failed and closes the queue.
    #[cold]
    #[inline(never)]
    fn note_slow(&self, waited: Jiffies) {
        let now = Instant::now();
        let mut slowness = self.slowness.lock();
        let is_slow = self.is_slow.load(Relaxed);
        self.is_slow.store(true, Relaxed);
        let submitted = now - from_jiffies(waited);
        let since = match &*slowness {
            // Without a pause between the commands.
            Some(last) if is_slow && submitted - last.until <= SLOW_PAUSE => last.since,
            _ => submitted,
        };
        *slowness = Some(Slowness { since, until: now });
        drop(slowness);
        if now - since > SLOW_LIMIT {
            self.epoch.report(Cause::CommandTimeout);
            self.epoch.device.messages.late.error(fmt!(
                "Each command of a minute took more than {SLOW_MS} ms; the admin queue is closed"
            ));
            self.in_flight.close();
        }
    }

    #[cold]
    #[inline(never)]
    fn report_late(&self, opcode: Opcode, what: &str, what_now: &str) {
        self.epoch.device.statistics.no_completion_cmds.increment();
        self.epoch.device.messages.late.error(fmt!(
            "{} for admin cmd {} within {} ms. {}",
            what,
            opcode.name(),
            self.completion_timeout_ms.load(Relaxed),
            what_now
        ));
    }
}

#[must_use = "its slot is in use until the command was waited for"]
pub(super) struct Started {
    id: u16,
    opcode: Opcode,
    /// Follows the opcode in messages.
    subject: &'static str,
    /// Time of the submission, if commands are traced.
    traced: Option<Instant<Monotonic>>,
}
