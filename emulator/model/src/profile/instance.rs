// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! EFA devices of EC2 instances.

use efa_hw::{admin::event_counter::QpEvents, features::FeatureId};

use crate::{Config, Overrides, Profile};

/// RDMA operations that an instance's devices support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rdma {
    /// Messages only.
    None,
    /// RDMA read.
    Read,
    /// RDMA read and write.
    ReadWrite,
}

/// A type of EC2 instance, and its EFA devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Name of the type in EC2.
    pub name: &'static str,
    /// Number of devices.
    pub devices: u32,
    /// Generation of the devices, which determines their PCI device id.
    pub profile: Profile,
    /// Link speed of each device, in Gbit/s.
    pub link_gbps: u16,
    /// RDMA operations that the devices support.
    pub rdma: Rdma,
}

const fn new(
    name: &'static str,
    devices: u32,
    profile: Profile,
    link_gbps: u16,
    rdma: Rdma,
) -> Instance {
    Instance {
        name,
        devices,
        profile,
        link_gbps,
        rdma,
    }
}

impl Instance {
    /// All known instances.
    ///
    /// Documentation/emulator.md lists the sources of the figures. AWS does not document PCI ids. Those of p4d, p4de, p5.48xlarge
    /// and p5en.48xlarge were observed; all others are guesses from the version of EFA.
    pub const ALL: &[Self] = &[
        new("c5n.18xlarge", 1, Profile::Efa0, 100, Rdma::None),
        new("c6gn.16xlarge", 1, Profile::Efa1, 100, Rdma::ReadWrite),
        new("c6in.32xlarge", 2, Profile::Efa1, 100, Rdma::ReadWrite),
        new("c7gn.16xlarge", 1, Profile::Efa2, 200, Rdma::Read),
        new("c8gn.48xlarge", 2, Profile::Efa3, 300, Rdma::ReadWrite),
        new("g5.48xlarge", 1, Profile::Efa0, 100, Rdma::None),
        new("g6.48xlarge", 1, Profile::Efa1, 100, Rdma::ReadWrite),
        new("g6e.48xlarge", 4, Profile::Efa1, 100, Rdma::ReadWrite),
        new("g7e.12xlarge", 1, Profile::Efa3, 400, Rdma::ReadWrite),
        new("g7e.48xlarge", 4, Profile::Efa3, 400, Rdma::ReadWrite),
        new("hpc6a.48xlarge", 1, Profile::Efa1, 100, Rdma::ReadWrite),
        new("hpc6id.32xlarge", 2, Profile::Efa1, 100, Rdma::ReadWrite),
        new("hpc7a.96xlarge", 2, Profile::Efa1, 150, Rdma::ReadWrite),
        new("hpc7g.16xlarge", 1, Profile::Efa2, 200, Rdma::Read),
        new("hpc8a.96xlarge", 2, Profile::Efa3, 150, Rdma::ReadWrite),
        new("p3dn.24xlarge", 1, Profile::Efa0, 100, Rdma::None),
        new("p4d.24xlarge", 4, Profile::Efa0, 100, Rdma::Read),
        new("p4de.24xlarge", 4, Profile::Efa0, 100, Rdma::Read),
        new("p5.4xlarge", 1, Profile::Efa1, 100, Rdma::ReadWrite),
        new("p5.48xlarge", 32, Profile::Efa1, 100, Rdma::ReadWrite),
        new("p5e.48xlarge", 32, Profile::Efa1, 100, Rdma::ReadWrite),
        new("p5en.48xlarge", 16, Profile::Efa2, 200, Rdma::ReadWrite),
        new("p6-b200.48xlarge", 8, Profile::Efa3, 400, Rdma::ReadWrite),
        new("p6-b300.48xlarge", 16, Profile::Efa3, 400, Rdma::ReadWrite),
        new("trn1.32xlarge", 8, Profile::Efa1, 100, Rdma::ReadWrite),
        new("trn1n.32xlarge", 16, Profile::Efa1, 100, Rdma::ReadWrite),
        new("trn2.48xlarge", 16, Profile::Efa2, 200, Rdma::ReadWrite),
    ];

    /// Finds the instance with a name.
    pub fn find(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|instance| instance.name == name)
    }

    /// Attributes of the devices that may differ from their profile.
    pub fn overrides(&self) -> Overrides {
        let (read, write) = (self.rdma != Rdma::None, self.rdma == Rdma::ReadWrite);
        Overrides {
            link_gbps: Some(self.link_gbps),
            rdma_read: Some(read),
            max_rdma_size: Some(if read { 1 << 30 } else { 0 }),
            max_wr_rdma_sges: Some(u16::from(read)),
            rdma_write: Some(write),
            unsolicited_write_recv: Some(write),
            // Nitro v4 and newer have them according to AWS's network-flow-monitor-agent, PR 110. EFA's first version is older.
            network_stats: Some(self.profile > Profile::Efa0),
            ..self.measured()
        }
    }

    /// Attributes that users of an EC2 instance have published, as of November 2026. They are taken for those of all devices with
    /// the same PCI id, and of newer ones if nothing is known of these.
    ///
    /// | attribute | instance | source |
    /// |---|---|---|
    /// | regions of 96 GiB, 262,144 regions, 1,024 address handles, pages of 4 KiB to 2 GiB | p5 | openucx/ucx PR 10069 |
    /// | regions of 192 GiB, about 24 Mi pages in all | p5en | kvcache-ai/Mooncake PR 1912 |
    /// | 524,288 regions | g7e.12xlarge | `ibv_devinfo` |
    /// | 512 event counters up to 2^31 - 1, not of reads by peers | p5en, not p5 | measured on 2026-08-19; p6: aws/aws-ofi-nccl PR 1371 |
    fn measured(&self) -> Overrides {
        const MI: u32 = 1 << 20;
        let (max_mr, max_mr_pages) = match self.profile {
            Profile::Efa0 => return Overrides::default(),
            Profile::Efa1 => (1 << 18, 24 * MI),
            Profile::Efa2 => (1 << 18, 48 * MI),
            Profile::Efa3 | Profile::Efa4 => (1 << 19, 48 * MI),
        };
        let limits = Overrides {
            max_mr: Some(max_mr),
            max_mr_pages: Some(max_mr_pages),
            max_total_pages: Some(u64::from(24 * MI)),
            max_ah: Some(1024),
            page_size_cap: Some((1 << 32) - (1 << 12)),
            ..Overrides::default()
        };
        if self.profile < Profile::Efa2 {
            return limits;
        }
        let features = Config::new(self.profile, 0).attributes().supported_features;
        let events = QpEvents {
            remote_read_comp: false,
            ..QpEvents::from_raw(QpEvents::DEFINED)
        };
        Overrides {
            supported_features: Some(features | FeatureId::QueueAttr2.mask()),
            event_counters: Some(true),
            max_event_counters: Some(512),
            event_counter_max_val: Some(i32::MAX as u64),
            event_counter_events: Some(events.into_raw()),
            ..limits
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn devices(instance: &Instance) -> impl Iterator<Item = Config> {
        (0..instance.devices).map(|number| Config {
            overrides: instance.overrides(),
            ..Config::new(instance.profile, number)
        })
    }

    #[test]
    fn each_is_found_by_its_name() {
        for instance in Instance::ALL {
            assert_eq!(Instance::find(instance.name), Some(instance));
        }
        let names: BTreeSet<_> = Instance::ALL.iter().map(|instance| instance.name).collect();
        assert_eq!(names.len(), Instance::ALL.len());
        assert_eq!(Instance::find("p5"), None);
    }

    #[test]
    fn devices_match_the_table() {
        for instance in Instance::ALL {
            assert!(instance.devices > 0, "{}", instance.name);
            for config in devices(instance) {
                let attributes = config.attributes();
                assert_eq!(
                    attributes.link_gbps, instance.link_gbps,
                    "{}",
                    instance.name
                );
                let rdma = match (attributes.rdma_read, attributes.rdma_write) {
                    (false, false) => Rdma::None,
                    (true, false) => Rdma::Read,
                    (true, true) => Rdma::ReadWrite,
                    (false, true) => panic!("{} can only write", instance.name),
                };
                assert_eq!(rdma, instance.rdma, "{}", instance.name);
                let is_first = instance.profile == Profile::Efa0;
                assert_eq!(attributes.network_stats, !is_first);
                let needed = [attributes.max_rdma_size, attributes.max_wr_rdma_sges.into()];
                assert_eq!(needed.map(|limit| limit > 0), [attributes.rdma_read; 2]);
                assert_eq!(attributes.unsolicited_write_recv, attributes.rdma_write);
            }
        }
    }

    #[test]
    fn limits_are_those_that_were_published() {
        for (name, max_mr, gib, counters) in [
            ("p5.48xlarge", 262_144, 96, (0, 0, 0)),
            ("p5en.48xlarge", 262_144, 192, (512, 2_147_483_647, 0x2ff)),
            ("g7e.12xlarge", 524_288, 192, (512, 2_147_483_647, 0x2ff)),
        ] {
            let instance = Instance::find(name).unwrap();
            let own = devices(instance).next().unwrap().attributes();
            assert_eq!((own.max_mr, own.max_ah), (max_mr, 1024), "{name}");
            assert_eq!(own.max_mr_pages >> 18, gib, "{name}");
            assert_eq!(own.page_size_cap, 0xffff_f000, "{name}");
            let caps = own.queue_attr_2();
            let events = caps.supported_event_counter_qp_events.into_raw();
            let found = (caps.max_event_counters, caps.event_counter_max_val, events);
            assert_eq!(found, counters, "{name}");
            assert_eq!(own.event_counters, counters.0 > 0, "{name}");
            assert!(!own.event_counters || own.supports(FeatureId::QueueAttr2));
            assert_eq!(own.wide_wqe(), instance.profile == Profile::Efa3);
        }
    }

    #[test]
    fn devices_of_an_instance_differ() {
        for instance in Instance::ALL {
            let guids: BTreeSet<_> = devices(instance)
                .map(|config| config.attributes().guid)
                .collect();
            assert_eq!(guids.len(), instance.devices as usize, "{}", instance.name);
        }
    }
}
