// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Features: what a driver reads and sets.

use efa_hw::{
    admin::{NoData, Status},
    features::{AenqConfig, Feature, FeatureId, GetFeature, GetFeatureResponse, SetFeature},
    host_info::HostInfo,
};

use crate::{
    Host,
    firmware::{Execute, Failure, Firmware},
};

/// Finds a feature that the device has.
fn supported(firmware: &Firmware, id: u8) -> Result<FeatureId, Failure> {
    FeatureId::try_from(id)
        .ok()
        .filter(|feature| firmware.attributes.supports(*feature))
        .ok_or(Failure::Refused(Status::UnsupportedOpcode))
}

impl Execute for GetFeature {
    fn execute(
        self,
        firmware: &mut Firmware,
        _host: &mut dyn Host,
    ) -> Result<GetFeatureResponse, Failure> {
        let attributes = &firmware.attributes;
        let response = match supported(firmware, self.feature_id)? {
            FeatureId::DeviceAttr => attributes.device_attr().into_response(),
            FeatureId::AenqConfig => attributes.aenq_config(firmware.aenq_groups).into_response(),
            FeatureId::NetworkAttr => attributes.network_attr().into_response(),
            FeatureId::QueueAttr1 => attributes.queue_attr_1().into_response(),
            FeatureId::QueueAttr2 => attributes.queue_attr_2().into_response(),
            FeatureId::EventQueueAttr => attributes.event_queue_attr().into_response(),
            FeatureId::HwHints => attributes.hw_hints().into_response(),
            FeatureId::HostInfo => return Err(Status::UnsupportedOpcode.into()),
        };
        // None of these needs a control buffer.
        if self.control.ctrl_data || self.control.ctrl_data_indirect {
            return Err(Status::MalformedRequest.into());
        }
        Ok(response)
    }
}

impl Execute for SetFeature {
    fn execute(self, firmware: &mut Firmware, host: &mut dyn Host) -> Result<NoData, Failure> {
        match supported(firmware, self.feature_id)? {
            FeatureId::AenqConfig => set_aenq_config(&self, firmware)?,
            FeatureId::HostInfo => set_host_info(&self, firmware, host)?,
            _ => return Err(Status::UnsupportedOpcode.into()),
        }
        Ok(NoData {})
    }
}

fn set_aenq_config(command: &SetFeature, firmware: &mut Firmware) -> Result<(), Failure> {
    let config = AenqConfig::from_setting(&command.data);
    let canonical = config.into_setting() == command.data
        && !command.control.ctrl_data
        && !command.control.ctrl_data_indirect;
    if !canonical {
        return Err(Status::MalformedRequest.into());
    }
    if config.enabled_groups & !firmware.attributes.aenq_groups != 0 {
        return Err(Status::IllegalParameter.into());
    }
    firmware.aenq_groups = config.enabled_groups;
    Ok(())
}

fn set_host_info(
    command: &SetFeature,
    firmware: &mut Firmware,
    host: &mut dyn Host,
) -> Result<(), Failure> {
    let buffer = command.control_buffer;
    // A driver for a newer interface may have more to say.
    let canonical = command.control.ctrl_data
        && !command.control.ctrl_data_indirect
        && buffer.length as usize >= HostInfo::SIZE
        && command.data == [0; 44];
    if !canonical {
        return Err(Status::MalformedRequest.into());
    }
    let mut bytes = [0; HostInfo::SIZE];
    host.dma_read(buffer.address, &mut bytes)?;
    firmware.host_info = Some(HostInfo::decode(&bytes));
    Ok(())
}
