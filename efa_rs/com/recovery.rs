// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Ending a session whose device has failed, or is about to be reset, and making the next one.

use kernel::{
    new_mutex,
    prelude::*,
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
    backoff::{
        self,
        Backoff, //
    },
    controller::Owner,
    health::{
        self,
        Cause, //
    },
    life::{
        Life,
        Service,
        State, //
    },
    report::{
        self,
        Report,
        StateFile, //
    }, //
};
use crate::{
    hw::regs::ResetReason,
    sys::{
        self,
        completion::Completion,
        time::to_jiffies,
        trace, //
    },
};

/// How long a callback of the bus waits for the work item, in milliseconds. Clients in the kernel may hold up the
/// unregistration for longer.
const BUS_TIMEOUT: Delta = Delta::from_millis(10_000);

/// The state, and how often it was tried to leave it.
struct Inner<'bound, S: Service<'bound>> {
    state: State<'bound, S>,
    /// What the bus has ended, and is to be dropped.
    ended: Option<Life<'bound, S>>,
    /// Whether the work item is at it.
    is_busy: bool,
    backoff: Backoff,
}

/// Looks after a device: resets it when it has failed.
///
/// The work item starts and ends sessions; so does [`Self::unbind`], when the work is over. Callbacks of the bus
/// halt the device, change the state, and wait for the work item for a while at most.
#[pin_data]
pub(crate) struct Recovery<'bound, S: Service<'bound>> {
    controller: Owner<'bound>,
    service: S,
    /// Whether a device that has failed is brought back without being asked to.
    is_automatic: bool,
    report: Arc<Report>,
    _file: Option<StateFile>,
    /// Guards the state. Not held while the device is registered, unregistered, reset or halted.
    #[pin]
    inner: Mutex<Inner<'bound, S>>,
    /// Signalled by the work item at its end.
    #[pin]
    settled: Completion,
}

impl<'bound, S: Service<'bound>> Recovery<'bound, S> {
    /// Starts the first session and the service upon it.
    ///
    /// # Errors
    ///
    /// Those of [`Life::begin`].
    pub(crate) fn new(
        controller: Owner<'bound>,
        service: S,
        is_automatic: bool,
    ) -> impl PinInit<Self, Error> + use<'bound, S> {
        pin_init::pin_init_scope(move || {
            let report = Report::new(controller.statistics())?;
            let life = Life::begin(&controller, &service)?;
            report.count_session(life.session.event_queues());
            let file = StateFile::new(sys::pci::name(controller.pdev()), &report);
            Ok(try_pin_init!(Self {
                controller,
                service,
                is_automatic,
                report,
                _file: file,
                inner <- new_mutex!(Inner {
                    state: State::Up(life),
                    ended: None,
                    is_busy: false,
                    backoff: Backoff::default(),
                }),
                settled <- Completion::new(),
            }? Error))
        })
    }

    /// Looks after the device: whether it works, and whether it is time to bring it back. To be called
    /// when the controller's waker was woken.
    pub(crate) fn attend(&self) {
        let mut inner = self.inner.lock();
        inner.is_busy = true;
        let ended = inner.ended.take();
        let session = match &inner.state {
            State::Up(life) => Some(life.session.clone()),
            State::Leaving(session) => Some(session.clone()),
            _ => None,
        };
        drop(inner);

        if let Some(life) = ended {
            self.end(life);
        }
        if let Some(session) = session {
            match self.controller.find_fault(&session) {
                Some(cause) => self.fail(cause),
                None => session.check_flush(),
            }
        }
        self.proceed();

        self.inner.lock().is_busy = false;
        self.settled.complete();
    }

    /// Has the device not used any more, as it is about to be reset or to lose its power.
    pub(crate) fn quiesce(&self) {
        let mut inner = self.inner.lock();
        match &inner.state {
            State::Up(_) => {
                self.note(Cause::Requested);
                if let State::Up(life) = self.change(&mut inner, State::Paused) {
                    inner.ended = Some(life);
                }
            }
            State::Resetting(_) | State::Failed => drop(self.change(&mut inner, State::Paused)),
            State::Paused | State::Leaving(_) | State::Stopped { .. } => return,
        }
        drop(inner);
        self.controller.revoke(false);
        self.await_work();
    }

    /// Brings the device back after [`Self::quiesce`], or later if it can't be yet.
    pub(crate) fn restart(&self) {
        if !matches!(self.inner.lock().state, State::Paused) {
            return;
        }
        // No one but the bus, which calls one function at a time, leaves this state.
        self.controller.restore();
        let mut inner = self.inner.lock();
        inner.backoff = Backoff::default();
        self.change(&mut inner, State::Resetting(Instant::now()));
        drop(inner);
        self.await_work();
    }

    /// Gives the device up, which the bus has lost.
    pub(crate) fn give_up(&self) {
        let mut inner = self.inner.lock();
        if let State::Paused = inner.state {
            self.controller.isolate();
            self.change(&mut inner, State::Failed);
        }
    }

    /// Ends the use of the device for good. `end_work` waits until [`Self::attend`] is not called any more.
    ///
    /// Clients may use the device until their `remove` returns. The work item watches it until then, so that no client
    /// waits for a device that has died.
    pub(crate) fn unbind(&self, end_work: &dyn Fn()) {
        let mut inner = self.inner.lock();
        if let State::Up(life) = &inner.state {
            let session = life.session.clone();
            let old = self.change(&mut inner, State::Leaving(session.clone()));
            drop(inner);
            if let Some(cause) = self.controller.find_fault(&session) {
                session.epoch().halt(cause);
            }
            self.controller.waker().wake();
            drop(old);
            end_work();
            self.controller.stop(&session, ResetReason::Normal);
            // The report has this phase already.
            let stopped = State::Stopped { _life: None };
            let old = core::mem::replace(&mut self.inner.lock().state, stopped);
            drop((old, session));
        } else {
            drop(inner);
            // What the work does with it ends soon.
            self.controller.revoke(false);
            end_work();
            let mut inner = self.inner.lock();
            let ended = inner.ended.take();
            let old = self.change(&mut inner, State::Stopped { _life: None });
            drop(inner);
            if let Some(life) = ended {
                self.end(life);
            }
            drop(old);
        }
        self.controller.retire();
    }

    /// Halts the device as the system shuts down. Programs keep it open. This waits for a reset that is under way, and for
    /// nothing else.
    pub(crate) fn shutdown(&self) {
        let mut inner = self.inner.lock();
        let old = self.change(&mut inner, State::Stopped { _life: None });
        if let State::Up(life) = old {
            inner.state = State::Stopped { _life: Some(life) };
        }
        drop(inner);
        self.controller.revoke(true);
    }

    /// Has the work item do what there is to do, and waits until it has, for a while at most.
    fn await_work(&self) {
        let deadline = Instant::<Monotonic>::now() + BUS_TIMEOUT;
        self.settled.reinit();
        self.controller.waker().wake();
        loop {
            let left = deadline - Instant::now();
            if left <= Delta::ZERO || !self.settled.wait_timeout(to_jiffies(left)) {
                return;
            }
            // It may have begun before there was anything to do.
            let inner = self.inner.lock();
            let is_due =
                matches!(inner.state, State::Resetting(at) if at - Instant::now() <= Delta::ZERO);
            if !inner.is_busy && inner.ended.is_none() && !is_due {
                return;
            }
        }
    }

    /// Drops a session of a device that was halted, and what is built upon it: from here on programs have nothing
    /// of the device.
    fn end(&self, life: Life<'bound, S>) {
        if life.session.epoch().is_stopped() {
            self.controller.quarantine().release();
        }
        drop(life);
    }

    /// Ends the session of a device that has failed.
    fn fail(&self, cause: Cause) {
        let mut inner = self.inner.lock();
        let life = match &inner.state {
            State::Up(life) => life,
            State::Leaving(session) => {
                let epoch = session.epoch().clone();
                drop(inner);
                return epoch.halt(cause);
            }
            _ => return,
        };
        let (since, has_worked) = (life.since, life.has_worked());
        inner.backoff.session_failed(since, has_worked);
        dev_err!(
            self.controller.dev(),
            "The device has failed ({}) and is reset\n",
            cause.name()
        );
        let next = if !self.is_automatic {
            Err("automatic recovery is off (parameter 'recovery')")
        } else {
            inner.backoff.next().ok_or("it fails after each restart")
        };
        self.note(cause);
        let state = match next {
            Ok(at) => State::Resetting(at),
            Err(_) => State::Failed,
        };
        let old = self.change(&mut inner, state);
        drop(inner);

        if let State::Up(life) = old {
            life.session.epoch().halt(cause);
            self.end(life);
        }
        if let Err(why) = next {
            self.abandon(cause, why);
        }
    }

    /// Counts and announces the end of a session.
    fn note(&self, cause: Cause) {
        self.controller.statistics().count_reset(cause);
        self.report.set_last_reset(cause);
        trace::reset(self.controller.dev(), cause.name());
        report::announce(self.controller.pdev(), c"EFA_EVENT=reset", cause);
    }

    /// Tries to reset the device if it is time to, and schedules the next look at it.
    fn proceed(&self) {
        let waker = self.controller.waker();
        loop {
            let mut inner = self.inner.lock();
            let at = match inner.state {
                State::Resetting(at) => at,
                State::Up(_) | State::Leaving(_) => return waker.wake_after(health::INTERVAL),
                _ => return,
            };
            let wait = at - Instant::now();
            if waker.is_ending() {
                return;
            }
            if wait > Delta::ZERO {
                return waker.wake_after(wait);
            }
            self.report.set_attempts(inner.backoff.count_attempt());
            drop(inner);
            self.conclude(Life::begin(&self.controller, &self.service));
        }
    }

    /// Takes the result of an attempt to bring the device back.
    fn conclude(&self, result: Result<Life<'bound, S>>) {
        let cause = self.report.last_reset().unwrap_or(Cause::Requested);
        if result.is_err() {
            // Whatever it has lost meanwhile, its last reset is too long ago.
            self.controller.needs_reset();
        }
        let mut inner = self.inner.lock();
        // The bus may have had it meanwhile, and may have given it back.
        let is_halted = |life: &Life<'bound, S>| life.session.epoch().is_halted();
        if !matches!(inner.state, State::Resetting(_)) || result.as_ref().is_ok_and(is_halted) {
            drop(inner);
            return drop(result);
        }
        let error = match result {
            Ok(life) => {
                self.report.count_session(life.session.event_queues());
                self.change(&mut inner, State::Up(life));
                let pdev = self.controller.pdev();
                return report::announce(pdev, c"EFA_EVENT=recovered", cause);
            }
            Err(error) => error,
        };
        match inner.backoff.next() {
            Some(at) => {
                dev_warn!(
                    self.controller.dev(),
                    "The device could not be restarted ({:?}), attempt {} of {}\n",
                    error,
                    inner.backoff.attempts(),
                    backoff::ATTEMPTS
                );
                self.change(&mut inner, State::Resetting(at));
            }
            None => {
                self.change(&mut inner, State::Failed);
                drop(inner);
                self.abandon(cause, "it could not be restarted");
            }
        }
    }

    /// Enters another state, and returns the one before.
    fn change(&self, inner: &mut Inner<'bound, S>, state: State<'bound, S>) -> State<'bound, S> {
        let phase = state.phase();
        self.report.set_phase(phase);
        trace::state(self.controller.dev(), phase.name());
        core::mem::replace(&mut inner.state, state)
    }

    /// Gives a device up, and logs how to retry.
    fn abandon(&self, cause: Cause, why: &str) {
        self.controller.isolate();
        report::announce(self.controller.pdev(), c"EFA_EVENT=failed", cause);
        dev_err!(
            self.controller.dev(),
            "The device is given up, as {}: write 1 to 'reset' in its sysfs directory, or bind it again, to retry\n",
            why
        );
    }
}
