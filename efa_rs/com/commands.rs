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
use crate::hw::{
    admin::{
        cq::{
            CreateCq,
            CreateCqResponse,
            DestroyCq, //
        },
        AcqEntry,
        Command,
        NoData,
        Response, //
    },
    features::{
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
        let number = usize::from(created.cq_idx);
        let mut numbers = self.cq_numbers.lock();
        if numbers.next_zero_bit(number) != Some(number) {
            drop(numbers);
            // The command to destroy it would destroy the other queue with this number.
            let what = "the number of a completion queue for another one";
            return Err(self.report_invalid(what, created.cq_idx.into()));
        }
        numbers.set_bit(number);
        Ok(created)
    }

    pub(crate) fn destroy_cq(&self, cq_idx: u16) -> Result<NoData, CommandError> {
        // Released first: after the command, the device may reuse the number.
        self.cq_numbers.lock().clear_bit(cq_idx.into());
        let result = self.execute(&DestroyCq { cq_idx });
        if result.is_err() {
            self.cq_numbers.lock().set_bit(cq_idx.into());
        }
        result
    }

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

    /// Sets a feature, whose data is in `command` or in a control buffer.
    pub(super) fn set_feature(
        &self,
        feature: FeatureId,
        mut command: SetFeature,
    ) -> Result<(), CommandError> {
        command.feature_id = feature.into();
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
