// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! EFA devices of EC2 instances.

use crate::{Overrides, Profile};

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
    /// Documentation/emulator.md lists the sources of the figures. AWS does not document PCI ids. Those of p4d, p4de and
    /// p5.48xlarge were observed; all others are guesses from the version of EFA.
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
            ..Overrides::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Config;

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
            }
        }
    }

    #[test]
    fn rdma_has_the_attributes_that_it_needs() {
        for instance in Instance::ALL {
            let config = devices(instance).next().unwrap();
            let attributes = config.attributes();
            let (read, write) = (attributes.rdma_read, attributes.rdma_write);
            assert_eq!(attributes.max_rdma_size > 0, read, "{}", instance.name);
            assert_eq!(attributes.max_wr_rdma_sges > 0, read, "{}", instance.name);
            assert_eq!(
                attributes.unsolicited_write_recv, write,
                "{}",
                instance.name
            );
        }
    }

    #[test]
    fn nothing_else_differs_from_the_profile() {
        for instance in Instance::ALL {
            let own = devices(instance).next().unwrap().attributes();
            let profile = Config::new(instance.profile, 0).attributes();
            let mut same = own.clone();
            same.link_gbps = profile.link_gbps;
            same.rdma_read = profile.rdma_read;
            same.max_rdma_size = profile.max_rdma_size;
            same.max_wr_rdma_sges = profile.max_wr_rdma_sges;
            same.rdma_write = profile.rdma_write;
            same.unsolicited_write_recv = profile.unsolicited_write_recv;
            same.network_stats = profile.network_stats;
            assert_eq!(same, profile, "{}", instance.name);
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
