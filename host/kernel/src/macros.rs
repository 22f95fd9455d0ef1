// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Declarative macros of the kernel crate.

/// Prints an error of a device.
#[macro_export]
macro_rules! dev_err {
    ($dev:expr, $($rest:tt)+) => { $crate::device::print("err", $dev, $crate::fmt!($($rest)+)) };
}

/// Prints a warning of a device.
#[macro_export]
macro_rules! dev_warn {
    ($dev:expr, $($rest:tt)+) => { $crate::device::print("warn", $dev, $crate::fmt!($($rest)+)) };
}

/// Prints information about a device.
#[macro_export]
macro_rules! dev_info {
    ($dev:expr, $($rest:tt)+) => { $crate::device::print("info", $dev, $crate::fmt!($($rest)+)) };
}

/// Prints an error.
#[macro_export]
macro_rules! pr_err {
    ($($rest:tt)+) => { $crate::sim::log($crate::fmt!($($rest)+)) };
}

/// Returns a pointer to the structure that contains a field.
#[macro_export]
macro_rules! container_of {
    ($pointer:expr, $type:ty, $field:ident) => {
        $pointer
            .byte_sub(::core::mem::offset_of!($type, $field))
            .cast::<$type>()
    };
}

/// Defines the table of the PCI devices of a driver.
#[macro_export]
macro_rules! pci_device_table {
    ($name:ident, $info:ty, [$(($id:expr, $data:expr)),* $(,)?]) => {
        const $name: &[($crate::pci::DeviceId, $info)] = &[$(($id, $data)),*];
    };
}

/// Returns an initializer of a mutex.
#[macro_export]
macro_rules! new_mutex {
    ($value:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::Mutex::new($value)
    };
}

/// Returns an initializer of a spinlock.
#[macro_export]
macro_rules! new_spinlock_irq {
    ($value:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::SpinLockIrq::new($value)
    };
}

/// Defines a class of locks, and returns a reference to it.
#[macro_export]
macro_rules! static_lock_class {
    () => {{
        static CLASS: $crate::sync::LockClassKey = $crate::sync::LockClassKey::new();
        ::core::pin::Pin::static_ref(&CLASS)
    }};
}

/// Defines a static mutex.
#[macro_export]
macro_rules! global_lock {
    ($(#[$meta:meta])* unsafe(uninit) static $name:ident: Mutex<$type:ty> = $value:expr;) => {
        $(#[$meta])* static $name: $crate::sync::GlobalLock<$type> = $crate::sync::GlobalLock::new($value);
    };
}

/// Prints an error. The kernel does so once for each place; the shim each time.
#[macro_export]
macro_rules! pr_err_once {
    ($($rest:tt)+) => { $crate::pr_err!($($rest)+) };
}

/// Returns an initializer of a condition variable.
#[macro_export]
macro_rules! new_condvar {
    ($($name:literal)? $(,)?) => {
        $crate::sync::CondVar::new()
    };
}

/// Returns a part of shared memory, or fails with `ERANGE` if the range exceeds it.
#[macro_export]
macro_rules! io_project {
    ($memory:expr, [try: $range:expr]) => {
        $crate::io::View::new($crate::io::Io::place($memory), $range)
            .ok_or($crate::error::code::ERANGE)?
    };
}
