// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The command line.

use std::{collections::BTreeMap, fs, path::PathBuf, str::FromStr};

use clap::{ArgAction, Parser, Subcommand};
use efa_fabric::Settings;
use efa_model::{Config, Overrides, Profile};
use efa_vfio::{Bar, MAX_BYTES, MAX_MSIX_VECTORS};
use serde_json::{Map, Value};

use crate::{
    control::{Scope, changed},
    events,
    instance::Instance,
    sandbox::Mode,
};

/// Emulates Elastic Fabric Adapters, which virtual machines attach over vfio-user sockets.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// A device: `socket=PATH[,OPTION=VALUE...]`. Options are `profile=NAME`, `msix=VECTORS`, `number=N`, `memory=SIZE`,
    /// `strict=guesses`, `missing-bar=0|2|db`, and any attribute of the control command `set`, such as `max_eq=0` or
    /// `relaxed_ordering=true`.
    #[arg(
        long = "device",
        value_name = "SPEC",
        required_unless_present_any = ["instances", "list_profiles", "list_instances"],
        conflicts_with = "instances"
    )]
    devices: Vec<DeviceSpec>,

    /// The devices of an EC2 instance, such as `p4d.24xlarge,socket=PATH`, with further options as for `--device`.
    ///
    /// Their sockets are PATH0, PATH1 and so on, and their numbers N, N+1 and so on. `FILE:NAME` is an instance that a file
    /// describes.
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
    pub(crate) events: events::Options,

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
    /// Prints the EFAs of this machine as a file for `--instance FILE:NAME`, with the emulator's values in comments where they
    /// differ.
    Probe,
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
        let number = self.number.or(u32::try_from(index).ok()).unwrap_or_default();
        let mut config = Config::new(self.profile, number);
        config.vectors = self.vectors.unwrap_or(config.vectors);
        config.overrides = self.overrides.clone();
        config
    }

    /// Returns `self` with these options applied.
    fn with<'a>(mut self, options: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        for option in options {
            let (key, value) =
                option.split_once('=').ok_or_else(|| format!("`{option}` is not of the form KEY=VALUE"))?;
            match key {
                "socket" if value.is_empty() => return Err("the socket's path is empty".into()),
                "socket" => self.socket = PathBuf::from(value),
                "profile" => self.profile = profile(value)?,
                "msix" => self.vectors = Some(vectors(value)?),
                "number" => self.number = Some(value.parse().map_err(|error| format!("number is `{value}`: {error}"))?),
                "memory" => self.memory = Some(size(value)?),
                // Checks that real devices are only guessed to make.
                "strict" if value == "guesses" => self.overrides.merge(Overrides::guesses()),
                "strict" => return Err(format!("strict is `{value}`, but it must be guesses")),
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
        let (mut known, name) = match name.rsplit_once(':') {
            Some((file, name)) => (read(file)?, name),
            None => (Instance::known(), name),
        };
        let instance = known.remove(name).ok_or_else(|| {
            let known: Vec<_> = known.into_keys().collect();
            let known = known.join(", ");
            format!("no such instance: `{name}`, expected one of {known}")
        })?;
        let count = instance.devices.get();
        let device = DeviceSpec { profile: instance.profile, overrides: instance.overrides(), ..DeviceSpec::default() };
        let device = device.with(options)?;
        match device.number {
            Some(first) if first.checked_add(count).is_none() => {
                Err(format!("number is `{first}`, too high for {count} devices"))
            }
            _ => Ok(Self { count, device }),
        }
    }
}

/// Reads the instances in a file.
fn read(file: &str) -> Result<BTreeMap<String, Instance>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("cannot read the instances in {file}: {error}"))?;
    Instance::read(&text).map_err(|(line, error)| format!("{file}:{line}: {error}"))
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
    let mut set = Map::new();
    for part in parts {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is not of the form NAME=VALUE"))?;
        set.insert(key.to_owned(), json_or_text(value));
    }
    changed(&base, set)
}

/// Parses a value that is JSON, or else a text.
fn json_or_text(value: &str) -> Value {
    serde_json::from_str(value).unwrap_or_else(|_| Value::from(value))
}

fn profile(name: &str) -> Result<Profile, String> {
    serde_json::from_value(name.into()).map_err(|error| format!("no such profile: {error}"))
}

fn vectors(value: &str) -> Result<u16, String> {
    let vectors = value.parse().ok().filter(|vectors| (1..=MAX_MSIX_VECTORS).contains(vectors));
    vectors.ok_or_else(|| format!("msix is `{value}`, but a device has 1 to {MAX_MSIX_VECTORS} vectors"))
}

fn bar(name: &str) -> Result<Bar, String> {
    match name {
        "0" => Ok(Bar::Registers),
        "2" => Ok(Bar::Llq),
        "db" => Ok(Bar::Doorbells),
        _ => Err(format!("missing-bar is `{name}`, but it must be 0, 2 or db")),
    }
}

fn one_override(key: &str, value: &str) -> Result<Overrides, String> {
    let object = Map::from_iter([(key.to_owned(), json_or_text(value))]);
    serde_json::from_value(object.into()).map_err(|error| format!("`{key}` can't be overridden: {error}"))
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
        .ok_or_else(|| format!("memory is `{text}`, but it must be a size of 64K or more"))
}

#[cfg(test)]
mod tests;
