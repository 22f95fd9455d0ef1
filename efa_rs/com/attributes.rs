// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The device's attributes, read at the start of each session.

use kernel::prelude::*;

use super::{
    admin_queue::AdminQueue,
    aenq, //
};
use crate::{
    hw::features::{
        AenqConfig,
        DeviceAttr,
        EventQueueAttr,
        FeatureId,
        HwHints,
        NetworkAttr,
        QueueAttr1,
        QueueAttr2,
        SetFeature, //
    },
    sys::log::Hex,
};

/// The oldest [`DeviceAttr::admin_api_version`] that this driver supports.
const MIN_ADMIN_API_VERSION: u32 = 1;

/// The link speed of a device that reports none, in Gbit/s. Linux's C driver uses the same.
const DEFAULT_LINK_SPEED_GBPS: u16 = 100;

/// The page sizes that a memory region can have, one bit for each. No page of a host is smaller
/// than 4 KiB. The command supports any larger power of two.
const PAGE_SIZES: u64 = !0 << 12;

/// Capabilities and limits of the device, reduced to those that the driver can use.
pub(crate) struct Attributes {
    /// The device as a whole. [`DeviceAttr::max_link_speed_gbps`] is never 0, and
    /// [`DeviceAttr::page_size_cap`] has at least one bit, none below that of 4 KiB.
    pub(crate) device: DeviceAttr,
    /// Limits of queues and other objects. [`QueueAttr1::max_cq_depth`] and
    /// [`QueueAttr1::inline_buf_size`] are less than 2^16, as the command and userspace have 16
    /// bits for them.
    pub(crate) queues: QueueAttr1,
    /// More limits of queues. If the device does not report them,
    /// [`QueueAttr2::inline_buf_size_ex`] is [`QueueAttr1::inline_buf_size`], and all others are 0.
    pub(crate) more_queues: QueueAttr2,
    /// Address and MTU.
    pub(crate) network: NetworkAttr,
    /// Limits of event queues; all 0 if the device has none.
    pub(crate) event_queues: EventQueueAttr,
    /// Timeouts that the device advises.
    pub(super) hints: HwHints,
}

impl Attributes {
    /// # Errors
    ///
    /// - [`EINVAL`] if the device's interface is too old, or if no memory region is possible.
    /// - [`EOPNOTSUPP`] if it lacks a feature that every device has.
    /// - Those of the admin command.
    pub(super) fn read(admin: &AdminQueue<'_>) -> Result<Self> {
        let mut device: DeviceAttr = admin.get_feature()?;
        if device.admin_api_version < MIN_ADMIN_API_VERSION {
            dev_err!(
                admin.dev(),
                "The device's admin API has version {}, and the driver needs {}\n",
                device.admin_api_version,
                MIN_ADMIN_API_VERSION
            );
            return Err(EINVAL);
        }
        if device.max_link_speed_gbps == 0 {
            device.max_link_speed_gbps = DEFAULT_LINK_SPEED_GBPS;
        }
        device.page_size_cap &= PAGE_SIZES;
        if device.page_size_cap == 0 {
            dev_err!(
                admin.dev(),
                "The device has no page size for memory regions of 4 KiB or more\n"
            );
            return Err(EINVAL);
        }

        require(admin, &device, FeatureId::QueueAttr1)?;
        let mut queues: QueueAttr1 = admin.get_feature()?;
        queues.max_cq_depth = queues.max_cq_depth.min(u16::MAX.into());
        queues.inline_buf_size = queues.inline_buf_size.min(u16::MAX.into());

        let more_queues = if supports(&device, FeatureId::QueueAttr2) {
            admin.get_feature()?
        } else {
            QueueAttr2 {
                // CAST: At most `u16::MAX`, see above.
                inline_buf_size_ex: queues.inline_buf_size as u16,
                ..QueueAttr2::default()
            }
        };

        require(admin, &device, FeatureId::NetworkAttr)?;
        let network = admin.get_feature()?;

        let event_queues = if supports(&device, FeatureId::EventQueueAttr) {
            admin.get_feature()?
        } else {
            EventQueueAttr::default()
        };

        require(admin, &device, FeatureId::HwHints)?;
        let hints = admin.get_feature()?;

        Ok(Self {
            device,
            queues,
            more_queues,
            network,
            event_queues,
            hints,
        })
    }

    /// Enables the asynchronous events that the driver handles.
    ///
    /// # Errors
    ///
    /// - [`EOPNOTSUPP`] if the device lacks the feature or does not have all of the groups.
    /// - Those of the admin commands.
    pub(super) fn enable_events(&self, admin: &AdminQueue<'_>) -> Result {
        require(admin, &self.device, FeatureId::AenqConfig)?;
        let config: AenqConfig = admin.get_feature()?;
        if config.supported_groups & aenq::GROUPS != aenq::GROUPS {
            dev_err!(
                admin.dev(),
                "The device reports the event groups {}, and {} are needed\n",
                Hex(config.supported_groups),
                Hex(aenq::GROUPS)
            );
            return Err(EOPNOTSUPP);
        }
        let config = AenqConfig {
            enabled_groups: aenq::GROUPS,
            ..AenqConfig::default()
        };
        let command = SetFeature {
            data: config.into_setting(),
            ..SetFeature::default()
        };
        Ok(admin.set_feature(FeatureId::AenqConfig, command)?)
    }

    /// Returns whether the device accepts host information.
    pub(super) fn takes_host_info(&self) -> bool {
        supports(&self.device, FeatureId::HostInfo)
    }
}

fn supports(device: &DeviceAttr, feature: FeatureId) -> bool {
    device.supported_features & feature.mask() != 0
}

/// Checks that the device has a feature, and logs an error if it does not.
fn require(admin: &AdminQueue<'_>, device: &DeviceAttr, feature: FeatureId) -> Result {
    if supports(device, feature) {
        return Ok(());
    }
    dev_err!(
        admin.dev(),
        "The device lacks feature {}, which the driver needs\n",
        feature.name()
    );
    Err(EOPNOTSUPP)
}
