// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Errors of accesses to host memory.

/// Host memory is not mapped for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host memory at {address:#x}, {length} bytes, is not mapped for the device")]
pub struct DmaError {
    /// Bus address of the access.
    pub address: u64,
    /// Length of the access in bytes.
    pub length: usize,
}
