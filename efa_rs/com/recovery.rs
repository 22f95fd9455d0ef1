// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Recovery of a device that has failed or is reset: ends its session and starts the next one.

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
    health::Cause,
    life::{
        Life,
        Service,
        State, //
    },
    report::{
        self,
        Report,
        StateFile, //
    },
    session::Session, //
};
use crate::{
    hw::regs::ResetReason,
    sys::{
        completion::Completion,
        devlink::Reporter,
        time::to_jiffies,
        trace, //
    },
};

/// Limit on the wait of a bus callback for the work item. Kernel clients may delay the
/// unregistration for longer.
const BUS_TIMEOUT: Delta = Delta::from_millis(10_000);

/// The state of the device, and of the attempts to restart it.
struct Inner<'bound, S: Service<'bound>> {
    state: State<'bound, S>,
    /// The life that the bus has ended and the work item has to drop.
    ended: Option<Life<'bound, S>>,
    /// The session of a function that was the bus's when its service ended.
    parked: Option<Arc<Session<'bound>>>,
    /// Whether the work item is running.
    is_busy: bool,
    backoff: Backoff,
}

/// Resets a device that has failed, and restarts it.
///
/// The work item ends and restarts sessions; [`Self::unbind`] ends the last one. Callbacks of the bus
/// halt the device, change the state, and wait for the work item, with a timeout. The monitor halts
/// a device that has failed, also while the work item waits for clients.
#[pin_data]
pub(crate) struct Recovery<'bound, S: Service<'bound>> {
    // Dropped first, as operators may request a recovery until then.
    reporter: Reporter<'bound, Report>,
    controller: Owner<'bound>,
    service: S,
    /// Whether a failed device is restarted automatically.
    is_automatic: bool,
    report: Arc<Report>,
    _file: Option<StateFile>,
    /// Guards the state. Not held while the device is registered, unregistered, reset or halted.
    #[pin]
    inner: Mutex<Inner<'bound, S>>,
    /// Signalled by the work item when it has finished.
    #[pin]
    settled: Completion,
}

impl<'bound, S: Service<'bound>> Recovery<'bound, S> {
    /// Prepares a device for [`Self::start`].
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(crate) fn new(
        controller: Owner<'bound>,
        service: S,
        is_automatic: bool,
    ) -> Result<impl PinInit<Self, Error> + use<'bound, S>> {
        let report = Report::new(&controller.statistics)?;
        let file = report::create_file(controller.dev().name(), &report);
        Ok(try_pin_init!(Self {
            reporter: Reporter::new(controller.binding, report.clone(), &controller.wakers.work)?,
            controller,
            service,
            is_automatic,
            report,
            _file: file,
            inner <- new_mutex!(Inner {
                state: State::Paused,
                ended: None,
                parked: None,
                is_busy: false,
                backoff: Backoff::default(),
            }),
            settled <- Completion::new(),
        }? Error))
    }

    /// Starts the first session and its service.
    ///
    /// # Errors
    ///
    /// Those of [`Controller::start`](super::controller::Controller) and [`Service::start`].
    pub(crate) fn start(&self) -> Result {
        let life = self.begin()?;
        self.change(&mut self.inner.lock(), State::Up(life));
        // It may have failed meanwhile.
        self.controller.wakers.work.wake();
        Ok(())
    }

    /// Checks the device: see [`Controller::monitor`](super::controller::Controller).
    pub(crate) fn monitor(&self) {
        self.controller.monitor();
    }

    /// Ends the session of a device that has failed, and restarts the device if that is due. Called
    /// after each wake-up of the work item.
    pub(crate) fn attend(&self) {
        let mut inner = self.inner.lock();
        inner.is_busy = true;
        let ended = inner.ended.take();
        drop(inner);

        if let Some(life) = ended {
            self.end(life);
        }
        self.check();
        if self.reporter.begin_request() {
            self.retry();
        }
        self.try_restart();

        let mut inner = self.inner.lock();
        self.reporter.answer(match inner.state {
            State::Up(_) => Ok(()),
            State::Resetting(_) => Err(EAGAIN),
            State::Paused => Err(EBUSY),
            State::Failed => Err(EIO),
            State::Stopped { .. } => Err(ENODEV),
        });
        inner.is_busy = false;
        self.settled.complete();
    }

    /// Restarts a device in error now, as an operator requests, unless the bus has lost it.
    fn retry(&self) {
        self.controller.needs_reset();
        let mut inner = self.inner.lock();
        if matches!(inner.state, State::Failed | State::Resetting(_))
            && !self.controller.is_revoked()
        {
            self.reset_now(&mut inner);
        }
    }

    /// Makes a restart due, as if the device had worked before.
    fn reset_now(&self, inner: &mut Inner<'bound, S>) {
        inner.backoff = Backoff::default();
        self.change(inner, State::Resetting(Instant::now()));
    }

    /// Stops the use of the device, which is about to be reset or to lose its power.
    pub(crate) fn quiesce(&self) {
        let mut inner = self.inner.lock();
        match inner.state {
            State::Up(_) => self.report.note(self.controller.pdev, Cause::Requested),
            State::Resetting(_) | State::Failed => {}
            State::Paused | State::Stopped { .. } => return,
        }
        if let State::Up(life) = self.change(&mut inner, State::Paused) {
            inner.ended = Some(life);
        }
        drop(inner);
        self.controller.revoke(ResetReason::OsTrigger);
        self.await_work();
    }

    /// Restarts the device after [`Self::quiesce`], and retries later if that fails.
    pub(crate) fn restart(&self) {
        let mut inner = self.inner.lock();
        if !matches!(inner.state, State::Paused) {
            return;
        }
        let parked = inner.parked.take();
        drop(inner);
        drop(parked);
        // Only the bus changes this state, and it calls one function at a time.
        self.controller.restore();
        self.reset_now(&mut self.inner.lock());
        self.await_work();
    }

    /// Gives up the device, which the bus has lost.
    pub(crate) fn give_up(&self) {
        let mut inner = self.inner.lock();
        if let State::Paused = inner.state {
            self.change(&mut inner, State::Failed);
            drop(inner);
            self.give_up_because(Cause::Requested, "the bus could not recover it");
        }
    }

    /// Ends the use of the device. `end_work` waits until [`Self::attend`] is no longer called.
    ///
    /// Clients may use the device until their `remove` returns. It is monitored until then, so that
    /// no client waits for a dead device.
    pub(crate) fn unbind(&self, end_work: &dyn Fn()) {
        let old = self.change(&mut self.inner.lock(), State::Stopped { _life: None });
        if !matches!(old, State::Up(_)) {
            // With access revoked, a start by the work item fails soon.
            self.controller.revoke(ResetReason::OsTrigger);
        }
        end_work();
        self.reporter.end();
        if let State::Up(life) = old {
            drop(life.running);
            self.controller.stop(&life.session, ResetReason::Normal);
        }
        let mut inner = self.inner.lock();
        let (ended, parked) = (inner.ended.take(), inner.parked.take());
        drop(inner);
        drop((ended, parked));
        self.controller.retire();
    }

    /// Halts the device, as the system shuts down. Programs keep it open. Waits only for a reset in
    /// progress.
    pub(crate) fn shutdown(&self) {
        let mut inner = self.inner.lock();
        let old = self.change(&mut inner, State::Stopped { _life: None });
        if let State::Up(life) = old {
            inner.state = State::Stopped { _life: Some(life) };
        }
        drop(inner);
        self.controller.revoke(ResetReason::Shutdown);
    }

    /// Wakes the work item, and waits until no work is due, for at most [`BUS_TIMEOUT`].
    fn await_work(&self) {
        let deadline = Instant::<Monotonic>::now() + BUS_TIMEOUT;
        let inner = self.inner.lock();
        self.settled.reinit();
        drop(inner);
        self.controller.wakers.work.wake();
        loop {
            let left = deadline - Instant::now();
            if left <= Delta::ZERO || self.settled.wait_timeout(to_jiffies(left)) == 0 {
                return;
            }
            // The work item may have begun before this work was due.
            let inner = self.inner.lock();
            let is_due =
                matches!(inner.state, State::Resetting(at) if at - Instant::now() <= Delta::ZERO);
            if !inner.is_busy && inner.ended.is_none() && !is_due {
                return;
            }
        }
    }

    fn begin(&self) -> Result<Life<'bound, S>> {
        let session = self.controller.start()?;
        let running = self.service.start(&session).inspect_err(|_| {
            self.controller.stop(&session, ResetReason::InitError);
            self.release(session.clone());
        })?;
        Ok(Life::new(running, session))
    }

    /// Drops the session of a halted device, and its service. Afterwards programs can't use any
    /// resource of the device.
    fn end(&self, life: Life<'bound, S>) {
        if life.session.epoch().is_stopped() {
            self.controller.quarantine.release();
        }
        drop(life.running);
        self.release(life.session);
    }

    /// Drops a session whose service has ended. That frees the vectors, which accesses the function.
    /// If this is the bus's at present, [`Self::restart`] drops the session.
    fn release(&self, session: Arc<Session<'bound>>) {
        let mut inner = self.inner.lock();
        if self.controller.is_revoked() {
            inner.parked = Some(session);
        } else {
            drop(inner);
            drop(session);
        }
    }

    /// Ends the session of a device in use that has failed.
    fn check(&self) {
        let fault = match &self.inner.lock().state {
            State::Up(life) => life.session.epoch().fault(),
            _ => None,
        };
        let Some(cause) = fault else {
            return;
        };
        self.report.note(self.controller.pdev, cause);
        let is_due = self.reporter.report(cause.name());

        let mut inner = self.inner.lock();
        // The bus may have paused it meanwhile.
        let State::Up(life) = &inner.state else {
            return;
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
        } else if !is_due {
            Err("its health reporter does not recover it")
        } else {
            inner.backoff.next().ok_or("it fails after each restart")
        };
        let old = self.change(&mut inner, next.map_or(State::Failed, State::Resetting));
        drop(inner);

        if let State::Up(life) = old {
            life.session.epoch().halt(cause);
            self.end(life);
        }
        if let Err(why) = next {
            self.give_up_because(cause, why);
        }
    }

    /// Restarts the device if that is due, or schedules the next attempt.
    fn try_restart(&self) {
        let waker = &self.controller.wakers.work;
        loop {
            let mut inner = self.inner.lock();
            let State::Resetting(at) = inner.state else {
                return;
            };
            let wait = at - Instant::now();
            if waker.is_ending() {
                return;
            }
            if wait > Delta::ZERO {
                return waker.wake_after(wait);
            }
            inner.backoff.attempts += 1;
            self.report.values.lock().attempts = inner.backoff.attempts;
            drop(inner);
            self.finish_restart(self.begin());
        }
    }

    /// Handles the result of an attempt to restart the device.
    fn finish_restart(&self, result: Result<Life<'bound, S>>) {
        let cause = self
            .report
            .values
            .lock()
            .last_reset
            .unwrap_or(Cause::Requested);
        if result.is_err() {
            // It may lose its state before the next attempt, which therefore needs a reset.
            self.controller.needs_reset();
        }
        let mut inner = self.inner.lock();
        let is_due = matches!(inner.state, State::Resetting(_));
        let error = match result {
            Ok(life) if is_due && !life.session.epoch().is_halted() => {
                self.change(&mut inner, State::Up(life));
                let pdev = self.controller.pdev;
                return report::announce(pdev, c"EFA_EVENT=recovered", cause);
            }
            Ok(life) => {
                drop(inner);
                // A kernel client that was added may have met a fault. Otherwise the bus has paused
                // the device meanwhile, and may have restored it.
                let has_failed = life.session.epoch().fault().is_some();
                self.end(life);
                if !has_failed {
                    return;
                }
                inner = self.inner.lock();
                EIO
            }
            Err(error) => error,
        };
        if !matches!(inner.state, State::Resetting(_)) {
            return;
        }
        match inner.backoff.next() {
            Some(at) => {
                dev_warn!(
                    self.controller.dev(),
                    "The device could not be restarted ({:?}), attempt {} of {}\n",
                    error,
                    inner.backoff.attempts,
                    backoff::ATTEMPTS
                );
                self.change(&mut inner, State::Resetting(at));
            }
            None => {
                self.change(&mut inner, State::Failed);
                drop(inner);
                self.give_up_because(cause, "it could not be restarted");
            }
        }
    }

    /// Changes and reports the state. Returns the previous state.
    fn change(&self, inner: &mut Inner<'bound, S>, state: State<'bound, S>) -> State<'bound, S> {
        let mut values = self.report.values.lock();
        values.state = state.name();
        if let State::Up(life) = &state {
            values.sessions = values.sessions.wrapping_add(1);
            values.event_queues = life.session.event_queues();
        }
        drop(values);
        trace::state(self.controller.dev(), state.name());
        core::mem::replace(&mut inner.state, state)
    }

    /// Gives up the device, unless the bus has reset it meanwhile, and logs how to retry.
    fn give_up_because(&self, cause: Cause, why: &str) {
        let inner = self.inner.lock();
        if !matches!(inner.state, State::Failed) {
            return;
        }
        self.controller.isolate();
        drop(inner);
        self.reporter.fail();
        report::announce(self.controller.pdev, c"EFA_EVENT=failed", cause);
        dev_err!(
            self.controller.dev(),
            "Given up, as {}: to retry, use 'devlink health recover', write 1 to 'reset' in sysfs, \
             or bind it again\n",
            why
        );
    }
}
