// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The target of control requests: the devices of this program, and the network between them.

use std::{io, path::PathBuf, sync::Arc};

use efa_model::{Config, Profile};
use efa_vfio::{Bar, Function, Runtime};

use crate::events::{Recorded, Recorder};

/// A device that can be controlled.
pub(crate) struct Device {
    pub(crate) profile: Profile,
    pub(crate) socket: PathBuf,
    pub(crate) function: Arc<Function>,
    pub(crate) recorded: Recorded,
}

/// The devices of this program, and the network between them.
pub struct Emulator {
    pub(crate) runtime: Arc<Runtime>,
    recorder: Recorder,
    devices: Vec<Device>,
}

impl Emulator {
    /// Creates an emulator without devices.
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self::recorded(runtime, Recorder::default())
    }

    /// Creates an emulator without devices, all of whose events and packets are recorded.
    pub(crate) fn recorded(runtime: Arc<Runtime>, recorder: Recorder) -> Self {
        if recorder.captures() {
            runtime.fabric().set_tap(Arc::new(recorder.clone()));
        }
        Self { runtime, recorder, devices: Vec::new() }
    }

    /// Adds a device, without one BAR if `missing` is given. The caller serves it at `socket`.
    ///
    /// # Errors
    ///
    /// The kernel lacks memory for the device, or asynchronous I/O for its interrupts.
    pub fn add(&mut self, socket: PathBuf, config: Config, missing: Option<Bar>) -> io::Result<()> {
        let profile = config.profile;
        let recorded = Recorded::default();
        let observer = self.recorder.observer(self.devices.len(), &recorded);
        self.devices.push(Device {
            profile,
            socket,
            function: Arc::new(Function::new(&self.runtime, config, missing, observer)?),
            recorded,
        });
        Ok(())
    }

    /// Returns all devices, by index.
    pub(crate) fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the device with this index, or the first one.
    pub(crate) fn device(&self, index: Option<usize>) -> Result<&Device, String> {
        let index = index.unwrap_or(0);
        self.devices.get(index).ok_or_else(|| match self.devices.len() {
            0 => "there are no devices".into(),
            count => format!("there is no device {index}; the last one is {}", count - 1),
        })
    }

    /// Returns all devices with their indices, or only the one with this index.
    pub(crate) fn selected(&self, only: Option<usize>) -> Result<impl Iterator<Item = (usize, &Device)>, String> {
        only.map_or(Ok(()), |_| self.device(only).map(drop))?;
        let all = self.devices.iter().enumerate();
        Ok(all.filter(move |(index, _)| only.is_none_or(|only| only == *index)))
    }
}
