// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Reports of a device's state to userspace, which are available even during recovery: a file in
//! debugfs, and uevents.

use kernel::{
    debugfs::{
        File,
        Writer, //
    },
    device::Bound,
    fmt,
    pci,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

use super::{
    health::{
        Cause,
        SharedCause, //
    },
    statistics::Statistics, //
};
use crate::sys::{
    self,
    trace, //
};

/// The state of a device, as reported to userspace.
#[derive(Clone, Copy)]
pub(super) enum Phase {
    /// It is in use.
    Up,
    /// It has failed, or the bus resets or suspends it; it will be restarted.
    Resetting,
    /// It was given up.
    Failed,
    /// It is no longer used.
    Stopped,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Up, Self::Resetting, Self::Failed, Self::Stopped];

    /// Returns a name for files and traces.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Resetting => "resetting",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// The reported state of a device.
pub(super) struct Report {
    phase: Atomic<u32>,
    sessions: Atomic<u32>,
    attempts: Atomic<u32>,
    event_queues: Atomic<u32>,
    last_reset: SharedCause,
    statistics: Arc<Statistics>,
}

impl Report {
    /// Creates the report of a device that is up for the first time.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(statistics: &Arc<Statistics>) -> Result<Arc<Self>> {
        let report = Self {
            phase: Atomic::new(Phase::Up as u32),
            sessions: Atomic::new(0),
            attempts: Atomic::new(0),
            event_queues: Atomic::new(0),
            last_reset: SharedCause::none(),
            statistics: statistics.clone(),
        };
        Ok(Arc::new(report, GFP_KERNEL)?)
    }

    /// Sets the phase.
    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u32, Relaxed);
    }

    /// Counts a session that has started, and sets its number of event queues.
    pub(super) fn count_session(&self, event_queues: usize) {
        self.sessions.add(1, Relaxed);
        // CAST: There are fewer than 256 of them.
        self.event_queues.store(event_queues as u32, Relaxed);
    }

    /// Sets the number of restart attempts since the device last worked.
    pub(super) fn set_attempts(&self, attempts: usize) {
        // CAST: At most `backoff::ATTEMPTS`.
        self.attempts.store(attempts as u32, Relaxed);
    }

    /// Counts a reset, and reports it to userspace.
    pub(super) fn note(&self, pdev: &pci::Device<Bound>, cause: Cause) {
        self.statistics.count_reset(cause);
        self.last_reset.set(cause);
        trace::reset(pdev.as_ref(), cause.name());
        announce(pdev, c"EFA_EVENT=reset", cause);
    }

    /// Returns the cause of the last reset of the device in use.
    pub(super) fn last_reset(&self) -> Option<Cause> {
        self.last_reset.get()
    }

    /// Writes one line per value.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // CAST: An index into a list of four.
        let phase = Phase::ALL.get(self.phase.load(Relaxed) as usize);
        let last_reset = self.last_reset();

        writeln!(f, "state: {}", phase.map_or("", |phase| phase.name()))?;
        writeln!(f, "session: {}", self.sessions.load(Relaxed))?;
        match last_reset {
            Some(cause) => writeln!(f, "last_reset: {}", cause.name())?,
            None => writeln!(f, "last_reset: none")?,
        }
        writeln!(f, "attempts: {}", self.attempts.load(Relaxed))?;
        writeln!(f, "quarantine: {}", self.statistics.in_quarantine())?;
        writeln!(f, "event_queues: {}", self.event_queues.load(Relaxed))?;
        writeln!(f, "in_flight: {}", self.statistics.in_flight())?;
        let lost = self.statistics.lost_interrupts.get();
        writeln!(f, "lost_interrupts: {lost}")
    }
}

/// Sends a uevent of the PCI function with an event of the device and its cause.
pub(super) fn announce(pdev: &pci::Device<Bound>, event: &CStr, cause: Cause) {
    if let Ok(reason) = CString::try_from_fmt(fmt!("EFA_REASON={}", cause.name())) {
        sys::pci::announce(pdev, &[event, &reason]);
    }
}

/// The content of the file.
struct Shown(Arc<Report>);

impl Writer for Shown {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f)
    }
}

/// The file of a device; removed when dropped.
pub(super) struct StateFile {
    _file: Pin<KBox<File<Shown>>>,
}

impl StateFile {
    /// Creates the file of the device `name`. Returns `None` without debugfs or memory.
    pub(super) fn new(name: &CStr, report: &Arc<Report>) -> Option<Self> {
        let dir = sys::debugfs::subdir(name)?;
        let shown = Ok::<_, Error>(Shown(report.clone()));
        let file = KBox::pin_init(dir.read_only_file(c"state", shown), GFP_KERNEL);
        Some(Self { _file: file.ok()? })
    }
}
