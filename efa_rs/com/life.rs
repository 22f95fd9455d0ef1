// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The state of a device, and of one in use its session and the service upon it.

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
};

use super::{
    controller::Controller,
    report::Phase,
    session::Session, //
};
use crate::hw::regs::ResetReason;

/// What is built upon a session, such as a registration with the RDMA core.
pub(crate) trait Service<'bound>: Send + Sync {
    /// What ends it when dropped.
    type Running: Send + Unpin;

    /// Starts it. It ends before the session does.
    fn start(&self, session: &Arc<Session<'bound>>) -> Result<Self::Running>;
}

/// A device in use.
pub(super) struct Life<'bound, S: Service<'bound>> {
    // Dropped before the session.
    _running: S::Running,
    pub(super) session: Arc<Session<'bound>>,
    pub(super) since: Instant<Monotonic>,
    /// Commands that were completed before that.
    commands: u64,
}

impl<'bound, S: Service<'bound>> Life<'bound, S> {
    /// Starts a session and the service upon it.
    ///
    /// # Errors
    ///
    /// Those of [`Controller::start`] and [`Service::start`].
    pub(super) fn begin(controller: &Arc<Controller<'bound>>, service: &S) -> Result<Self> {
        let session = controller.start()?;
        let running = service
            .start(&session)
            .inspect_err(|_| controller.stop(&session, ResetReason::InitError))?;
        Ok(Self {
            _running: running,
            since: Instant::now(),
            commands: controller.statistics().completed_cmds.get(),
            session,
        })
    }

    /// Returns whether the device has done anything for a program.
    pub(super) fn has_worked(&self) -> bool {
        self.session.device().statistics().completed_cmds.get() != self.commands
    }
}

/// The state of a device.
pub(super) enum State<'bound, S: Service<'bound>> {
    /// It is in use.
    Up(Life<'bound, S>),
    /// It has failed. The next attempt to reset it is at this time.
    Resetting(Instant<Monotonic>),
    /// The bus resets or suspends it.
    Paused,
    /// It was given up.
    Failed,
    /// It is being unregistered. Clients may use the session until their `remove` returns.
    Leaving(Arc<Session<'bound>>),
    /// The driver does not use it any more. After a shutdown its registration remains, for programs that have it open.
    Stopped { _life: Option<Life<'bound, S>> },
}

impl<'bound, S: Service<'bound>> State<'bound, S> {
    /// Returns the state as others see it.
    pub(super) fn phase(&self) -> Phase {
        match self {
            Self::Up(_) => Phase::Up,
            Self::Resetting(_) | Self::Paused => Phase::Resetting,
            Self::Failed => Phase::Failed,
            Self::Leaving(_) | Self::Stopped { .. } => Phase::Stopped,
        }
    }
}
