// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Formatting. As in the kernel, `Display` is a separate trait, for types of the language as well.

pub use core::fmt::{Arguments, Debug, Error, Formatter, Result, Write};

/// As [`core::fmt::Display`], and also for C strings.
pub trait Display {
    /// Formats the value.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result;
}

/// Formats its value by the traits of this module.
pub struct Adapter<T>(pub T);

impl<T: Display> core::fmt::Display for Adapter<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.fmt(f)
    }
}

impl<T: Debug> Debug for Adapter<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.fmt(f)
    }
}

impl<T: core::fmt::LowerHex> core::fmt::LowerHex for Adapter<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.fmt(f)
    }
}

impl<T: ?Sized + Display> Display for &T {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        (**self).fmt(f)
    }
}

macro_rules! as_in_the_language {
    ($($type:ty),*) => {$(
        impl Display for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                core::fmt::Display::fmt(self, f)
            }
        }
    )*};
}

as_in_the_language!(
    bool,
    char,
    str,
    u8,
    u16,
    u32,
    u64,
    usize,
    i8,
    i16,
    i32,
    i64,
    isize,
    Arguments<'_>
);

impl Display for crate::str::CStr {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(&self.to_string_lossy())
    }
}

impl Display for crate::str::CString {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Display::fmt(&**self, f)
    }
}
