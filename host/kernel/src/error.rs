// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Error numbers.

use core::{convert::Infallible, fmt, num::NonZeroI32};

use crate::ffi::c_int;

/// An error number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error(NonZeroI32);

/// A result, by default of `()` and [`Error`].
pub type Result<T = (), E = Error> = core::result::Result<T, E>;

/// Errors by their names. The shim defines those that its drivers use.
pub mod code {
    use super::Error;

    macro_rules! codes {
        ($($name:ident = $number:literal,)*) => {
            /// The error of this name.
            $(#[doc = concat!("`", stringify!($name), "`.")]
            pub const $name: Error = Error::of($number);)*

            pub(super) fn name(number: i32) -> Option<&'static str> {
                match number {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        };
    }

    codes! {
        EPERM = 1,
        ENOENT = 2,
        EINTR = 4,
        EIO = 5,
        ENOEXEC = 8,
        EAGAIN = 11,
        ENOMEM = 12,
        EFAULT = 14,
        EBUSY = 16,
        EEXIST = 17,
        ENODEV = 19,
        EINVAL = 22,
        ENFILE = 23,
        ENOTTY = 25,
        ENOSPC = 28,
        ERANGE = 34,
        ETIME = 62,
        EOVERFLOW = 75,
        EBADMSG = 74,
        EMSGSIZE = 90,
        EOPNOTSUPP = 95,
        ENOTCONN = 107,
        ETIMEDOUT = 110,
        EINPROGRESS = 115,
        ECANCELED = 125,
        EPROBE_DEFER = 517,
    }
}

impl Error {
    const fn of(number: i32) -> Self {
        match NonZeroI32::new(-number) {
            Some(number) => Self(number),
            None => panic!(),
        }
    }

    /// Converts a negative number to an error. Panics for other numbers, where the kernel warns.
    pub fn from_errno(errno: c_int) -> Self {
        assert!((-4095..0).contains(&errno), "{errno} is no error");
        Self::of(-errno)
    }

    /// Returns the negative error number.
    pub fn to_errno(self) -> c_int {
        self.0.get()
    }

    /// Returns the error as an error pointer.
    pub fn to_ptr<T>(self) -> *mut T {
        self.0.get() as isize as *mut T
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match code::name(-self.0.get()) {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", -self.0.get()),
        }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl From<crate::alloc::AllocError> for Error {
    fn from(_: crate::alloc::AllocError) -> Self {
        code::ENOMEM
    }
}

impl From<core::num::TryFromIntError> for Error {
    fn from(_: core::num::TryFromIntError) -> Self {
        code::EINVAL
    }
}

impl From<fmt::Error> for Error {
    fn from(_: fmt::Error) -> Self {
        code::EINVAL
    }
}

/// Converts the return value of a C function to a result. Negative values are errors.
pub fn to_result(errno: c_int) -> Result {
    if errno < 0 {
        Err(Error::from_errno(errno))
    } else {
        Ok(())
    }
}

/// Converts a result to the return value of a C function.
pub fn from_result<T: From<i16>>(f: impl FnOnce() -> Result<T>) -> T {
    // CAST: Error numbers are below 4096.
    f().unwrap_or_else(|error| T::from(error.to_errno() as i16))
}

/// Converts a pointer that may be an error pointer to a result.
pub fn from_err_ptr<T>(pointer: *mut T) -> Result<*mut T> {
    match pointer as isize {
        errno @ -4095..=-1 => Err(Error::from_errno(errno as c_int)),
        _ => Ok(pointer),
    }
}
