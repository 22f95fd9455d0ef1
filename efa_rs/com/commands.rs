// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Admin commands with their parameters and results as types.

use kernel::{
    prelude::*,
    time::Instant, //
};

use super::{
    admin_queue::AdminQueue,
    error::CommandError, //
};
use crate::{
    hw::{
        admin::{
            cq::{
                CreateCq,
                CreateCqResponse,
                DestroyCq, //
            },
            eq::{
                CreateEq,
                CreateEqCaps, //
            },
            AcqEntry,
            AqFlags,
            Command,
            CtrlBuffInfo,
            NoData,
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
    /// Executes a command and returns its response.
    ///
    /// # Errors
    ///
    /// Those of [`Self::run`].
    #[inline]
    pub(crate) fn execute<C: Command>(&self, command: &C) -> Result<C::Response, CommandError> {
        self.execute_named(command, "")
    }

    /// Executes a command and returns its response. `subject` follows the opcode in messages.
    ///
    /// # Errors
    ///
    /// Those of [`Self::run`].
    #[inline]
    pub(super) fn execute_named<C: Command>(
        &self,
        command: &C,
        subject: &'static str,
    ) -> Result<C::Response, CommandError> {
        let mut entry = [0; size_of::<AcqEntry>()];
        self.run(&command.to_request(), C::OPCODE, subject, &mut entry)?;
        Ok(C::Response::from_entry(&entry))
    }

    /// Creates a completion queue. Rejects a number that another queue has.
    pub(crate) fn create_cq(&self, command: &CreateCq) -> Result<CreateCqResponse, CommandError> {
        let created = self.execute(command)?;
        if !self.cq_numbers.take(created.cq_idx) {
            // The command to destroy it would destroy the other queue with this number.
            let number = created.cq_idx.into();
            return Err(
                self.report_invalid("the number of a completion queue for another one", number)
            );
        }
        Ok(created)
    }

    /// Destroys a completion queue.
    pub(crate) fn destroy_cq(&self, cq_idx: u16) -> Result<NoData, CommandError> {
        // Released first: after the command, the device may reuse the number.
        self.cq_numbers.release(cq_idx);
        let result = self.execute(&DestroyCq { cq_idx });
        if result.is_err() {
            self.cq_numbers.take(cq_idx);
        }
        result
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
        Ok(F::from_response(&response))
    }

    #[inline(never)]
    fn read_feature(&self, feature: FeatureId) -> Result<GetFeatureResponse, CommandError> {
        let command = GetFeature {
            feature_id: feature.into(),
            ..GetFeature::default()
        };
        self.execute_named(&command, feature.name())
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
        self.execute_named(&command, feature.name()).map(|_| ())
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
        self.execute_named(&command, feature.name()).map(|_| ())
    }

    /// Reads sets of counters and passes each to `take`.
    ///
    /// All commands are submitted before the first wait, so that they take one round trip or one
    /// timeout. The function fails if any command fails.
    pub(crate) fn get_stats(
        &self,
        sets: &[StatsType],
        mut take: impl FnMut(StatsType, &GetStatsResponse),
    ) -> Result<(), CommandError> {
        let _several = self.several.lock();
        let mut started = [const { None }; StatsType::ALL.len()];
        let mut entry = [0; size_of::<AcqEntry>()];
        let mut result = Ok(());

        for (started, set) in started.iter_mut().zip(sets) {
            let command = GetStats {
                stats_type: (*set).into(),
                scope: StatsScope::All.into(),
                ..GetStats::default()
            };
            result = self
                .begin(&command.to_request(), GetStats::OPCODE, set.name())
                .map(|command| *started = Some((command, Instant::now())));
            if result.is_err() {
                break;
            }
        }
        // After a failure, the others are waited for, too: they have slots.
        for (started, set) in started.iter().zip(sets) {
            if let Some((command, submitted)) = started {
                let timeout = self.time_left(*submitted);
                result = result.and(self.finish(command, timeout, &mut entry));
                if result.is_ok() {
                    take(*set, &GetStatsResponse::from_entry(&entry));
                }
            }
        }
        result
    }
}
