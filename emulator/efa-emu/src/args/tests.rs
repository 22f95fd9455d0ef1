// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Command lines: what is accepted, and errors.

use super::*;

#[test]
fn sizes() {
    for (text, bytes) in [
        ("65536", 65536),
        ("64K", 65536),
        ("3M", 3 << 20),
        ("1G", 1 << 30),
    ] {
        assert_eq!(size(text), Ok(bytes));
    }
    for text in ["", "K", "1K", "-1M", "1T", "99999999999999G"] {
        let error = size(text).unwrap_err();
        assert!(error.contains("a size of 64K or more"), "{text}: {error}");
    }
}

#[test]
fn a_device_has_defaults() {
    let spec: DeviceSpec = "socket=/run/efa".parse().unwrap();
    assert_eq!(spec.socket, PathBuf::from("/run/efa"));
    assert_eq!(spec.missing_bar, None);
    assert_eq!(spec.config(3), Config::new(Profile::Efa2, 3));
    assert_eq!(spec.memory(), MAX_BYTES);
}

#[test]
fn guesses_are_checked_on_request() {
    let overrides = |spec: &str| spec.parse::<DeviceSpec>().unwrap().overrides;
    assert_eq!(overrides("socket=a"), Overrides::default());
    let guesses = Overrides::guesses();
    assert_eq!(overrides("socket=a,strict=guesses"), guesses);
}

#[test]
fn every_option_counts() {
    let spec =
        "profile=efa0,socket=a=b,msix=1,number=7,memory=2G,missing-bar=db,max_eq=0,ready=false";
    let spec: DeviceSpec = spec.parse().unwrap();
    assert_eq!(spec.socket, PathBuf::from("a=b"));
    assert_eq!(spec.missing_bar, Some(Bar::Doorbells));
    assert_eq!(spec.memory(), 2 << 30);
    let config = spec.config(3);
    assert_eq!(
        (config.profile, config.vectors, config.number),
        (Profile::Efa0, 1, 7)
    );
    assert_eq!(
        (config.overrides.max_eq, config.overrides.ready),
        (Some(0), Some(false))
    );
}

#[test]
fn errors_name_the_cause() {
    for (spec, part) in [
        ("", "`` is not of the form KEY=VALUE"),
        ("profile=efa1", "socket=PATH is missing"),
        ("socket=", "path is empty"),
        (
            "socket=a,profile=efa9",
            "`efa9`, expected one of `efa0`, `efa1`, `efa2`, `efa3`, `efa4`",
        ),
        (
            "socket=a,msix=0",
            "msix is `0`, but a device has 1 to 256 vectors",
        ),
        ("socket=a,msix=257", "msix is `257`"),
        ("socket=a,number=x", "number is `x`"),
        (
            "socket=a,memory=1T",
            "memory: the limit is `1T`, but it must be a size of 64K or more",
        ),
        (
            "socket=a,profile=efa0,rdma_read=true",
            "rdma_read and rdma_write needs max_rdma_size, which is 0 or false: set both",
        ),
        (
            "socket=a,rdma_write=false",
            "unsolicited_write_recv needs rdma_write",
        ),
        (
            "socket=a,event_counters=true",
            "event_counters needs max_event_counters",
        ),
        (
            "socket=a,strict=all",
            "strict is `all`, but it must be guesses",
        ),
        (
            "socket=a,missing-bar=1",
            "missing-bar is `1`, but it must be 0, 2 or db",
        ),
        (
            "socket=a,max_eqq=1",
            "`max_eqq` can't be overridden: unknown field",
        ),
        (
            "socket=a,max_eq=many",
            "`max_eq` can't be overridden: invalid type",
        ),
        (
            "socket=a,max_eq=-1",
            "`max_eq` can't be overridden: invalid value",
        ),
    ] {
        let error = spec.parse::<DeviceSpec>().unwrap_err();
        assert!(error.contains(part), "{spec}: {error}");
    }
}

fn configs(spec: &str) -> Vec<Config> {
    let spec: InstanceSpec = spec.parse().unwrap();
    let devices = spec.devices().enumerate();
    devices
        .map(|(index, device)| device.config(index))
        .collect()
}

#[test]
fn an_instance_has_the_devices_of_the_table() {
    for instance in Instance::ALL {
        let configs = configs(&format!("{},socket=/run/efa", instance.name));
        assert_eq!(configs.len(), instance.devices as usize);
        for (number, config) in (0..).zip(configs) {
            let mut expected = Config::new(instance.profile, number);
            expected.overrides = instance.overrides();
            assert_eq!(config, expected, "{}", instance.name);
        }
    }
}

#[test]
fn each_device_of_an_instance_has_its_socket() {
    let spec: InstanceSpec = "p4d.24xlarge,socket=/run/efa".parse().unwrap();
    let sockets: Vec<_> = spec.devices().map(|device| device.socket).collect();
    let expected = ["/run/efa0", "/run/efa1", "/run/efa2", "/run/efa3"];
    assert_eq!(sockets, expected.map(PathBuf::from));
}

#[test]
fn options_of_an_instance_apply_to_all_its_devices() {
    let options = "socket=a,profile=efa3,msix=2,number=7,keep_alive_ms=0,rdma_read=false";
    let configs = configs(&format!("p4d.24xlarge,{options}"));
    assert_eq!(configs.len(), 4);
    for (number, config) in (7..).zip(configs) {
        assert_eq!(
            (config.profile, config.vectors, config.number),
            (Profile::Efa3, 2, number)
        );
        let overrides = config.overrides;
        assert_eq!(
            (
                overrides.keep_alive_ms,
                overrides.rdma_read,
                overrides.link_gbps
            ),
            (Some(0), Some(false), Some(100))
        );
    }
    let spec: InstanceSpec = "p4d.24xlarge,socket=a,missing-bar=2".parse().unwrap();
    assert!(
        spec.devices()
            .all(|device| device.missing_bar == Some(Bar::Llq))
    );
}

#[test]
fn errors_in_an_instance_name_the_cause() {
    for (spec, part) in [
        ("", "no such instance: ``, expected one of c5n.18xlarge, "),
        (
            "p9.metal,socket=a",
            "`p9.metal`, expected one of c5n.18xlarge, ",
        ),
        ("socket=a", "no such instance: `socket=a`, expected one of"),
        ("p4d.24xlarge", "socket=PATH is missing"),
        ("p4d.24xlarge,", "`` is not of the form KEY=VALUE"),
        ("p4d.24xlarge,socket=a,mtuu=1", "`mtuu` can't be overridden"),
        (
            "p4d.24xlarge,socket=a,number=4294967292",
            "number is `4294967292`, too high for 4 devices",
        ),
    ] {
        let error = spec.parse::<InstanceSpec>().unwrap_err();
        assert!(error.contains(part), "{spec}: {error}");
    }
}

fn parse(arguments: &[&str]) -> Result<Args, String> {
    let arguments = ["efa-emu"].iter().chain(arguments);
    Args::try_parse_from(arguments).map_err(|error| error.to_string())
}

#[test]
fn devices_are_in_order_and_not_mixed() {
    let instances = ["c5n.18xlarge,socket=a", "hpc7a.96xlarge,socket=b"];
    let args = parse(&["--instance", instances[0], "--instance", instances[1]]).unwrap();
    let sockets: Vec<_> = args
        .devices()
        .into_iter()
        .map(|device| device.socket)
        .collect();
    assert_eq!(sockets, ["a0", "b0", "b1"].map(PathBuf::from));
    let args = parse(&["--device", "socket=a", "--device", "socket=b"]).unwrap();
    assert_eq!(args.devices().len(), 2);
    let error = parse(&["--device", "socket=a", "--instance", instances[1]]).unwrap_err();
    assert!(error.contains("cannot be used with"), "{error}");
    let error = parse(&[]).unwrap_err();
    assert!(error.contains("required"), "{error}");
}

#[test]
fn settings_of_the_network() {
    assert!(fabric("loss=0.5").unwrap().jitter_us > 0.0);
    let settings = fabric("loss=0.5,path=[{\"down\":true},{\"loss\":0.1}],paths=2").unwrap();
    assert_eq!((settings.loss, settings.paths), (0.5, 2));
    assert!(settings.path[0].down);
    assert_eq!(settings.path[1].loss, Some(0.1));
    assert_eq!(fabric(""), fabric("realistic"));
    assert_eq!(fabric("ideal").unwrap(), Settings::default());
    let settings = fabric("realistic,loss=0.001,paths=8").unwrap();
    assert_eq!((settings.loss, settings.paths), (0.001, 8));
    assert!(settings.jitter_us > 0.0 && settings.delay_us > 0.0);
    for (text, part) in [
        (
            "loss",
            "`loss` is neither of the form NAME=VALUE nor the name of a network",
        ),
        ("real", "expected ideal or realistic"),
        ("loss=0,ideal", "`ideal` is not of the form NAME=VALUE"),
        ("loss=2", "loss must be between 0 and 1"),
        ("lose=1", "unknown field `lose`"),
        ("paths=0", "paths is 0, but must be between 1 and 256"),
        ("paths=1,path=[{},{}]", "settings for 2 paths, but only 1"),
        ("delay_us=-1", "delay_us must be between 0 and"),
        ("link_gbps=1e9", "link_gbps must be 0 or between"),
    ] {
        let error = fabric(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn clap_accepts_the_definition() {
    use clap::CommandFactory;
    Args::command().debug_assert();
}
