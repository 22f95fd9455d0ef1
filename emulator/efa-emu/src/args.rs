// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The command line.

use std::{path::PathBuf, str::FromStr};

use clap::{ArgAction, Parser, Subcommand};
use efa_fabric::Settings;
use efa_model::{Config, Instance, Overrides, Profile};
use efa_vfio::{Bar, MAX_BYTES, MAX_MSIX_VECTORS};
use serde::{
    Deserialize,
    de::{
        IntoDeserializer,
        value::{Error as ValueError, StrDeserializer},
    },
};
use serde_json::Value;

use crate::{capture::CaptureOptions, control::Scope, sandbox::Mode, trace::TraceOptions};

/// Emulates Elastic Fabric Adapters, which virtual machines attach over vfio-user sockets.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// A device: `socket=PATH[,OPTION=VALUE...]`. Options are `profile=NAME`, `msix=VECTORS`, `number=N`, `memory=SIZE`,
    /// `strict=guesses`, `missing-bar=0|2|db`, and any attribute of the control command `set`, such as `max_eq=0`.
    #[arg(
        long = "device",
        value_name = "SPEC",
        required_unless_present_any = ["instances", "list_profiles", "list_instances"],
        conflicts_with = "instances"
    )]
    devices: Vec<DeviceSpec>,

    /// The devices of an EC2 instance, such as `p4d.24xlarge,socket=PATH`, with further options as for `--device`.
    ///
    /// Their sockets are PATH0, PATH1 and so on, and their numbers N, N+1 and so on.
    #[arg(long = "instance", value_name = "SPEC")]
    instances: Vec<InstanceSpec>,

    /// The network between the devices: `[ideal|realistic][,NAME=VALUE...]`, such as `realistic,loss=0.001`.
    ///
    /// The realistic network, which is the default, reorders packets as SRD does. The ideal one, for benchmarks, neither loses
    /// nor delays packets. Values without a network's name change the realistic one. Names of values are those of the control
    /// command `fabric`. A value may be JSON, such as `path=[{"down":true}]`.
    #[arg(long, value_name = "SETTINGS", default_value = "", value_parser = fabric)]
    pub(crate) fabric: Settings,

    /// Lets other emulators join this network at this TCP address. A program that connects can send anything to any guest, so
    /// choose an address that only the emulators can reach.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<String>,

    /// Joins the network of the emulator at this TCP address, as soon as that listens.
    ///
    /// A name in place of the address is resolved once, at the start.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) join: Vec<String>,

    /// Seed of the network's losses and delays. The default is random, and is printed unless the network is ideal.
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    /// Listens for control connections at a unix socket: `PATH[,device=N][,read-only][,no-debugging]`.
    ///
    /// By default, clients may send any request. The options limit them to one device, to requests that change nothing, and to
    /// requests that access no queue in guest memory. Each further `--control` adds a socket.
    #[arg(long, value_name = "SPEC")]
    pub(crate) control: Vec<Scope>,

    /// Serves metrics for Prometheus at this TCP address: `http://ADDRESS:PORT/metrics`.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<String>,

    #[command(flatten)]
    pub(crate) trace: TraceOptions,

    #[command(flatten)]
    pub(crate) capture: CaptureOptions,

    /// Applies the control commands in this file, one a line, before the first guest can connect.
    #[arg(long, value_name = "FILE")]
    pub(crate) scenario: Option<PathBuf>,

    /// Sandbox of Landlock and seccomp, which denies the program all that it does not need. `auto` applies as much of it as the
    /// kernel supports. With `on`, the program fails if the kernel lacks a part that is required.
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub(crate) sandbox: Mode,

    /// Lets VMMs share memory in files of ext4, XFS or btrfs. Accesses may then wait for the disk, and delay other guests.
    #[arg(long)]
    pub(crate) file_memory: bool,

    /// Prints the profiles that a device can have.
    #[arg(long)]
    pub(crate) list_profiles: bool,

    /// Prints the known EC2 instances.
    #[arg(long)]
    pub(crate) list_instances: bool,

    /// Logs at level INFO to the standard error, or at level DEBUG if given twice.
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

impl Args {
    /// All devices, in the order of the command line.
    pub(crate) fn devices(&self) -> Vec<DeviceSpec> {
        let of_instances = self.instances.iter().flat_map(InstanceSpec::devices);
        self.devices.iter().cloned().chain(of_instances).collect()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Sends control commands to a running emulator and prints the replies.
    Ctl {
        /// The control socket.
        socket: PathBuf,
        /// Control commands as JSON.
        #[arg(required = true)]
        commands: Vec<String>,
    },
    /// Prints JSON Schemas of the control protocol: of requests, and of the replies to each.
    Schema,
    /// Writes the manual pages and shell completions into a folder, which is created if necessary.
    #[command(hide = true)]
    Generate {
        /// The folder.
        folder: PathBuf,
    },
}

/// A device as the command line describes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceSpec {
    pub(crate) socket: PathBuf,
    pub(crate) missing_bar: Option<Bar>,
    profile: Profile,
    vectors: Option<u16>,
    number: Option<u32>,
    memory: Option<u64>,
    overrides: Overrides,
}

impl DeviceSpec {
    /// Limit in bytes on the memory that a VMM may share with the device.
    pub(crate) fn memory(&self) -> u64 {
        self.memory.unwrap_or(MAX_BYTES)
    }

    /// The device's configuration. Its number is `index` if the command line gives none.
    pub(crate) fn config(&self, index: usize) -> Config {
        let number = self
            .number
            .or(u32::try_from(index).ok())
            .unwrap_or_default();
        let mut config = Config::new(self.profile, number);
        config.vectors = self.vectors.unwrap_or(config.vectors);
        config.overrides = self.overrides.clone();
        config
    }

    /// Returns `self` with these options applied.
    fn with<'a>(mut self, options: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        for option in options {
            let (key, value) = option
                .split_once('=')
                .ok_or_else(|| format!("`{option}` is not of the form KEY=VALUE"))?;
            match key {
                "socket" if value.is_empty() => return Err("the socket's path is empty".into()),
                "socket" => self.socket = PathBuf::from(value),
                "profile" => self.profile = profile(value)?,
                "msix" => self.vectors = Some(vectors(value)?),
                "number" => self.number = Some(number(value)?),
                "memory" => self.memory = Some(memory(value)?),
                "strict" => self.overrides.merge(strict(value)?),
                "missing-bar" => self.missing_bar = Some(bar(value)?),
                _ => self.overrides.merge(one_override(key, value)?),
            }
        }
        if self.socket.as_os_str().is_empty() {
            return Err("socket=PATH is missing".into());
        }
        self.config(0).check()?;
        Ok(self)
    }
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(spec: &str) -> Result<Self, String> {
        Self::default().with(spec.split(','))
    }
}

/// An instance as the command line describes it.
#[derive(Clone, Debug)]
struct InstanceSpec {
    count: u32,
    /// Template of the devices: each index is appended to the socket's path, and added to the number.
    device: DeviceSpec,
}

impl InstanceSpec {
    fn devices(&self) -> impl Iterator<Item = DeviceSpec> {
        (0..self.count).map(|index| {
            let mut device = self.device.clone();
            device.socket.as_mut_os_string().push(index.to_string());
            device.number = device.number.map(|first| first + index);
            device
        })
    }
}

impl FromStr for InstanceSpec {
    type Err = String;

    fn from_str(spec: &str) -> Result<Self, String> {
        let mut options = spec.split(',');
        let name = options.next().unwrap_or_default();
        let instance = Instance::find(name).ok_or_else(|| {
            let known: Vec<_> = Instance::ALL.iter().map(|instance| instance.name).collect();
            format!(
                "no such instance: `{name}`, expected one of {}",
                known.join(", ")
            )
        })?;
        let count = instance.devices;
        let device = DeviceSpec {
            profile: instance.profile,
            overrides: instance.overrides(),
            ..DeviceSpec::default()
        };
        let device = device.with(options)?;
        match device.number {
            Some(first) if first.checked_add(count).is_none() => {
                Err(format!("number is `{first}`, too high for {count} devices"))
            }
            _ => Ok(Self { count, device }),
        }
    }
}

/// Parses the network: an optional name, then settings that change it. A comma within brackets is no separator.
fn fabric(text: &str) -> Result<Settings, String> {
    let mut depth = 0;
    let parts = text.split(|character| {
        match character {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    });
    let mut parts = parts.filter(|part| !part.is_empty()).peekable();
    let named = parts.next_if(|part| !part.contains('='));
    let named = named.map(|name| {
        let unknown = || {
            let known = Settings::NAMES.join(" or ");
            format!("`{name}` is neither of the form NAME=VALUE nor the name of a network, expected {known}")
        };
        Settings::named(name).ok_or_else(unknown)
    });
    // SRD promises no order, and an ideal network hides code that relies on one.
    let base = named.unwrap_or_else(|| Settings::named("realistic").ok_or_else(String::new))?;
    let mut object = match serde_json::to_value(base) {
        Ok(Value::Object(object)) => object,
        _ => serde_json::Map::new(),
    };
    for part in parts {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` is not of the form NAME=VALUE"))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        object.insert(key.to_owned(), value);
    }
    let settings: Settings =
        serde_json::from_value(Value::Object(object)).map_err(|error| error.to_string())?;
    settings.check()?;
    Ok(settings)
}

fn profile(name: &str) -> Result<Profile, String> {
    let name: StrDeserializer<'_, ValueError> = name.into_deserializer();
    Profile::deserialize(name).map_err(|error| format!("no such profile: {error}"))
}

fn vectors(value: &str) -> Result<u16, String> {
    let vectors = value
        .parse()
        .ok()
        .filter(|vectors| (1..=MAX_MSIX_VECTORS).contains(vectors));
    vectors.ok_or_else(|| {
        format!("msix is `{value}`, but a device has 1 to {MAX_MSIX_VECTORS} vectors")
    })
}

fn number(value: &str) -> Result<u32, String> {
    value
        .parse()
        .map_err(|error| format!("number is `{value}`: {error}"))
}

fn memory(value: &str) -> Result<u64, String> {
    size(value).map_err(|error| format!("memory: {error}"))
}

/// Returns overrides for checks that real devices are only guessed to make.
fn strict(value: &str) -> Result<Overrides, String> {
    match value {
        "guesses" => Ok(Overrides::guesses()),
        _ => Err(format!("strict is `{value}`, but it must be guesses")),
    }
}

fn bar(name: &str) -> Result<Bar, String> {
    match name {
        "0" => Ok(Bar::Registers),
        "2" => Ok(Bar::Llq),
        "db" => Ok(Bar::Doorbells),
        _ => Err(format!(
            "missing-bar is `{name}`, but it must be 0, 2 or db"
        )),
    }
}

fn one_override(key: &str, value: &str) -> Result<Overrides, String> {
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    let object = Value::Object([(key.to_owned(), value)].into_iter().collect());
    serde_json::from_value(object).map_err(|error| format!("`{key}` can't be overridden: {error}"))
}

/// Parses a size in bytes, a number with an optional suffix `K`, `M` or `G`.
///
/// # Errors
///
/// The text is no size, or is below the minimum of 64K.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: Option<u64> = digits.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes >= 64 << 10)
        .ok_or_else(|| format!("the limit is `{text}`, but it must be a size of 64K or more"))
}

#[cfg(test)]
mod tests {
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
}
