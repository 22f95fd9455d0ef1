// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The state of a device, including the session and the service of a device in use.

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
};

use super::session::Session;

/// A service on top of a session, such as a registration with the RDMA core.
pub(crate) trait Service<'bound>: Send + Sync {
    /// The running service, which ends when this is dropped.
    type Running: Send + Unpin;

    /// Starts the service, which ends before the session does.
    fn start(&self, session: &Arc<Session<'bound>>) -> Result<Self::Running>;
}

pub(super) struct Life<'bound, S: Service<'bound>> {
    // Dropped before the session, which it uses.
    pub(super) running: S::Running,
    pub(super) session: Arc<Session<'bound>>,
    pub(super) since: Instant<Monotonic>,
    /// Number of commands that were completed before that time.
    commands: u64,
}

impl<'bound, S: Service<'bound>> Life<'bound, S> {
    /// Records a service that has just started on a session.
    pub(super) fn new(running: S::Running, session: Arc<Session<'bound>>) -> Self {
        Self {
            running,
            since: Instant::now(),
            commands: session.device().statistics.completed_cmds.get(),
            session,
        }
    }

    /// Returns whether the device has completed any command since the service was started.
    pub(super) fn has_worked(&self) -> bool {
        self.session.device().statistics.completed_cmds.get() != self.commands
    }
}

pub(super) enum State<'bound, S: Service<'bound>> {
    /// It is in use.
    Up(Life<'bound, S>),
    /// It has failed. The next attempt to reset it is at this time.
    Resetting(Instant<Monotonic>),
    /// The bus resets or suspends it, or it is probed.
    Paused,
    /// It was given up.
    Failed,
    /// It is no longer used. After a shutdown it stays registered, for programs that have it open.
    Stopped { _life: Option<Life<'bound, S>> },
}

impl<'bound, S: Service<'bound>> State<'bound, S> {
    pub(super) fn name(&self) -> &'static CStr {
        match self {
            Self::Up(_) => c"up",
            Self::Resetting(_) | Self::Paused => c"resetting",
            Self::Failed => c"failed",
            Self::Stopped { .. } => c"stopped",
        }
    }
}
