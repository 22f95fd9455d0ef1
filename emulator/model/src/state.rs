// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! State of a device, as reported to its operator.

use efa_hw::host_info::HostInfo;
use schemars::JsonSchema;
use serde::Serialize;

use crate::view;

view! {
    /// Description of its host that a driver writes.
    HostInfoState from info: &HostInfo {
        /// Release of the operating system.
        os_dist: String = text(&info.os_dist),
        /// The operating system; 0 is Linux.
        os_type: u32 = info.os_type,
        /// Version of the kernel as text.
        kernel_version_text: String = text(&info.kernel_version_text),
        /// Version of the kernel as Linux encodes it.
        kernel_version: u32 = info.kernel_version,
        /// Version of the driver.
        driver_version: String = driver_version(info),
        /// PCI address of the device in the host: bus, device and function.
        bdf: String = format!("{:02x}:{:02x}.{}", info.bdf.bus, info.bdf.device, info.bdf.function),
        /// Version of the interface that the driver was written to.
        spec_version: String = format!("{}.{}", info.spec_version.major, info.spec_version.minor),
        /// Whether the driver comes with the kernel.
        intree: bool = info.flags.intree,
        /// Whether the driver supports GPUDirect RDMA.
        gdr: bool = info.flags.gdr,
    }
}

fn driver_version(info: &HostInfo) -> String {
    let driver = info.driver_version;
    let module_type = match driver.module_type {
        0 => String::new(),
        letter => char::from(letter).to_string(),
    };
    let (major, minor, sub_minor) = (driver.major, driver.minor, driver.sub_minor);
    format!("{major}.{minor}.{sub_minor}{module_type}")
}

/// The text before the first zero byte.
fn text(bytes: &[u8]) -> String {
    let mut parts = bytes.split(|byte| *byte == 0);
    String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned()
}
