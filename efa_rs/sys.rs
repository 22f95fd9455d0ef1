// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Abstractions that the kernel crate lacks.
//!
//! Each file names the upstream API that would replace it. Nothing here depends on EFA or on RDMA.

#[cfg_attr(
    not(kverbs),
    allow(
        dead_code,
        unused_imports,
        reason = "only kernel verbs use all of them"
    )
)]
pub(crate) mod atomic;
pub(crate) mod attach;
pub(crate) mod completion;
pub(crate) mod debugfs;
pub(crate) mod device;
#[allow(dead_code, reason = "samples have no devlink instance")]
pub(crate) mod devlink;
pub(crate) mod dma;
pub(crate) mod irq;
#[allow(unused_imports, unused_macros, reason = "samples need no such lock")]
pub(crate) mod lock;
pub(crate) mod log;
#[cfg_attr(
    not(kverbs),
    allow(dead_code, reason = "only kernel verbs write to mapped memory")
)]
pub(crate) mod mmio;
pub(crate) mod pci;
pub(crate) mod pci_config;
pub(crate) mod pci_driver;
pub(crate) mod semaphore;
#[cfg(kverbs)]
pub(crate) mod spsc;
pub(crate) mod sysfs;
pub(crate) mod system;
pub(crate) mod time;
pub(crate) mod trace;
mod words;
pub(crate) mod work;
