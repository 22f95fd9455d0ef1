// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! How much memory others may make an emulator have, which is what its guide says.

/// What has memory in the process, as the guide names it, and how many MiB at most.
pub const BOUNDS: [(&str, u64); 5] = [
    ("the program itself", 128),
    ("each device", 256),
    ("all pages of the memory regions of a device", 256),
    ("each emulator that joins", 96),
    ("each client of the control socket", 1),
];

/// Who makes a process have memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    /// Devices in use.
    pub devices: u64,
    /// Devices of them with as many pages as they may have.
    pub all_pages: u64,
    /// Emulators that have joined.
    pub peers: u64,
    /// Clients of the control socket.
    pub clients: u64,
}

impl Bound {
    /// So many devices that know few pages.
    pub fn of_devices(devices: u64) -> Self {
        Self {
            devices,
            ..Self::default()
        }
    }

    /// Most bytes that the process may have.
    pub fn bytes(&self) -> u64 {
        let counts = [1, self.devices, self.all_pages, self.peers, self.clients];
        let mib = counts
            .iter()
            .zip(BOUNDS)
            .map(|(count, (_, mib))| count * mib);
        mib.sum::<u64>() << 20
    }
}
