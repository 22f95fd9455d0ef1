// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The driver's version, from `ffi/version.h`.

use crate::ffi;

/// Major version.
pub(crate) const MAJOR: u8 = ffi::EFA_VERSION_MAJOR as u8;
/// Minor version.
pub(crate) const MINOR: u8 = ffi::EFA_VERSION_MINOR as u8;
/// Subminor version.
pub(crate) const SUBMINOR: u8 = ffi::EFA_VERSION_SUBMINOR as u8;
