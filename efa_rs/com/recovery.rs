// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Ending a session whose device has failed, or is about to be reset, and making the next one.

use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    },
};

use super::{
    controller::Controller,
    health::{
        self,
        Cause, //
    },
    report::{
        Files,
        Phase,
        Report, //
    },
    session::Session, //
};
use crate::{
    hw::regs::ResetReason,
    sys::{
        self,
        trace, //
    },
};

/// How long to wait before each attempt to bring a device back, in milliseconds. After the last one it
/// is given up until somebody resets it or binds it again.
const BACKOFF_MS: [i64; 5] = [0, 1_000, 2_000, 4_000, 8_000];

/// A session that fails earlier than this after its start, in milliseconds, does not end the back-off. More
/// than it takes to notice that keep-alives have stopped.
const SETTLED_MS: i64 = 20_000;

/// What is built upon a session, such as a registration with the RDMA core.
pub(crate) trait Service<'bound>: Send + Sync {
    /// What ends it when dropped.
    type Running: Send + Unpin;

    /// Starts it. It ends before the session does, and after the device was stopped.
    fn start(&self, session: &Arc<Session<'bound>>) -> Result<Self::Running>;
}

/// A device in use: the session, and what is built upon it.
struct Life<'bound, S: Service<'bound>> {
    // Goes first.
    _running: S::Running,
    session: Arc<Session<'bound>>,
    since: Instant<Monotonic>,
    /// Commands that were completed before that.
    commands: u64,
}

/// What is being done with a device.
enum State<'bound, S: Service<'bound>> {
    /// It is in use.
    Up(Life<'bound, S>),
    /// It has failed, and is to be brought back at this time.
    Resetting(Instant<Monotonic>),
    /// The bus has it, and gives it back.
    Paused,
    /// It was given up.
    Failed,
    /// It is not used any more; in a shutdown, who has it open still has.
    Stopped { _life: Option<Life<'bound, S>> },
}

/// The state, and how often it was tried to leave it.
struct Inner<'bound, S: Service<'bound>> {
    state: State<'bound, S>,
    /// Attempts to bring the device back since it last worked.
    attempts: usize,
}

/// Looks after a device: resets it when it has failed.
#[pin_data]
pub(crate) struct Recovery<'bound, S: Service<'bound>> {
    controller: Arc<Controller<'bound>>,
    service: S,
    /// Whether a device that has failed is brought back without being asked to.
    is_automatic: bool,
    report: Arc<Report>,
    _files: Option<Files>,
    #[pin]
    inner: Mutex<Inner<'bound, S>>,
}

impl<'bound, S: Service<'bound>> Recovery<'bound, S> {
    /// Starts the first session and the service upon it.
    ///
    /// # Errors
    ///
    /// Those of [`Session::start`] and [`Service::start`].
    pub(crate) fn new(
        controller: Arc<Controller<'bound>>,
        service: S,
        is_automatic: bool,
    ) -> impl PinInit<Self, Error> + use<'bound, S> {
        pin_init::pin_init_scope(move || {
            let report = Report::new(controller.statistics())?;
            let life = begin(&controller, &service)?;
            report.count_session(life.session.event_queues());
            let files = Files::new(sys::pci::name(controller.pdev()), &report);
            Ok(try_pin_init!(Self {
                controller,
                service,
                is_automatic,
                report,
                _files: files,
                inner <- new_mutex!(Inner {
                    state: State::Up(life),
                    attempts: 0,
                }),
            }? Error))
        })
    }

    /// Looks after the device: whether it works, and whether it is time to bring it back. To be called
    /// when the controller's waker was woken.
    pub(crate) fn attend(&self) {
        let mut inner = self.inner.lock();

        if let State::Up(life) = &inner.state {
            if let Some(cause) = life.session.find_fault() {
                self.fail(&mut inner, cause);
            }
        }
        self.proceed(&mut inner);
    }

    /// Has the device not used any more, as it is about to be reset or to lose its power.
    pub(crate) fn quiesce(&self) {
        let mut inner = self.inner.lock();
        match &inner.state {
            State::Up(_) => self.end(&mut inner, Cause::Requested, State::Paused),
            State::Resetting(_) | State::Failed => drop(self.change(&mut inner, State::Paused)),
            State::Paused | State::Stopped { .. } => (),
        }
    }

    /// Brings the device back after [`Self::quiesce`], or later if it can't be yet.
    pub(crate) fn restart(&self) {
        let mut inner = self.inner.lock();
        if let State::Paused = inner.state {
            self.controller.needs_reset();
            inner.attempts = 0;
            self.change(&mut inner, State::Resetting(Instant::now()));
            self.proceed(&mut inner);
        }
    }

    /// Gives the device up, which the bus has lost.
    pub(crate) fn give_up(&self) {
        let mut inner = self.inner.lock();
        if let State::Paused = inner.state {
            self.controller.isolate();
            self.change(&mut inner, State::Failed);
        }
    }

    /// Ends the use of the device for good.
    pub(crate) fn unbind(&self) {
        let mut inner = self.inner.lock();
        let stopped = State::Stopped { _life: None };
        let old = self.change(&mut inner, stopped);
        if let State::Up(life) = &old {
            life.stop(&self.controller, ResetReason::Normal);
        }
        drop(old);
    }

    /// Stops the device as the system goes down, and leaves those who have it open alone.
    pub(crate) fn shutdown(&self) {
        let mut inner = self.inner.lock();
        let stopped = State::Stopped { _life: None };
        let life = match core::mem::replace(&mut inner.state, stopped) {
            State::Up(life) => {
                life.stop(&self.controller, ResetReason::Shutdown);
                Some(life)
            }
            _ => {
                self.controller.isolate();
                None
            }
        };
        self.change(&mut inner, State::Stopped { _life: life });
    }

    /// Ends the session of a device that has failed.
    fn fail(&self, inner: &mut Inner<'bound, S>, cause: Cause) {
        dev_err!(
            self.controller.dev(),
            "The device has failed ({}) and is reset\n",
            cause.name()
        );
        if let State::Up(life) = &inner.state {
            if life.has_lasted() {
                inner.attempts = 0;
            } else if life.has_worked(&self.controller) {
                // It is backed off, and not given up: programs would be able to make a device unusable.
                inner.attempts = inner.attempts.min(BACKOFF_MS.len() - 1);
            }
        }
        let next = if !self.is_automatic {
            Err("automatic recovery is off (parameter 'recovery')")
        } else {
            next_attempt(inner.attempts).ok_or("it fails whenever it is brought back")
        };
        match next {
            Ok(at) => self.end(inner, cause, State::Resetting(at)),
            Err(why) => {
                self.end(inner, cause, State::Failed);
                self.abandon(cause, why);
            }
        }
    }

    /// Ends the session, tells everybody, and goes to another state.
    fn end(&self, inner: &mut Inner<'bound, S>, cause: Cause, next: State<'bound, S>) {
        self.controller.statistics().count_reset(cause);
        self.report.set_last_reset(cause);
        trace::reset(self.controller.dev(), cause.name());
        self.announce(c"EFA_EVENT=reset", cause);

        let old = self.change(inner, next);
        if let State::Up(life) = &old {
            life.stop(&self.controller, cause.reset_reason());
        }
        // From here on programs have nothing of the device.
        drop(old);
    }

    /// Tries to bring the device back if it is time to, and sees to it that it is looked at again.
    fn proceed(&self, inner: &mut Inner<'bound, S>) {
        while let State::Resetting(at) = inner.state {
            let waker = self.controller.waker();
            let wait = at - Instant::now();
            if waker.is_ending() {
                return;
            }
            if wait > Delta::ZERO {
                return waker.wake_after(wait);
            }
            self.attempt(inner);
        }
        if let State::Up(_) = inner.state {
            self.controller.waker().wake_after(health::INTERVAL);
        }
    }

    /// Tries to bring the device back.
    fn attempt(&self, inner: &mut Inner<'bound, S>) {
        inner.attempts += 1;
        self.report.set_attempts(inner.attempts);
        let cause = self.report.last_reset().unwrap_or(Cause::Requested);

        let error = match begin(&self.controller, &self.service) {
            Ok(life) => {
                self.report.count_session(life.session.event_queues());
                self.change(inner, State::Up(life));
                return self.announce(c"EFA_EVENT=recovered", cause);
            }
            Err(error) => error,
        };
        // Whatever it has lost meanwhile, its last reset is too long ago.
        self.controller.needs_reset();
        match next_attempt(inner.attempts) {
            Some(at) => {
                dev_warn!(
                    self.controller.dev(),
                    "The device could not be brought back ({:?}), attempt {} of {}\n",
                    error,
                    inner.attempts,
                    BACKOFF_MS.len()
                );
                self.change(inner, State::Resetting(at));
            }
            None => {
                self.change(inner, State::Failed);
                self.abandon(cause, "it could not be brought back");
            }
        }
    }

    /// Goes to another state, and returns the one before.
    fn change(&self, inner: &mut Inner<'bound, S>, state: State<'bound, S>) -> State<'bound, S> {
        let phase = match &state {
            State::Up(_) => Phase::Up,
            State::Resetting(_) | State::Paused => Phase::Resetting,
            State::Failed => Phase::Failed,
            State::Stopped { .. } => Phase::Stopped,
        };
        self.report.set_phase(phase);
        trace::state(self.controller.dev(), phase.name());
        core::mem::replace(&mut inner.state, state)
    }

    /// Leaves a device alone that was given up, and says what can be done about it.
    fn abandon(&self, cause: Cause, why: &str) {
        self.controller.isolate();
        self.announce(c"EFA_EVENT=failed", cause);
        dev_err!(
            self.controller.dev(),
            "The device is not used any more, as {}: write 1 to 'reset' in its sysfs directory, or bind it again, to try once more\n",
            why
        );
    }

    /// Tells userspace by a uevent of the PCI function.
    fn announce(&self, event: &CStr, cause: Cause) {
        if let Ok(reason) = CString::try_from_fmt(fmt!("EFA_REASON={}", cause.name())) {
            sys::pci::announce(self.controller.pdev(), &[event, &reason]);
        }
    }
}

impl<'bound, S: Service<'bound>> Life<'bound, S> {
    /// Returns whether it has lasted.
    fn has_lasted(&self) -> bool {
        self.since.elapsed() >= Delta::from_millis(SETTLED_MS)
    }

    /// Returns whether the device has done anything for a program.
    fn has_worked(&self, controller: &Controller<'bound>) -> bool {
        controller.statistics().completed_cmds.get() != self.commands
    }

    /// Ends the session and stops the device.
    fn stop(&self, controller: &Controller<'bound>, reason: ResetReason) {
        self.session.close();
        controller.stop(reason, self.session.epoch());
        self.session.tell_stopped();
    }
}

/// Starts a session and the service upon it.
fn begin<'bound, S: Service<'bound>>(
    controller: &Arc<Controller<'bound>>,
    service: &S,
) -> Result<Life<'bound, S>> {
    let session = Session::start(controller)?;
    let running = service.start(&session).inspect_err(|_| {
        session.close();
        controller.stop(ResetReason::InitError, session.epoch());
    })?;
    Ok(Life {
        _running: running,
        since: Instant::now(),
        commands: controller.statistics().completed_cmds.get(),
        session,
    })
}

/// Returns when to try again to bring a device back, after so many attempts; `None` if that is enough.
fn next_attempt(attempts: usize) -> Option<Instant<Monotonic>> {
    let wait = BACKOFF_MS.get(attempts)?;
    Some(Instant::now() + Delta::from_millis(*wait))
}
