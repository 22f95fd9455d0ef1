// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Features, statistics, and profiles.

use efa_hw::{
    admin::{AqFlags, CtrlBuffInfo, Status, mr::AllocMr, pd::AllocPd},
    features::{
        AenqConfig, DeviceAttr, EventQueueAttr, FeatureId, GetFeature, HwHints, NetworkAttr,
        QueueAttr1, QueueAttr2, SetFeature,
    },
    host_info::{Bdf, DriverVersion, HostInfo, HostInfoFlags, SPEC_VERSION},
    regs::{Caps, Register, Version},
    stats::{
        BasicStats, GetStats, MessagesStats, NetworkStats, RdmaReadStats, RdmaWriteStats,
        StatsScope,
    },
};
use efa_model::{Config, Overrides, Profile};
use efa_testing::mock::Driver;

const UNSUPPORTED: Status = Status::UnsupportedOpcode;

#[test]
fn only_an_override_claims_data_polling() {
    let mut config = Config::new(Profile::Efa0, 0);
    config.overrides = Overrides {
        data_polling_128: Some(true),
        ..Overrides::default()
    };
    let mut driver = Driver::with(config);
    let device: DeviceAttr = driver.feature().unwrap();
    assert!(device.device_caps.data_polling_128);
}

#[test]
fn a_device_has_as_many_regions_as_it_reports() {
    let mut driver = Driver::new(Profile::Efa2);
    let queues: QueueAttr1 = driver.feature().unwrap();
    let pd = driver.execute(&AllocPd {}).unwrap().pd;
    let region = AllocMr { pd, max_pages: 1 };
    for number in 0..queues.max_mr {
        let made = driver.execute(&region);
        assert!(made.is_ok(), "{number} of {}", queues.max_mr);
        driver.world.trace.clear();
    }
    let more = driver.execute(&region);
    assert_eq!(more.unwrap_err(), Status::ResourceAllocationFailure);
}

#[test]
fn profiles() {
    for (profile, read, write, wide, speed) in [
        (Profile::Efa0, false, false, false, 100),
        (Profile::Efa1, true, false, false, 100),
        (Profile::Efa2, true, true, false, 200),
        (Profile::Efa3, true, true, true, 400),
    ] {
        let mut driver = Driver::new(profile);
        let device: DeviceAttr = driver.feature().unwrap();
        let caps = device.device_caps;
        assert_eq!((caps.rdma_read, caps.rdma_write), (read, write));
        assert_eq!(caps.unsolicited_write_recv, write);
        assert!(!caps.data_polling_128);
        assert_eq!(device.max_link_speed_gbps, speed);
        assert_eq!((device.db_bar, device.admin_api_version), (4, 1));
        assert_eq!(device.max_rdma_size > 0, read);

        let queues: QueueAttr1 = driver.feature().unwrap();
        assert_eq!((queues.inline_buf_size, queues.sub_cqs_per_cq), (32, 1));
        assert_eq!(queues.max_sq_depth * 64, queues.max_llq_size);
        let more = driver.feature::<QueueAttr2>();
        assert_eq!(
            more.map(|more| more.inline_buf_size_ex),
            if wide { Ok(80) } else { Err(UNSUPPORTED) }
        );
        let events = driver.feature::<EventQueueAttr>();
        assert_eq!(
            events.map(|events| events.max_eq),
            if read { Ok(32) } else { Err(UNSUPPORTED) }
        );

        let network: NetworkAttr = driver.feature().unwrap();
        assert_eq!(network.mtu, 8928);
        assert_eq!(network.addr[8..], device.guid.to_le_bytes());
        assert_eq!(driver.feature::<HwHints>(), Ok(HwHints::default()));
        let groups: AenqConfig = driver.feature().unwrap();
        assert_eq!((groups.supported_groups, groups.enabled_groups), (0x1e, 0));

        assert_eq!(driver.statistics(), Ok(BasicStats::default()));
        assert_eq!(driver.statistics(), Ok(MessagesStats::default()));
        assert_eq!(driver.statistics(), Ok(RdmaReadStats::default()));
        let expected = if write {
            Ok(RdmaWriteStats::default())
        } else {
            Err(UNSUPPORTED)
        };
        assert_eq!(driver.statistics(), expected);
        let expected = if write {
            Ok(NetworkStats::default())
        } else {
            Err(UNSUPPORTED)
        };
        assert_eq!(driver.statistics(), expected);

        assert_eq!(u32::from(profile.pci_device()) & 0xf, profile as u32);
        assert_eq!(driver.device.state().protocol_errors, 0);
    }
}

#[test]
fn devices_differ_in_address() {
    let address = |number| {
        let mut driver = Driver::with(Config::new(Profile::Efa2, number));
        (
            driver.feature::<NetworkAttr>().unwrap().addr,
            driver.feature::<DeviceAttr>().unwrap().guid,
        )
    };
    assert_ne!(address(0), address(1));
    assert_ne!(address(0).0[8..], [0; 8]);
}

#[test]
fn overrides() {
    let overrides = r#"{"version":1,"controller_version":65536,"dma_addr_width":40,
        "reset_timeout":31,"admin_timeout":15,"api_version":7,"link_gbps":1600,"max_eq":3,
        "inline_buf_size_ex":96,"admin_completion_timeout_ms":1234}"#;
    let mut driver = Driver::new(Profile::Efa3);
    driver.device.set(serde_json::from_str(overrides).unwrap());
    assert_eq!(Version::from_raw(driver.read(Register::Version)).minor, 1);
    assert_eq!(driver.read(Register::ControllerVersion), 65536);
    let caps = Caps::from_raw(driver.read(Register::Caps));
    assert_eq!(
        (
            caps.dma_addr_width,
            caps.reset_timeout,
            caps.admin_cmd_timeout
        ),
        (40, 31, 15)
    );
    let device: DeviceAttr = driver.feature().unwrap();
    assert_eq!(
        (device.admin_api_version, device.max_link_speed_gbps),
        (7, 1600)
    );
    assert_eq!(driver.feature::<EventQueueAttr>().unwrap().max_eq, 3);
    assert_eq!(
        driver.feature::<QueueAttr2>().unwrap().inline_buf_size_ex,
        96
    );
    assert_eq!(
        driver
            .feature::<HwHints>()
            .unwrap()
            .admin_completion_timeout,
        1234
    );

    // Further overrides add to the previous ones, until they are cleared.
    driver
        .device
        .set(serde_json::from_str(r#"{"ready":false}"#).unwrap());
    assert!(!driver.status().ready && !driver.device.state().ready);
    assert_eq!(driver.read(Register::Version), 1);
    driver.device.clear();
    assert!(driver.status().ready);
    assert_eq!(driver.read(Register::Version), 2);

    driver
        .device
        .set(serde_json::from_str(r#"{"link_gbps":50}"#).unwrap());
    assert!(driver.status().ready);

    // Overrides of a device's configuration are not cleared.
    let mut config = Config::new(Profile::Efa3, 0);
    config.overrides = serde_json::from_str(r#"{"db_bar":2}"#).unwrap();
    let mut driver = Driver::with(config);
    driver.device.clear();
    assert_eq!(driver.feature::<DeviceAttr>().unwrap().db_bar, 2);
    assert_eq!(driver.device.doorbell_bar(), 2);

    let error = serde_json::from_str::<Overrides>(r#"{"max_eqq":1}"#).unwrap_err();
    assert!(error.to_string().contains("max_eqq"));
    assert_eq!(serde_json::to_string(&Overrides::default()).unwrap(), "{}");
}

#[test]
fn features_that_are_missing() {
    let mut driver = Driver::new(Profile::Efa3);
    let get = |feature_id| GetFeature {
        feature_id,
        ..Default::default()
    };
    for feature_id in [0, 8, 10, 64, 255] {
        assert_eq!(driver.execute(&get(feature_id)), Err(UNSUPPORTED));
    }
    // The host's information can only be set, all others except AENQ_CONFIG only be read.
    assert_eq!(
        driver.execute(&get(FeatureId::HostInfo.into())),
        Err(UNSUPPORTED)
    );
    for &feature in FeatureId::ALL {
        if !matches!(feature, FeatureId::AenqConfig | FeatureId::HostInfo) {
            let set = SetFeature {
                feature_id: feature.into(),
                ..Default::default()
            };
            assert_eq!(driver.execute(&set).err(), Some(UNSUPPORTED));
        }
    }
    driver
        .device
        .set(serde_json::from_str(r#"{"supported_features":0}"#).unwrap());
    for &feature in FeatureId::ALL {
        let expected = feature == FeatureId::DeviceAttr;
        assert_eq!(driver.execute(&get(feature.into())).is_ok(), expected);
    }
    let mut with_buffer = get(FeatureId::DeviceAttr.into());
    with_buffer.control.ctrl_data = true;
    assert_eq!(driver.execute(&with_buffer), Err(Status::MalformedRequest));
}

#[test]
fn event_groups() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.enable_events(0x1e).unwrap();
    assert_eq!(driver.feature::<AenqConfig>().unwrap().enabled_groups, 0x1e);
    assert_eq!(driver.device.state().aenq_groups, 0x1e);
    assert_eq!(driver.enable_events(0x3e), Err(Status::IllegalParameter));
    assert_eq!(driver.device.state().aenq_groups, 0x1e);
    driver
        .device
        .set(serde_json::from_str(r#"{"aenq_groups":14}"#).unwrap());
    assert_eq!(driver.enable_events(0x1e), Err(Status::IllegalParameter));

    let mut command = SetFeature {
        feature_id: FeatureId::AenqConfig.into(),
        ..Default::default()
    };
    command.data[43] = 1;
    assert_eq!(
        driver.execute(&command).err(),
        Some(Status::MalformedRequest)
    );
}

#[test]
fn host_information() {
    let mut driver = Driver::new(Profile::Efa2);
    let mut info = HostInfo {
        kernel_version: 0x0007_020c,
        driver_version: DriverVersion {
            module_type: b'r',
            sub_minor: 3,
            minor: 2,
            major: 1,
        },
        bdf: Bdf {
            function: 1,
            device: 5,
            bus: 0x1f,
        },
        spec_version: SPEC_VERSION,
        flags: HostInfoFlags {
            intree: false,
            gdr: true,
        },
        ..Default::default()
    };
    info.os_dist[..6].copy_from_slice(b"7.3.12");
    info.kernel_version_text = [0xff; 32];
    let address = driver.world.map(1);
    driver.world.write(address, &info.encode());
    let good = SetFeature {
        control: AqFlags {
            ctrl_data: true,
            ..Default::default()
        },
        control_buffer: CtrlBuffInfo {
            length: 180,
            address,
        },
        feature_id: FeatureId::HostInfo.into(),
        data: [0; 44],
    };
    let malformed = Some(Status::MalformedRequest);
    let mut wrong = good;
    wrong.control.ctrl_data = false;
    assert_eq!(driver.execute(&wrong).err(), malformed);
    let mut wrong = good;
    wrong.control.ctrl_data_indirect = true;
    assert_eq!(driver.execute(&wrong).err(), malformed);
    let mut wrong = good;
    wrong.control_buffer.length = 179;
    assert_eq!(driver.execute(&wrong).err(), malformed);
    let mut wrong = good;
    wrong.data[0] = 1;
    assert_eq!(driver.execute(&wrong).err(), malformed);
    let mut wrong = good;
    wrong.control_buffer.address = 0xdead_0000;
    assert_eq!(driver.execute(&wrong).err(), Some(Status::UnknownError));
    assert_eq!(driver.device.state().protocol_errors, 1);
    assert_eq!(driver.device.state().host_info, None);

    assert!(driver.execute(&good).is_ok());
    let state = driver.device.state().host_info.unwrap();
    assert_eq!(state.os_dist, "7.3.12");
    assert_eq!(state.driver_version, "1.2.3r");
    assert_eq!(state.bdf, "1f:05.1");
    assert_eq!(state.spec_version, "2.0");
    assert_eq!((state.intree, state.gdr), (false, true));
    assert_eq!(state.kernel_version_text.chars().count(), 32);
}

#[test]
fn statistics_that_are_missing() {
    let mut driver = Driver::new(Profile::Efa2);
    let illegal = Some(Status::IllegalParameter);
    let stats = |stats_type, scope| GetStats {
        stats_type,
        scope,
        ..Default::default()
    };
    assert_eq!(driver.execute(&stats(5, 0)).err(), illegal);
    assert_eq!(driver.execute(&stats(0, 2)).err(), illegal);
    let queue = StatsScope::Queue.into();
    assert_eq!(driver.execute(&stats(0, queue)).err(), Some(UNSUPPORTED));
    let mut with_buffer = stats(0, 0);
    with_buffer.control.ctrl_data = true;
    assert_eq!(
        driver.execute(&with_buffer).err(),
        Some(Status::MalformedRequest)
    );
}

#[test]
fn state_as_json() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.enable_keep_alive();
    let state = serde_json::to_value(driver.device.state()).unwrap();
    assert_eq!(state["ready"], true);
    assert_eq!(state["resets"][0], "NORMAL");
    assert_eq!(state["resources"]["pd"], 0);
    assert_eq!(state["admin"]["submitted"], 1);
    assert_eq!(state["admin"]["max_in_flight"], 1);
    assert_eq!(state["host_info"], serde_json::Value::Null);
    assert_eq!(state["aenq_groups"], 16);
    for key in ["protocol_errors", "faults", "faults_hit"] {
        assert_eq!(state[key], 0, "{key}");
    }
}
