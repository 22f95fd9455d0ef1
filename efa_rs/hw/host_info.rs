// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Information about host and driver, which the driver sends to the device in a control buffer.

use super::wire::{
    self,
    bits,
    codes,
    layout, //
};

codes! {
    /// Operating systems.
    pub enum OsType: u32 {
        /// Linux.
        Linux = 0 => "LINUX",
    }
}

bits! {
    /// Version of the driver.
    pub struct DriverVersion(u32) {
        /// Kind of build, a letter in ASCII, or 0.
        7:0 module_type => u8,
        /// Third number of the version.
        15:8 sub_minor => u8,
        /// Second number of the version.
        23:16 minor => u8,
        /// First number of the version.
        31:24 major => u8,
    }
}

bits! {
    /// Address of the device on the host's PCI bus.
    pub struct Bdf(u16) {
        /// Function number.
        2:0 function => u8,
        /// Device number.
        7:3 device => u8,
        /// Bus number.
        15:8 bus => u8,
    }
}

bits! {
    /// Version of the interface that the driver implements.
    pub struct SpecVersion(u16) {
        /// Minor version.
        7:0 minor => u8,
        /// Major version.
        15:8 major => u8,
    }
}

/// Version of the interface that these files describe.
pub const SPEC_VERSION: SpecVersion = SpecVersion { major: 2, minor: 0 };

bits! {
    /// Properties and capabilities of the driver.
    pub struct HostInfoFlags(u32) {
        /// The driver is part of the kernel tree.
        0:0 intree => bool,
        /// The driver supports GPUDirect RDMA.
        1:1 gdr => bool,
    }
}

layout! {
    /// Host information, the data of feature
    /// [`HostInfo`](super::features::FeatureId::HostInfo).
    pub struct HostInfo[180] {
        /// Release of the operating system, text that ends with a zero byte.
        os_dist @ 0: [u8; 128],
        /// The operating system, an [`OsType`].
        os_type @ 128: u32 as OsType,
        /// Version of the kernel, text that ends with a zero byte.
        kernel_version_text @ 132: [u8; 32],
        /// Version of the kernel as a number, encoded as `LINUX_VERSION_CODE`.
        kernel_version @ 164: u32 as Hex,
        /// Version of the driver.
        driver_version @ 168: DriverVersion,
        /// PCI address of the device.
        bdf @ 172: Bdf,
        /// Version of the interface.
        spec_version @ 174: SpecVersion,
        /// Properties and capabilities of the driver.
        flags @ 176: HostInfoFlags,
    }
}
