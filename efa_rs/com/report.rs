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
    new_mutex,
    pci,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex,
        MutexGuard, //
    }, //
};

use super::{
    health::Cause,
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

/// Values of the file that change with the state.
pub(super) struct Values {
    pub(super) phase: Phase,
    /// Number of sessions since the bind.
    pub(super) sessions: u32,
    /// Number of restart attempts since the device last worked.
    pub(super) attempts: usize,
    /// Number of event queues of the last session.
    pub(super) event_queues: usize,
    /// Cause of the last reset of the device in use.
    pub(super) last_reset: Option<Cause>,
}

/// The reported state of a device.
#[pin_data]
pub(super) struct Report {
    #[pin]
    values: Mutex<Values>,
    statistics: Arc<Statistics>,
}

impl Report {
    /// Creates the report of a device that was never up.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(statistics: &Arc<Statistics>) -> Result<Arc<Self>> {
        let values = Values {
            phase: Phase::Resetting,
            sessions: 0,
            attempts: 0,
            event_queues: 0,
            last_reset: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                values <- new_mutex!(values),
                statistics: statistics.clone(),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the values, locked for a short time.
    pub(super) fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock()
    }

    /// Counts a session that has started.
    pub(super) fn count_session(&self, event_queues: usize) {
        let mut values = self.values();
        values.sessions = values.sessions.wrapping_add(1);
        values.event_queues = event_queues;
    }

    /// Counts a reset, and reports it to userspace.
    pub(super) fn note(&self, pdev: &pci::Device<Bound>, cause: Cause) {
        self.statistics.count_reset(cause);
        self.values().last_reset = Some(cause);
        trace::reset(pdev.as_ref(), cause.name());
        announce(pdev, c"EFA_EVENT=reset", cause);
    }

    /// Writes one line per value.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values();
        let last_reset = values.last_reset.map_or("none", Cause::name);
        writeln!(f, "state: {}", values.phase.name())?;
        writeln!(f, "session: {}", values.sessions)?;
        writeln!(f, "last_reset: {last_reset}")?;
        writeln!(f, "attempts: {}", values.attempts)?;
        writeln!(f, "quarantine: {}", self.statistics.in_quarantine())?;
        writeln!(f, "event_queues: {}", values.event_queues)?;
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
