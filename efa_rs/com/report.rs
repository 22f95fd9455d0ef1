// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Reports of a device's state to userspace, which are available even during recovery: a file in
//! debugfs, uevents, and a health reporter of devlink.

use kernel::{
    debugfs::File,
    device::Bound,
    fmt,
    new_mutex,
    pci,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::{
    health::Cause,
    statistics::Statistics, //
};
use crate::sys::{
    self,
    devlink::{
        Health,
        Value, //
    },
    trace, //
};

/// Values of the file that change with the state.
pub(super) struct Values {
    pub(super) state: &'static CStr,
    /// Number of sessions since the bind.
    pub(super) sessions: u32,
    /// Number of restart attempts since the device last worked.
    pub(super) attempts: usize,
    /// Number of event queues of the last session.
    pub(super) event_queues: usize,
    /// Cause of the last reset of the device in use.
    pub(super) last_reset: Option<Cause>,
}

#[pin_data]
pub(super) struct Report {
    /// Locked for a short time.
    #[pin]
    pub(super) values: Mutex<Values>,
    statistics: Arc<Statistics>,
}

impl Report {
    /// Creates the report of a device that was never up.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub(super) fn new(statistics: &Arc<Statistics>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                values <- new_mutex!(Values {
                    state: c"resetting",
                    sessions: 0,
                    attempts: 0,
                    event_queues: 0,
                    last_reset: None,
                }),
                statistics: statistics.clone(),
            }),
            GFP_KERNEL,
        )
    }

    /// Counts a reset, and reports it to userspace.
    pub(super) fn note(&self, pdev: &pci::Device<Bound>, cause: Cause) {
        self.statistics.count_reset(cause);
        self.values.lock().last_reset = Some(cause);
        trace::reset(pdev.as_ref(), cause.name());
        announce(pdev, c"EFA_EVENT=reset", cause);
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.values() {
            f.write_fmt(fmt!("{name}: {value}\n"))?;
        }
        Ok(())
    }
}

impl Health for Report {
    const NAME: &'static CStr = c"fw_fatal";
    const DIAGNOSIS: usize = 4;

    fn values(&self) -> impl IntoIterator<Item = (&'static CStr, Value)> {
        let number = |name, number| (name, Value::Number(number));
        let values = self.values.lock();
        let last_reset = values.last_reset.map_or(c"none", Cause::name);
        [
            (c"state", Value::Text(values.state)),
            number(c"session", values.sessions.into()),
            (c"last_reset", Value::Text(last_reset)),
            number(c"attempts", values.attempts as u64),
            number(c"quarantine", self.statistics.in_quarantine()),
            number(c"event_queues", values.event_queues as u64),
            number(c"in_flight", self.statistics.in_flight()),
            number(c"lost_interrupts", self.statistics.lost_interrupts.get()),
        ]
    }
}

/// Sends a uevent of the PCI function with an event of the device and its cause.
pub(super) fn announce(pdev: &pci::Device<Bound>, event: &CStr, cause: Cause) {
    if let Ok(reason) = CString::try_from_fmt(fmt!("EFA_REASON={}", cause.name())) {
        sys::pci::announce(pdev, &[event, &reason]);
    }
}

/// The file of a device; removed when dropped.
pub(super) type StateFile = Pin<KBox<File<Arc<Report>>>>;

/// Creates the file of the device `name`. Returns `None` without debugfs or memory.
pub(super) fn create_file(name: &CStr, report: &Arc<Report>) -> Option<StateFile> {
    let dir = sys::debugfs::subdir(name)?;
    let data = Ok::<_, Error>(report.clone());
    let file = dir.read_callback_file(c"state", data, &|report: &Arc<Report>, f| report.show(f));
    KBox::pin_init(file, GFP_KERNEL).ok()
}
