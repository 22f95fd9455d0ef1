// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The description of the host that the driver sends to the device.

use kernel::{
    pci,
    prelude::*,
    sync::Arc, //
};

use super::{
    admin_queue::AdminQueue,
    lent::Lent, //
};
use crate::{
    hw::{
        admin::{
            AqFlags,
            CtrlBuffInfo, //
        },
        features::{
            FeatureId,
            SetFeature, //
        },
        host_info::{
            Bdf,
            DriverVersion,
            HostInfo,
            HostInfoFlags,
            OsType,
            SPEC_VERSION, //
        },
    },
    sys::{
        self,
        dma::Entries, //
    },
    version,
};

/// Size in bytes of the information's buffer, which consists of whole words.
const BUFFER_SIZE: usize = HostInfo::SIZE.next_multiple_of(8);

/// Sends the description of the host to the device. The driver works without it.
///
/// # Errors
///
/// - [`ENOMEM`] if there is no memory.
/// - Those of the admin command.
pub(super) fn send(admin: &AdminQueue<'_>) -> Result {
    let buffer = Arc::new(Entries::<BUFFER_SIZE>::zeroed(admin.dev(), 1)?, GFP_KERNEL)?;
    let mut bytes = [0; BUFFER_SIZE];
    if let Some(info) = bytes.first_chunk_mut() {
        *info = describe(admin.epoch.device.pdev).encode();
    }
    buffer.write(0, &bytes);

    let buffer = Lent::new(&admin.epoch, &"the host information", buffer)?;
    let command = SetFeature {
        control: AqFlags {
            ctrl_data: true,
            ..AqFlags::default()
        },
        control_buffer: CtrlBuffInfo {
            length: HostInfo::SIZE as u32,
            address: buffer.dma_address(),
        },
        ..SetFeature::default()
    };
    buffer
        .loan()
        .lend(|| admin.set_feature(FeatureId::HostInfo, command))?;
    buffer.loan().mark_released();
    Ok(())
}

fn describe(pdev: &pci::Device) -> HostInfo {
    let [devfn, bus] = pdev.dev_id().to_le_bytes();

    HostInfo {
        os_dist: text(sys::system::release()),
        os_type: OsType::Linux.into(),
        kernel_version_text: text(sys::system::version()),
        kernel_version: sys::system::version_code(),
        driver_version: DriverVersion {
            major: version::MAJOR,
            minor: version::MINOR,
            sub_minor: version::SUBMINOR,
            module_type: 0,
        },
        bdf: Bdf {
            bus,
            device: devfn >> 3,
            function: devfn & 0x7,
        },
        spec_version: SPEC_VERSION,
        flags: HostInfoFlags {
            intree: false,
            gdr: true,
        },
    }
}

/// Returns `text`, truncated such that a zero byte follows.
fn text<const N: usize>(text: &CStr) -> [u8; N] {
    let mut bytes = [0; N];
    // The last byte stays zero.
    for (to, from) in bytes.iter_mut().take(N - 1).zip(text.to_bytes()) {
        *to = *from;
    }
    bytes
}
