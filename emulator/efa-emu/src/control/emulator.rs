// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The target of control requests: the devices of this program, and the network between them.

use std::{io, path::PathBuf, sync::Arc};

use efa_model::{Config, Profile};
use efa_vfio::{Bar, Function, Runtime};

use crate::{capture::Capture, trace::Trace};

/// A device that can be controlled.
pub(crate) struct Device {
    pub(crate) profile: Profile,
    pub(crate) socket: PathBuf,
    pub(crate) function: Arc<Function>,
}

/// The devices of this program, and the network between them.
pub struct Emulator {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) trace: Trace,
    capture: Option<Capture>,
    devices: Vec<Device>,
}

impl Emulator {
    /// Creates an emulator without devices.
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self {
            runtime,
            trace: Trace::none(),
            capture: None,
            devices: Vec::new(),
        }
    }

    /// Replaces the trace of devices that are added later.
    pub(crate) fn with_trace(mut self, trace: Trace) -> Self {
        self.trace = trace;
        self
    }

    /// Replaces the capture of packets, and of devices that are added later.
    pub(crate) fn with_capture(mut self, capture: Option<Capture>) -> Self {
        if let Some(capture) = &capture {
            self.runtime.set_tap(Arc::new(capture.clone()));
        }
        self.capture = capture;
        self
    }

    /// Adds a device, without one BAR if `missing` is given. The caller serves it at `socket`.
    ///
    /// # Errors
    ///
    /// The kernel lacks memory for the device, or asynchronous I/O for its interrupts.
    pub fn add(&mut self, socket: PathBuf, config: Config, missing: Option<Bar>) -> io::Result<()> {
        let profile = config.profile;
        let index = self.devices.len();
        let mut observer = self.trace.observer(index);
        if let Some(capture) = self.capture.clone() {
            observer = capture.observer(index, observer);
        }
        let function = Function::new(&self.runtime, config, missing, observer)?;
        self.devices.push(Device {
            profile,
            socket,
            function: Arc::new(function),
        });
        Ok(())
    }

    /// Returns all devices, by index.
    pub(crate) fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the device with this index.
    pub(crate) fn device(&self, index: usize) -> Result<&Device, String> {
        self.devices
            .get(index)
            .ok_or_else(|| match self.devices.len() {
                0 => "there are no devices".into(),
                count => format!("there is no device {index}; the last one is {}", count - 1),
            })
    }

    /// Returns the function of the device with this index.
    pub(crate) fn function(&self, index: usize) -> Result<&Function, String> {
        Ok(&self.device(index)?.function)
    }
}
