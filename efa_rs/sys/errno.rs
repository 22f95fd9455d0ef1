// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Error codes that [`kernel::error::code`] leaves out.
//!
//! Functions, as outside of the kernel crate no [`Error`] can be made in a constant. To be replaced
//! by constants in `kernel::error::code`.

use kernel::{
    bindings,
    error::Error, //
};

/// Returns `ETIME`: the device did not do something in time.
#[inline]
pub(crate) fn etime() -> Error {
    from_errno(bindings::ETIME)
}

/// Returns `EOPNOTSUPP`: the device or the driver can't do this.
#[inline]
pub(crate) fn eopnotsupp() -> Error {
    from_errno(bindings::EOPNOTSUPP)
}

#[inline]
fn from_errno(errno: u32) -> Error {
    // CAST: Error numbers are below 4096.
    Error::from_errno(-(errno as i32))
}
