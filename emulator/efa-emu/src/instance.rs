// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! EFA devices of EC2 instances, which a file describes.

use std::{collections::BTreeMap, mem, num::NonZeroU32};

use efa_model::{Overrides, Profile};
use serde::{Deserialize, Serialize};

/// The known instances.
const KNOWN: &str = include_str!("instances.toml");

/// RDMA operations that an instance's devices support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rdma {
    /// Messages only.
    None,
    /// RDMA read.
    Read,
    /// RDMA read and write.
    ReadWrite,
}

/// A type of EC2 instance, and its EFA devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Instance {
    /// Number of devices.
    pub(crate) devices: NonZeroU32,
    /// Generation of the devices, which determines their PCI device id.
    pub(crate) profile: Profile,
    /// Link speed of each device, in Gbit/s.
    pub(crate) link_gbps: u16,
    /// RDMA operations that the devices support.
    pub(crate) rdma: Rdma,
    /// Further attributes of the devices.
    #[serde(default)]
    set: Overrides,
}

/// Instances by name, with the attributes that those of a profile have in common.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    profile: BTreeMap<Profile, Overrides>,
    instance: BTreeMap<String, Instance>,
}

impl File {
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text[..start].matches('\n').count() + 1;
            (line, error.message().to_owned())
        })
    }
}

impl Instance {
    /// Returns all known instances by name.
    pub(crate) fn known() -> BTreeMap<String, Self> {
        // Tests have read this text.
        Self::read(KNOWN).unwrap_or_default()
    }

    /// Reads instances by name from the text of a file.
    ///
    /// # Errors
    ///
    /// The line of an error in the text, and a sentence about it.
    pub(crate) fn read(text: &str) -> Result<BTreeMap<String, Self>, (usize, String)> {
        let known = File::parse(KNOWN)?.profile;
        let mut file = File::parse(text)?;
        for instance in file.instance.values_mut() {
            let (read, write) = (instance.rdma != Rdma::None, instance.rdma == Rdma::ReadWrite);
            let mut all = Overrides {
                link_gbps: Some(instance.link_gbps),
                rdma_read: Some(read),
                max_rdma_size: Some(if read { 1 << 30 } else { 0 }),
                max_wr_rdma_sges: Some(u16::from(read)),
                rdma_write: Some(write),
                unsolicited_write_recv: Some(write),
                ..Overrides::default()
            };
            for profiles in [&known, &file.profile] {
                all.merge(profiles.get(&instance.profile).cloned().unwrap_or_default());
            }
            all.merge(mem::take(&mut instance.set));
            instance.set = all;
        }
        Ok(file.instance)
    }

    /// Returns the attributes of the devices that may differ from their profile.
    pub(crate) fn overrides(&self) -> Overrides {
        self.set.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use efa_hw::features::FeatureId;
    use efa_model::{Config, Device};
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn attributes_are_those_of_instance_profile_and_rdma() {
        for (name, gbps, rdma, max_mr, gib, counters) in [
            ("c5n.18xlarge", 100, [false, false], 65_534, 4, 0),
            ("p4d.24xlarge", 100, [true, false], 65_534, 4, 0),
            ("p5.48xlarge", 100, [true, true], 262_144, 96, 0),
            ("p5en.48xlarge", 200, [true, true], 262_144, 192, 512),
            ("g7e.12xlarge", 400, [true, true], 524_288, 192, 512),
        ] {
            let instance = &Instance::known()[name];
            let config = Config { overrides: instance.overrides(), ..Config::new(instance.profile, 0) };
            config.check().unwrap();
            let snapshot = Device::new(config).snapshot(Duration::ZERO);
            let own = &to_value(snapshot).unwrap()["attributes"];
            let of = |names: &[&str]| json!(names.iter().map(|name| &own[name]).collect::<Vec<_>>());
            assert_eq!(of(&["link_gbps", "max_mr"]), json!([gbps, max_mr]), "{name}");
            assert_eq!(of(&["rdma_read", "rdma_write"]), json!(rdma), "{name}");
            assert_eq!(own["max_mr_pages"], gib << 18, "{name}");
            assert_eq!(own["network_stats"], instance.profile > Profile::Efa0);
            let found = of(&["event_counters", "max_event_counters"]);
            assert_eq!(found, json!([counters > 0, counters]), "{name}");
            // The driver asks for event counters only if the device has this feature.
            let features = own["supported_features"].as_u64().unwrap();
            let has_counters = features & FeatureId::QueueAttr2.mask() != 0;
            assert_eq!(has_counters, counters > 0);
            let inline = if instance.profile == Profile::Efa3 { 80 } else { 32 };
            assert_eq!(own["inline_buf_size_ex"], inline, "{name}");
        }
    }

    #[test]
    fn a_file_has_further_instances() {
        let text = "[profile.efa1]\nmax_ah = 7\n[instance]\n\
            lab = { devices = 2, profile = 'efa1', link_gbps = 25, rdma = 'read', set = { max_qp = 9 } }\n";
        let lab = Instance::read(text).unwrap().remove("lab").unwrap();
        let own = lab.overrides();
        // Those of the program, of the file's profile, and of its instance.
        assert_eq!((own.max_mr, own.max_ah, own.max_qp), (Some(1 << 18), Some(7), Some(9)));
        let changes = "
devices = 2 > devices = 0 > 4 nonzero
'efa1' > 'efa9' > 4 unknown variant `efa9`
'read' > 'write' > 4 expected one of `none`, `read`, `read-write`
max_qp > max_qpp > 4 unknown field `max_qpp`
max_ah = 7 > max_ah = -7 > 2 invalid value
[instance] > [instances] > 3 unknown field `instances`
lab = > lab lab = > 4 expected
";
        for change in changes.trim().lines() {
            let mut parts = change.splitn(3, " > ");
            let [before, after, error] = [(); 3].map(|()| parts.next().unwrap());
            let (line, found) = Instance::read(&text.replace(before, after)).unwrap_err();
            let (at, part) = error.split_once(' ').unwrap();
            assert!(line.to_string() == at && found.contains(part), "{change}: {line} {found}");
        }
    }
}
