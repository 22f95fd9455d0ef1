// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The error code that [`kernel::error::code`] leaves out.
//!
//! A function, as outside of the kernel crate no [`Error`] can be made in a constant. To be replaced
//! by a constant there.

use kernel::{
    bindings,
    error::Error, //
};

/// Returns `EOPNOTSUPP`: the device or the driver can't do this.
#[inline]
pub(crate) fn eopnotsupp() -> Error {
    // CAST: Error numbers are below 4096.
    Error::from_errno(-(bindings::EOPNOTSUPP as i32))
}
