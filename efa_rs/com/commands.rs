// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Admin commands with their parameters and results as types.
//!
//! A command that the device refuses is logged here, where it is known what it was for; that the
//! device does not answer, or that the queue is closed, the queue itself has logged.

use kernel::{
    fmt,
    prelude::*, //
};

use super::{
    admin_queue::{
        AdminQueue,
        Pending, //
    },
    error::CommandError, //
};
use crate::{
    hw::{
        admin::{
            ah::{
                CreateAh,
                DestroyAh, //
            },
            cq::{
                CreateCq,
                CreateCqResponse,
                DestroyCq, //
            },
            eq::{
                CreateEq,
                CreateEqCaps,
                DestroyEq, //
            },
            mr::{
                DeregMr,
                RegMr,
                RegMrResponse, //
            },
            pd::{
                AllocPd,
                DeallocPd, //
            },
            qp::{
                CreateQp,
                CreateQpResponse,
                DestroyQp,
                ModifyQp,
                QueryQp,
                QueryQpResponse, //
            },
            uar::{
                AllocUar,
                DeallocUar, //
            },
            AqFlags, CtrlBuffInfo,
        },
        eq::Eqe,
        features::{
            AenqConfig,
            EqEvents,
            Feature,
            FeatureId,
            GetFeature,
            SetFeature, //
        },
        stats::{
            BasicStats,
            GetStats,
            GetStatsResponse,
            MessagesStats,
            NetworkStats,
            RdmaReadStats,
            RdmaWriteStats,
            Stats,
            StatsScope, //
        },
    },
    sys::dma::Entries,
};

/// All counters of the device.
#[derive(Default)]
pub(crate) struct Statistics {
    /// Traffic.
    pub(crate) basic: BasicStats,
    /// Sends and receives.
    pub(crate) messages: MessagesStats,
    /// RDMA reads.
    pub(crate) rdma_read: RdmaReadStats,
    /// RDMA writes, if the device has them.
    pub(crate) rdma_write: Option<RdmaWriteStats>,
    /// The network.
    pub(crate) network: NetworkStats,
}

impl AdminQueue {
    /// Logs why a command failed, unless the queue has done so.
    fn report(&self, what: fmt::Arguments<'_>, error: CommandError) {
        if matches!(error, CommandError::Status(_)) {
            self.complain(fmt!("{} failed: {}", what, error));
        }
    }

    /// Allocates a protection domain and returns its number.
    pub(crate) fn alloc_pd(&self) -> Result<u16, CommandError> {
        self.execute(&AllocPd {})
            .map(|response| response.pd)
            .inspect_err(|error| self.report(fmt!("Allocating a protection domain"), *error))
    }

    /// Frees a protection domain.
    pub(crate) fn dealloc_pd(&self, pd: u16) -> Result<(), CommandError> {
        self.execute(&DeallocPd { pd })
            .map(|_| ())
            .inspect_err(|error| self.report(fmt!("Freeing protection domain {}", pd), *error))
    }

    /// Allocates a user access region and returns its number.
    pub(crate) fn alloc_uar(&self) -> Result<u16, CommandError> {
        self.execute(&AllocUar {})
            .map(|response| response.uar)
            .inspect_err(|error| self.report(fmt!("Allocating a user access region"), *error))
    }

    /// Frees a user access region.
    pub(crate) fn dealloc_uar(&self, uar: u16) -> Result<(), CommandError> {
        self.execute(&DeallocUar { uar })
            .map(|_| ())
            .inspect_err(|error| self.report(fmt!("Freeing user access region {}", uar), *error))
    }

    /// Creates an address handle for the peer at `dest_addr` and returns its number.
    pub(crate) fn create_ah(&self, pd: u16, dest_addr: [u8; 16]) -> Result<u16, CommandError> {
        self.execute(&CreateAh { dest_addr, pd })
            .map(|response| response.ah)
            .inspect_err(|error| self.report(fmt!("Creating an address handle"), *error))
    }

    /// Destroys an address handle.
    pub(crate) fn destroy_ah(&self, pd: u16, ah: u16) -> Result<(), CommandError> {
        self.execute(&DestroyAh { ah, pd })
            .map(|_| ())
            .inspect_err(|error| self.report(fmt!("Destroying address handle {}", ah), *error))
    }

    /// Creates a completion queue.
    pub(crate) fn create_cq(&self, command: &CreateCq) -> Result<CreateCqResponse, CommandError> {
        self.execute(command)
            .inspect_err(|error| self.report(fmt!("Creating a completion queue"), *error))
    }

    /// Destroys a completion queue.
    pub(crate) fn destroy_cq(&self, cq_idx: u16) -> Result<(), CommandError> {
        self.execute(&DestroyCq { cq_idx })
            .map(|_| ())
            .inspect_err(|error| {
                self.report(fmt!("Destroying completion queue {}", cq_idx), *error)
            })
    }

    /// Creates a queue pair.
    pub(crate) fn create_qp(&self, command: &CreateQp) -> Result<CreateQpResponse, CommandError> {
        self.execute(command)
            .inspect_err(|error| self.report(fmt!("Creating a queue pair"), *error))
    }

    /// Modifies a queue pair.
    pub(crate) fn modify_qp(&self, command: &ModifyQp) -> Result<(), CommandError> {
        self.execute(command).map(|_| ()).inspect_err(|error| {
            self.report(
                fmt!("Modifying queue pair {:#x}", command.qp_handle),
                *error,
            )
        })
    }

    /// Asks for the state of a queue pair.
    pub(crate) fn query_qp(&self, qp_handle: u32) -> Result<QueryQpResponse, CommandError> {
        self.execute(&QueryQp { qp_handle })
            .inspect_err(|error| self.report(fmt!("Querying queue pair {:#x}", qp_handle), *error))
    }

    /// Destroys a queue pair.
    pub(crate) fn destroy_qp(&self, qp_handle: u32) -> Result<(), CommandError> {
        self.execute(&DestroyQp { qp_handle })
            .map(|_| ())
            .inspect_err(|error| {
                self.report(fmt!("Destroying queue pair {:#x}", qp_handle), *error)
            })
    }

    /// Registers a memory region.
    pub(crate) fn register_mr(&self, command: &RegMr) -> Result<RegMrResponse, CommandError> {
        self.execute(command)
            .inspect_err(|error| self.report(fmt!("Registering a memory region"), *error))
    }

    /// Removes a memory region.
    pub(crate) fn deregister_mr(&self, l_key: u32) -> Result<(), CommandError> {
        self.execute(&DeregMr { l_key })
            .map(|_| ())
            .inspect_err(|error| self.report(fmt!("Removing memory region {:#x}", l_key), *error))
    }

    /// Creates an event queue for completions and returns its number.
    pub(super) fn create_eq(
        &self,
        entries: &Entries<{ Eqe::SIZE }>,
        msix_vector: u8,
    ) -> Result<u16, CommandError> {
        let command = CreateEq {
            // CAST: The depth of an event queue is at most 2^15.
            depth: entries.count() as u16,
            msix_vector,
            caps: CreateEqCaps {
                entry_size_words: (Eqe::SIZE / 4) as u8,
            },
            base_address: entries.dma_address(),
            events: EqEvents { completion: true },
        };
        self.execute(&command)
            .map(|response| response.eqn)
            .inspect_err(|error| {
                self.report(
                    fmt!("Creating an event queue on vector {}", msix_vector),
                    *error,
                )
            })
    }

    /// Destroys an event queue.
    pub(super) fn destroy_eq(&self, eqn: u16) -> Result<(), CommandError> {
        self.execute(&DestroyEq { eqn })
            .map(|_| ())
            .inspect_err(|error| self.report(fmt!("Destroying event queue {}", eqn), *error))
    }

    /// Reads a feature.
    pub(super) fn get_feature<F: Feature>(&self) -> Result<F, CommandError> {
        let command = GetFeature {
            feature_id: F::ID.into(),
            ..GetFeature::default()
        };
        self.execute(&command)
            .map(|response| F::from_response(&response))
            .inspect_err(|error| self.report(fmt!("Reading feature {}", F::ID.name()), *error))
    }

    /// Sets which groups of asynchronous events the device reports.
    pub(super) fn set_aenq_groups(&self, groups: u32) -> Result<(), CommandError> {
        let config = AenqConfig {
            enabled_groups: groups,
            ..AenqConfig::default()
        };
        let command = SetFeature {
            feature_id: FeatureId::AenqConfig.into(),
            data: config.into_setting(),
            ..SetFeature::default()
        };
        self.execute(&command).map(|_| ()).inspect_err(|error| {
            self.report(
                fmt!("Setting feature {}", FeatureId::AenqConfig.name()),
                *error,
            )
        })
    }

    /// Sets the feature whose data is in a control buffer of `length` bytes at `address`.
    pub(super) fn set_feature_from_buffer(
        &self,
        feature: FeatureId,
        address: u64,
        length: u32,
    ) -> Result<(), CommandError> {
        let command = SetFeature {
            control: AqFlags {
                ctrl_data: true,
                ..AqFlags::default()
            },
            control_buffer: CtrlBuffInfo { length, address },
            feature_id: feature.into(),
            ..SetFeature::default()
        };
        self.execute(&command)
            .map(|_| ())
            .inspect_err(|error| self.report(fmt!("Setting feature {}", feature.name()), *error))
    }

    /// Starts to read a set of counters.
    fn submit_get_stats<S: Stats>(&self) -> Result<Pending<'_, GetStatsResponse>, CommandError> {
        self.submit(&GetStats {
            stats_type: S::TYPE.into(),
            scope: StatsScope::All.into(),
            ..GetStats::default()
        })
    }

    /// Waits for a set of counters.
    fn wait_for_stats<S: Stats>(
        &self,
        pending: Pending<'_, GetStatsResponse>,
    ) -> Result<S, CommandError> {
        pending
            .wait()
            .map(|response| S::from_response(&response))
            .inspect_err(|error| self.report(fmt!("Reading statistics {}", S::TYPE.name()), *error))
    }

    /// Reads all counters, those of RDMA writes only if `with_rdma_write`.
    ///
    /// The commands go out together, so that it takes one round trip. If any fails, so does the
    /// whole.
    pub(crate) fn statistics(&self, with_rdma_write: bool) -> Result<Statistics, CommandError> {
        let basic = self.submit_get_stats::<BasicStats>()?;
        let messages = self.submit_get_stats::<MessagesStats>()?;
        let rdma_read = self.submit_get_stats::<RdmaReadStats>()?;
        let rdma_write = if with_rdma_write {
            Some(self.submit_get_stats::<RdmaWriteStats>()?)
        } else {
            None
        };
        let network = self.submit_get_stats::<NetworkStats>()?;

        Ok(Statistics {
            basic: self.wait_for_stats(basic)?,
            messages: self.wait_for_stats(messages)?,
            rdma_read: self.wait_for_stats(rdma_read)?,
            rdma_write: rdma_write
                .map(|pending| self.wait_for_stats(pending))
                .transpose()?,
            network: self.wait_for_stats(network)?,
        })
    }
}
