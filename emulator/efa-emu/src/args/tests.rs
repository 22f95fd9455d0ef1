// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Command lines: what is accepted, and errors.

use super::*;

#[test]
fn sizes() {
    for (text, bytes) in [("65536", 1 << 16), ("64K", 1 << 16), ("3M", 3 << 20), ("1G", 1 << 30)] {
        assert_eq!(size(text), Ok(bytes));
    }
    for text in ["", "K", "1K", "-1M", "1T", "99999999999999G"] {
        let error = size(text).unwrap_err();
        assert!(error.contains("a size of 64K or more"), "{text}: {error}");
    }
}

#[test]
fn every_option_counts() {
    let spec: DeviceSpec = "socket=/run/efa".parse().unwrap();
    assert_eq!(spec.socket, PathBuf::from("/run/efa"));
    assert_eq!((spec.missing_bar, spec.memory()), (None, MAX_BYTES));
    assert_eq!(spec.config(3), Config::new(Profile::Efa2, 3));
    let spec = "profile=efa0,socket=a=b,msix=1,number=7,memory=2G,missing-bar=db,max_eq=0,ready=false,strict=guesses";
    let spec: DeviceSpec = spec.parse().unwrap();
    assert_eq!(spec.socket, PathBuf::from("a=b"));
    assert_eq!((spec.missing_bar, spec.memory()), (Some(Bar::Doorbells), 2 << 30));
    let overrides = Overrides { max_eq: Some(0), ready: Some(false), ..Overrides::guesses() };
    let expected = Config { vectors: 1, overrides, ..Config::new(Profile::Efa0, 7) };
    assert_eq!(spec.config(3), expected);
}

#[test]
fn options_of_an_instance_apply_to_all_its_devices() {
    let options = "socket=a,profile=efa3,msix=2,number=7,keep_alive_ms=0,rdma_read=false,missing-bar=2";
    let spec: InstanceSpec = format!("p4d.24xlarge,{options}").parse().unwrap();
    let mut overrides = Instance::known()["p4d.24xlarge"].overrides();
    overrides.keep_alive_ms = Some(0);
    overrides.rdma_read = Some(false);
    let expected = Config { vectors: 2, overrides, ..Config::new(Profile::Efa3, 0) };
    assert_eq!(spec.devices().count(), 4);
    for (number, device) in (7..).zip(spec.devices()) {
        let expected = Config { number, ..expected.clone() };
        assert_eq!(device.config(0), expected);
        assert_eq!(device.missing_bar, Some(Bar::Llq));
    }
}

/// Options, of which OWN stands for a device, and a part of the error.
const ERRORS: &str = "
--device , | `` is not of the form KEY=VALUE
--device profile=efa1 | socket=PATH is missing
--device socket= | path is empty
--device socket=a,profile=efa9 | `efa9`, expected one of `efa0`, `efa1`, `efa2`, `efa3`, `efa4`
--device socket=a,msix=0 | msix is `0`, but a device has 1 to 256 vectors
--device socket=a,msix=257 | msix is `257`
--device socket=a,number=x | number is `x`
--device socket=a,memory=1T | memory is `1T`, but it must be a size of 64K or more
--device socket=a,profile=efa0,rdma_read=true | rdma_read and rdma_write needs max_rdma_size, which is 0 or false: set both
--device socket=a,rdma_write=false | unsolicited_write_recv needs rdma_write
--device socket=a,event_counters=true | event_counters needs max_event_counters
--device socket=a,strict=all | strict is `all`, but it must be guesses
--device socket=a,missing-bar=1 | missing-bar is `1`, but it must be 0, 2 or db
--device socket=a,max_eqq=1 | `max_eqq` can't be overridden: unknown field
--device socket=a,max_eq=many | `max_eq` can't be overridden: invalid type
--device socket=a,max_eq=-1 | `max_eq` can't be overridden: invalid value
--instance , | no such instance: ``, expected one of c5n.18xlarge,
--instance p9.metal,socket=a | `p9.metal`, expected one of c5n.18xlarge,
--instance socket=a | no such instance: `socket=a`, expected one of
--instance p4d.24xlarge | socket=PATH is missing
--instance p4d.24xlarge, | `` is not of the form KEY=VALUE
--instance p4d.24xlarge,socket=a,mtuu=1 | `mtuu` can't be overridden
--instance p4d.24xlarge,socket=a,number=4294967292 | number is `4294967292`, too high for 4 devices
--instance /none:lab,socket=a | cannot read the instances in /none: No such file
OWN --instance hpc7a.96xlarge,socket=b | cannot be used with
OWN --fabric loss | `loss` is neither of the form NAME=VALUE nor the name of a network
OWN --fabric real | expected ideal or realistic
OWN --fabric loss=0,ideal | `ideal` is not of the form NAME=VALUE
OWN --fabric loss=2 | loss must be between 0 and 1
OWN --fabric lose=1 | unknown field `lose`
OWN --fabric paths=0 | paths is 0, but must be between 1 and 256
OWN --fabric paths=1,path=[{},{}] | settings for 2 paths, but only 1
OWN --fabric delay_us=-1 | delay_us must be between 0 and
OWN --fabric link_gbps=1e9 | link_gbps must be 0 or between
OWN --control a,device=x | `device=x` has no valid device index
OWN --control a,read-only=1 | `read-only=1` is not a scope, expected device=N, read-only or no-debugging
OWN --trace-filter all | --trace <FILE>
OWN --trace a --trace-filter : | `` is not a device index
OWN --trace a --trace-filter admin, | no such kind: ``
OWN --trace a --trace-filter admim | `admim`, expected all, admin, registers
OWN --trace a --trace-filter x:admin | `x` is not a device index
OWN --trace a --trace-filter 0: | no such kind: ``
--sandbox auto | required
";

#[test]
fn errors_name_the_cause() {
    for line in ERRORS.trim().lines() {
        let (options, part) = line.split_once(" | ").unwrap();
        let options = options.replace("OWN", "--device socket=a");
        let words = ["efa-emu"].into_iter().chain(options.split(' '));
        let error = Args::try_parse_from(words).unwrap_err().to_string();
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[test]
fn devices_are_in_order() {
    for (line, expected) in [
        ("--instance c5n.18xlarge,socket=a --instance hpc7a.96xlarge,socket=b", "a0 b0 b1"),
        ("--device socket=a --device socket=b", "a b"),
    ] {
        let args = Args::parse_from(["efa-emu"].into_iter().chain(line.split(' ')));
        let sockets = args.devices().into_iter().map(|device| device.socket);
        let expected = expected.split(' ').map(PathBuf::from);
        assert!(sockets.eq(expected), "{line}");
    }
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
}
