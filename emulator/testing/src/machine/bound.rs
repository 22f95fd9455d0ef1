// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Limits on the memory that others can make an emulator use, as its guide documents them.

/// Users of the process's memory, as the guide names them, and the limit of each in MiB.
pub const BOUNDS: [(&str, u64); 5] = [
    ("the program itself", 128),
    ("each device", 384),
    ("all pages of the memory regions of a device", 256),
    ("each emulator that joins", 96),
    ("each client of the control socket", 1),
];

/// Numbers of the users of a process's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    /// Devices in use.
    pub devices: u64,
    /// Devices of them with the maximum of registered pages.
    pub all_pages: u64,
    /// Emulators that have joined.
    pub peers: u64,
    /// Clients of the control socket.
    pub clients: u64,
}

impl Bound {
    /// Returns the bound of `devices` devices with few registered pages.
    pub fn of_devices(devices: u64) -> Self {
        Self {
            devices,
            ..Self::default()
        }
    }

    /// Returns the limit on the process's memory, in bytes.
    pub fn bytes(&self) -> u64 {
        let counts = [1, self.devices, self.all_pages, self.peers, self.clients];
        let mib = counts
            .iter()
            .zip(BOUNDS)
            .map(|(count, (_, mib))| count * mib);
        mib.sum::<u64>() << 20
    }
}
