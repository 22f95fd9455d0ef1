// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Features, statistics, and profiles.

use super::*;

/// All attributes and statistics of each profile, which `profiles.txt` has.
#[test]
fn profiles() {
    use Profile::{Efa0, Efa1, Efa2, Efa3, Efa4};

    let lines = [Efa0, Efa1, Efa2, Efa3, Efa4].iter().flat_map(|profile| {
        let mut driver = Driver::new(*profile);
        let version = Version::from_raw(driver.read(Register::Version));
        let caps = Caps::from_raw(driver.read(Register::Caps));
        // The statistics that it lacks.
        let statistics = [
            driver.statistics::<BasicStats>().err(),
            driver.statistics::<MessagesStats>().err(),
            driver.statistics::<RdmaReadStats>().err(),
            driver.statistics::<RdmaWriteStats>().err(),
            driver.statistics::<NetworkStats>().err(),
        ];
        let lines = [
            format!("{:#x} {version:?} {caps:?}", profile.pci_device()),
            format!("{:?}", driver.feature::<DeviceAttr>()),
            format!("{:?}", driver.feature::<AenqConfig>()),
            format!("{:?}", driver.feature::<NetworkAttr>()),
            format!("{:?}", driver.feature::<QueueAttr1>()),
            format!("{:?}", driver.feature::<QueueAttr2>()),
            format!("{:?}", driver.feature::<EventQueueAttr>()),
            format!("{:?}", driver.feature::<HwHints>()),
            format!("{statistics:?}"),
        ];
        assert_eq!(driver.errors(), 0);
        lines
    });
    let mut expected = include_str!("profiles.txt").lines();
    for line in lines {
        assert_eq!(Some(&*line), expected.next());
    }
}

#[test]
fn overrides() {
    let mut driver = Driver::new(Profile::Efa3);
    driver.set(
        r#"{"version":1,"controller_version":65536,"dma_addr_width":40,"reset_timeout":31,"admin_timeout":15,
        "api_version":7,"link_gbps":1600,"max_eq":3,"inline_buf_size_ex":96,"admin_completion_timeout_ms":1234,
        "event_counters":true,"max_event_counters":8,"event_counter_max_val":18446744073709551615,"event_counter_events":1023}"#,
    );
    assert_eq!(Version::from_raw(driver.read(Register::Version)).minor, 1);
    assert_eq!(driver.read(Register::ControllerVersion), 65536);
    let caps = Caps::from_raw(driver.read(Register::Caps));
    let timeouts = (caps.reset_timeout, caps.admin_cmd_timeout);
    assert_eq!((caps.dma_addr_width, timeouts), (40, (31, 15)));
    let device: DeviceAttr = driver.feature().unwrap();
    let found = (device.admin_api_version, device.max_link_speed_gbps);
    assert_eq!(found, (7, 1600));
    assert_eq!(driver.feature::<EventQueueAttr>().unwrap().max_eq, 3);
    let queues: QueueAttr2 = driver.feature().unwrap();
    assert_eq!(queues.inline_buf_size_ex, 96);
    assert!(device.device_caps.event_counters);
    let limits = (queues.max_event_counters, queues.event_counter_max_val);
    assert_eq!(limits, (8, u64::MAX));
    assert_eq!(queues.supported_event_counter_qp_events.into_raw(), 0x3ff);
    let hints: HwHints = driver.feature().unwrap();
    assert_eq!(hints.admin_completion_timeout, 1234);

    // Further overrides add to the previous ones, until they are cleared.
    driver.set(r#"{"ready":false}"#);
    assert!(!driver.status().ready && !driver.device.state().ready);
    assert_eq!(driver.read(Register::Version), 1);
    driver.device.clear();
    assert!(driver.status().ready);
    assert_eq!(driver.read(Register::Version), 2);
    driver.set(r#"{"link_gbps":50}"#);
    assert!(driver.status().ready);

    // Overrides of a device's configuration are not cleared.
    let overrides = r#"{"db_bar":2,"data_polling_128":true}"#;
    let mut driver = Driver::with(config_with(Profile::Efa0, overrides));
    driver.device.clear();
    let device: DeviceAttr = driver.feature().unwrap();
    assert_eq!((device.db_bar, driver.device.doorbell_bar()), (2, 2));
    assert!(device.device_caps.data_polling_128);

    let error = serde_json::from_str::<Overrides>(r#"{"max_eqq":1}"#).unwrap_err();
    assert!(error.to_string().contains("max_eqq"));
    assert_eq!(serde_json::to_string(&Overrides::default()).unwrap(), "{}");
}

#[test]
fn host_information() {
    let mut driver = Driver::new(Profile::Efa2);
    let mut info = HostInfo {
        kernel_version: 0x0007_020c,
        // Version 1.2.3 and the letter of the module, and bus 0x1f, device 5, function 1.
        driver_version: DriverVersion::from_raw(u32::from_be_bytes([1, 2, 3, b'r'])),
        bdf: Bdf::from_raw((0x1f << 8) | (5 << 3) | 1),
        spec_version: SPEC_VERSION,
        flags: HostInfoFlags::from_raw(2),
        ..Default::default()
    };
    info.os_dist[..6].copy_from_slice(b"7.3.12");
    info.kernel_version_text = [0xff; 32];
    let address = driver.world.map(1);
    driver.world.store(address, &info.encode());
    let mut good = SetFeature::default();
    (good.feature_id, good.control.ctrl_data) = (FeatureId::HostInfo.into(), true);
    (good.control_buffer.length, good.control_buffer.address) = (180, address);
    assert!(driver.execute(&good).is_ok());
    let state = driver.device.state().host_info.unwrap();
    let texts = [state.os_dist, state.driver_version, state.bdf, state.spec_version];
    assert_eq!(texts, ["7.3.12", "1.2.3r", "1f:05.1", "2.0"]);
    assert_eq!((state.intree, state.gdr), (false, true));
    assert_eq!(state.kernel_version_text.chars().count(), 32);
}

#[test]
fn state_as_json() {
    let mut driver = Driver::new(Profile::Efa2);
    driver.enable_events(AenqGroup::KeepAlive.mask());
    let state = serde_json::to_string(&driver.device.state()).unwrap();
    assert_eq!(state, include_str!("state.json").trim());
}
