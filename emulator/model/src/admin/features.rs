// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Features: attributes that the driver reads, and settings that it writes.

use efa_hw::{
    admin::{NoData, Status},
    features::{AenqConfig, Feature, FeatureId, GetFeature, GetFeatureResponse, SetFeature},
    host_info::HostInfo,
};

use crate::{Host, ensure, profile::attributes::Attributes, resources::failure::Failure};

/// Settings that the driver has written since the last reset.
#[derive(Debug, Default)]
pub(crate) struct Features {
    /// Mask of the groups of asynchronous events that the driver has enabled.
    pub(crate) aenq_groups: u32,
    /// Description of the driver's host.
    pub(crate) host_info: Option<HostInfo>,
}

/// Decodes a feature id. Fails if the device does not support the feature.
fn supported(attributes: &Attributes, id: u8) -> Result<FeatureId, Status> {
    FeatureId::try_from(id).ok().filter(|feature| attributes.supports(*feature)).ok_or(Status::UnsupportedOpcode)
}

impl Features {
    pub(crate) fn get(&self, attributes: &Attributes, command: &GetFeature) -> Result<GetFeatureResponse, Status> {
        let response = match supported(attributes, command.feature_id)? {
            FeatureId::DeviceAttr => attributes.device_attr().into_response(),
            FeatureId::AenqConfig => attributes.aenq_config(self.aenq_groups).into_response(),
            FeatureId::NetworkAttr => attributes.network_attr().into_response(),
            FeatureId::QueueAttr1 => attributes.queue_attr_1().into_response(),
            FeatureId::QueueAttr2 => attributes.queue_attr_2().into_response(),
            FeatureId::EventQueueAttr => attributes.event_queue_attr().into_response(),
            FeatureId::HwHints => attributes.hw_hints().into_response(),
            FeatureId::HostInfo => return Err(Status::UnsupportedOpcode),
        };
        // None of these needs a control buffer.
        let has_buffer = command.control.ctrl_data || command.control.ctrl_data_indirect;
        ensure(!has_buffer, Status::MalformedRequest)?;
        Ok(response)
    }

    pub(crate) fn set(
        &mut self,
        attributes: &Attributes,
        host: &mut dyn Host,
        command: &SetFeature,
    ) -> Result<NoData, Failure> {
        match supported(attributes, command.feature_id)? {
            FeatureId::AenqConfig => self.set_aenq_config(attributes, command)?,
            FeatureId::HostInfo => self.set_host_info(host, command)?,
            _ => return Err(Status::UnsupportedOpcode.into()),
        }
        Ok(NoData {})
    }

    fn set_aenq_config(&mut self, attributes: &Attributes, command: &SetFeature) -> Result<(), Status> {
        let config = AenqConfig::from_setting(&command.data);
        let canonical =
            config.into_setting() == command.data && !command.control.ctrl_data && !command.control.ctrl_data_indirect;
        ensure(canonical, Status::MalformedRequest)?;
        let supported = config.enabled_groups & !attributes.aenq_groups == 0;
        ensure(supported, Status::IllegalParameter)?;
        self.aenq_groups = config.enabled_groups;
        Ok(())
    }

    fn set_host_info(&mut self, host: &mut dyn Host, command: &SetFeature) -> Result<(), Failure> {
        let buffer = command.control_buffer;
        // A driver for a newer interface may pass a longer structure.
        let canonical = command.control.ctrl_data
            && !command.control.ctrl_data_indirect
            && buffer.length as usize >= HostInfo::SIZE
            && command.data == [0; 44];
        ensure(canonical, Status::MalformedRequest)?;
        let mut bytes = [0; HostInfo::SIZE];
        host.dma_read(buffer.address, &mut bytes)?;
        self.host_info = Some(HostInfo::decode(&bytes));
        Ok(())
    }
}
