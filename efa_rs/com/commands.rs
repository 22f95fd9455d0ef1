// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Admin commands with their parameters and results as types.

use kernel::prelude::*;

use super::{
    admin_queue::AdminQueue,
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
                CreateEqCaps, //
            },
            event_counter::{
                AttachEventCounter,
                AttachType,
                CreateEventCounter,
                DestroyEventCounter,
                DetachEventCounter,
                ModifyEventCounter,
                ModifyOp,
                QpEvents, //
            },
            mr::{
                AllocMr,
                AllocMrResponse,
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
            AcqEntry,
            AqFlags,
            Command,
            CtrlBuffInfo,
            Response, //
        },
        eq::Eqe,
        features::{
            AenqConfig,
            EqEvents,
            Feature,
            FeatureId,
            GetFeature,
            GetFeatureResponse,
            SetFeature, //
        },
        stats::{
            GetStats,
            GetStatsResponse,
            StatsScope,
            StatsType, //
        },
    },
    sys::dma::Entries,
};

impl AdminQueue<'_> {
    /// Allocates a protection domain and returns its number.
    pub(crate) fn alloc_pd(&self) -> Result<u16, CommandError> {
        self.execute(&AllocPd {}).map(|response| response.pd)
    }

    /// Frees a protection domain.
    pub(crate) fn dealloc_pd(&self, pd: u16) -> Result<(), CommandError> {
        self.execute(&DeallocPd { pd }).map(|_| ())
    }

    /// Allocates a user access region and returns its number.
    pub(crate) fn alloc_uar(&self) -> Result<u16, CommandError> {
        self.execute(&AllocUar {}).map(|response| response.uar)
    }

    /// Frees a user access region.
    pub(crate) fn dealloc_uar(&self, uar: u16) -> Result<(), CommandError> {
        self.execute(&DeallocUar { uar }).map(|_| ())
    }

    /// Creates an address handle for the peer at `dest_addr` and returns its number.
    pub(crate) fn create_ah(&self, pd: u16, dest_addr: [u8; 16]) -> Result<u16, CommandError> {
        self.execute(&CreateAh { dest_addr, pd })
            .map(|response| response.ah)
    }

    /// Destroys an address handle.
    pub(crate) fn destroy_ah(&self, pd: u16, ah: u16) -> Result<(), CommandError> {
        self.execute(&DestroyAh { ah, pd }).map(|_| ())
    }

    /// Creates a completion queue, whose number no other one has.
    pub(crate) fn create_cq(&self, command: &CreateCq) -> Result<CreateCqResponse, CommandError> {
        let created = self.execute(command)?;
        if !self.cq_numbers.take(created.cq_idx) {
            // It can't be destroyed, as that would destroy the other one.
            let number = created.cq_idx.into();
            return Err(self.distrust("the number of a completion queue for another one", number));
        }
        Ok(created)
    }

    /// Destroys a completion queue.
    pub(crate) fn destroy_cq(&self, cq_idx: u16) -> Result<(), CommandError> {
        // First, as the device may give the number to the next one after that.
        self.cq_numbers.give_back(cq_idx);
        let result = self.execute(&DestroyCq { cq_idx });
        if result.is_err() {
            self.cq_numbers.take(cq_idx);
        }
        result.map(|_| ())
    }

    /// Creates a queue pair.
    pub(crate) fn create_qp(&self, command: &CreateQp) -> Result<CreateQpResponse, CommandError> {
        self.execute(command)
    }

    /// Modifies a queue pair.
    pub(crate) fn modify_qp(&self, command: &ModifyQp) -> Result<(), CommandError> {
        self.execute(command).map(|_| ())
    }

    /// Asks for the state of a queue pair.
    pub(crate) fn query_qp(&self, qp_handle: u32) -> Result<QueryQpResponse, CommandError> {
        self.execute(&QueryQp { qp_handle })
    }

    /// Destroys a queue pair.
    pub(crate) fn destroy_qp(&self, qp_handle: u32) -> Result<(), CommandError> {
        self.execute(&DestroyQp { qp_handle }).map(|_| ())
    }

    /// Creates an event counter with its value at this address, and returns its handle.
    pub(crate) fn create_event_counter(&self, uar: u16, paddr: u64) -> Result<u32, CommandError> {
        self.execute(&CreateEventCounter { uar, paddr })
            .map(|response| response.cntr_handle)
    }

    /// Destroys an event counter.
    pub(crate) fn destroy_event_counter(&self, cntr_handle: u32) -> Result<(), CommandError> {
        self.execute(&DestroyEventCounter { cntr_handle })
            .map(|_| ())
    }

    /// Has an event counter count events of a queue pair.
    pub(crate) fn attach_event_counter(
        &self,
        cntr_handle: u32,
        qp_handle: u32,
        events: QpEvents,
    ) -> Result<(), CommandError> {
        let command = AttachEventCounter {
            cntr_handle,
            attach_type: AttachType::QpEvents.into(),
            qp_handle,
            events,
        };
        self.execute(&command).map(|_| ())
    }

    /// Has an event counter not count events of a queue pair any more.
    pub(crate) fn detach_event_counter(
        &self,
        cntr_handle: u32,
        qp_handle: u32,
        events: QpEvents,
    ) -> Result<(), CommandError> {
        let command = DetachEventCounter {
            cntr_handle,
            attach_type: AttachType::QpEvents.into(),
            qp_handle,
            events,
        };
        self.execute(&command).map(|_| ())
    }

    /// Changes the value of an event counter.
    pub(crate) fn modify_event_counter(
        &self,
        cntr_handle: u32,
        operation: ModifyOp,
        value: u64,
    ) -> Result<(), CommandError> {
        let command = ModifyEventCounter {
            cntr_handle,
            operation: operation.into(),
            value,
        };
        self.execute(&command).map(|_| ())
    }

    /// Registers a memory region.
    pub(crate) fn register_mr(&self, command: &RegMr) -> Result<RegMrResponse, CommandError> {
        self.execute(command)
    }

    /// Creates a memory region that gets its pages by work requests, at most so many.
    pub(crate) fn alloc_mr(
        &self,
        pd: u16,
        max_pages: u32,
    ) -> Result<AllocMrResponse, CommandError> {
        self.execute(&AllocMr { pd, max_pages })
    }

    /// Removes a memory region.
    pub(crate) fn deregister_mr(&self, l_key: u32) -> Result<(), CommandError> {
        self.execute(&DeregMr { l_key }).map(|_| ())
    }

    /// Creates an event queue for completions and returns its number.
    pub(super) fn create_eq(
        &self,
        entries: &Entries<'_, { Eqe::SIZE }>,
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
        self.execute(&command).map(|response| response.eqn)
    }

    /// Reads a feature.
    #[inline]
    pub(super) fn get_feature<F: Feature>(&self) -> Result<F, CommandError> {
        let response = self.read_feature(F::ID)?;
        Ok(F::from_response(&GetFeatureResponse::from_entry(&response)))
    }

    #[inline(never)]
    fn read_feature(&self, feature: FeatureId) -> Result<AcqEntry, CommandError> {
        let command = GetFeature {
            feature_id: feature.into(),
            ..GetFeature::default()
        };
        self.run(&command.to_request(), GetFeature::OPCODE, feature.name())
    }

    /// Sets which groups of asynchronous events the device reports.
    pub(super) fn set_aenq_groups(&self, groups: u32) -> Result<(), CommandError> {
        let config = AenqConfig {
            enabled_groups: groups,
            ..AenqConfig::default()
        };
        let feature = FeatureId::AenqConfig;
        let command = SetFeature {
            feature_id: feature.into(),
            data: config.into_setting(),
            ..SetFeature::default()
        };
        self.run(&command.to_request(), SetFeature::OPCODE, feature.name())
            .map(|_| ())
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
        self.run(&command.to_request(), SetFeature::OPCODE, feature.name())
            .map(|_| ())
    }

    /// Reads sets of counters and passes each to `take`.
    ///
    /// The commands go out together, so that it takes one round trip, or one timeout. If any fails, so
    /// does the whole.
    pub(crate) fn get_stats(
        &self,
        sets: &[StatsType],
        mut take: impl FnMut(StatsType, &GetStatsResponse),
    ) -> Result<(), CommandError> {
        let mut pending = [const { None }; StatsType::ALL.len()];

        for (pending, set) in pending.iter_mut().zip(sets) {
            let command = GetStats {
                stats_type: (*set).into(),
                scope: StatsScope::All.into(),
                ..GetStats::default()
            };
            *pending = Some(self.submit(&command.to_request(), GetStats::OPCODE, set.name())?);
        }
        for (pending, set) in pending.iter_mut().zip(sets) {
            if let Some(pending) = pending.take() {
                take(*set, &GetStatsResponse::from_entry(&pending.wait()?));
            }
        }
        Ok(())
    }
}
