// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The module itself.
//!
//! To be replaced by `kernel::module::this_module`, which Linux 7.3 has.

use kernel::{
    ModuleMetadata,
    ThisModule, //
};

/// Returns what `THIS_MODULE` is in C. `M` is the module's type.
#[cfg_attr(
    linux_7_2,
    allow(
        clippy::extra_unused_type_parameters,
        reason = "7.3 finds it by the type"
    )
)]
pub(crate) fn this_module<M: ModuleMetadata>() -> &'static ThisModule {
    #[cfg(linux_7_2)]
    {
        &crate::THIS_MODULE
    }
    #[cfg(not(linux_7_2))]
    {
        kernel::module::this_module::<M>()
    }
}
