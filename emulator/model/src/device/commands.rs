// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Fetching, execution and completion of admin commands.

use std::time::Duration;

use efa_hw::{
    admin::{AcqEntry, AqEntry, Command, Opcode},
    features::GetFeature,
    regs::Version,
    stats::GetStats,
};

use super::Device;
use crate::{
    Host, ProtocolError, Then, TraceEvent,
    admin::{
        commands::{self, Execution, Parts},
        late::Answer,
        queue::{Executing, Pending},
    },
    faults::when::Occasion,
    resources::{failure::Failure, page_list::PAGES_PER_CALL},
};

/// Limit on commands executed in one call: as many as drivers keep in flight. The device requests to be run again at once for
/// the rest.
const COMMANDS_PER_CALL: u32 = 32;

/// Number of flushed work requests after which a call executes no further command. One command flushes at most the two queues
/// of one queue pair.
const FLUSHED_PER_CALL: u32 = 4096;

/// First version of the interface with checksums in completions.
const CHECKSUM_VERSION: Version = Version { major: 0, minor: 2 };

/// A command, and the time of its doorbell, if known.
type Submitted = (AqEntry, Option<Duration>);

impl Device {
    /// Executes submitted commands up to the limits of one call. Returns whether more are left.
    pub(super) fn execute_commands(&mut self, host: &mut dyn Host, now: Duration) -> bool {
        let mut pages = PAGES_PER_CALL;
        // Work requests that programs caused to be flushed since the last call do not count.
        self.data.take_flushed();
        let mut flushed = 0;
        for _ in 0..COMMANDS_PER_CALL {
            if pages == 0 || flushed >= FLUSHED_PER_CALL {
                break;
            }
            if !self.is_alive() {
                return false;
            }
            if let Some(executing) = self.admin.executing.take() {
                self.resume(host, now, executing, &mut pages);
                continue;
            }
            let Some(ring) = self
                .admin
                .submission
                .as_mut()
                .filter(|ring| ring.waiting() > 0)
            else {
                return false;
            };
            let fetched = ring.fetch(host);
            let rung = self.admin.take_rung();
            match fetched {
                Ok((entry, true)) => self.execute(host, now, (entry, rung), &mut pages),
                Ok((entry, false)) => {
                    let command_id = entry.header().command_id.id;
                    self.errors
                        .report(host, ProtocolError::Phase { command_id });
                }
                Err(error) => self.errors.report(host, error.into()),
            }
            flushed += self.data.take_flushed();
        }
        self.admin.executing.is_some() || self.admin.waiting() > 0
    }

    /// Executes a command, or starts one that takes several calls.
    fn execute(
        &mut self,
        host: &mut dyn Host,
        now: Duration,
        submitted: Submitted,
        pages: &mut u32,
    ) {
        let (command, _) = submitted;
        let fault = self.faults.hit(occasion(&command));
        if fault.as_ref().is_some_and(Then::is_fatal) {
            let in_flight = self.admin.in_flight() + 1;
            host.trace(&TraceEvent::Command {
                command,
                completion: None,
                in_flight,
                injected: true,
            });
            self.apply(host, now, fault.as_ref());
            return;
        }
        self.stale = false;
        let injected = fault
            .as_ref()
            .and_then(|fault| fault.status)
            .filter(|status| status.code() != 0);
        if let Some(status) = injected {
            self.executed(now, submitted, fault, Err(status.code()));
            return;
        }
        let parts = Parts {
            bars: &self.bars,
            vectors: self.config.vectors,
            features: &mut self.features,
            data: &mut self.data,
        };
        let (execution, error) = commands::execute(parts, host, &command, pages);
        self.progressed(host, now, submitted, fault, execution);
        if let Some(error) = error {
            self.errors.report(host, error);
        }
    }

    /// Resumes a command that takes several calls.
    fn resume(
        &mut self,
        host: &mut dyn Host,
        now: Duration,
        executing: Executing,
        pages: &mut u32,
    ) {
        let Executing {
            command,
            rung,
            fault,
            registration,
        } = executing;
        let execution = commands::resume(&mut self.data, host, registration, pages);
        self.progressed(host, now, (command, rung), fault, execution);
    }

    /// Keeps an unfinished command for the next call, or queues the completion of a finished one.
    fn progressed(
        &mut self,
        host: &mut dyn Host,
        now: Duration,
        submitted: Submitted,
        fault: Option<Then>,
        execution: Execution,
    ) {
        let result = match execution {
            Execution::Done(result) => result,
            Execution::Unfinished(registration) => {
                let (command, rung) = submitted;
                self.admin.executing = Some(Executing {
                    command,
                    rung,
                    fault,
                    registration,
                });
                return;
            }
        };
        let result = result.map_err(|failure| {
            if let Failure::Dma(error) = failure {
                self.errors.report(host, error.into());
            }
            failure.status().into()
        });
        self.report_errors(host);
        self.executed(now, submitted, fault, result);
    }

    /// Queues the completion of a command that succeeded with a response, or failed with a status.
    fn executed(
        &mut self,
        now: Duration,
        (command, rung): Submitted,
        fault: Option<Then>,
        result: Result<AcqEntry, u8>,
    ) {
        let (status, response) = match result {
            Ok(response) => (0, response),
            Err(status) => (status, [0; 64]),
        };
        let delay = fault.as_ref().and_then(Then::delay).unwrap_or_default();
        self.admin.executed(
            now.saturating_add(delay),
            self.data.late.number(),
            Pending {
                command,
                rung,
                status,
                response,
                fault,
            },
        );
    }

    /// Completes the commands that are due.
    pub(super) fn complete_commands(&mut self, host: &mut dyn Host, now: Duration) {
        let mut interrupt = false;
        loop {
            let in_flight = self.admin.in_flight();
            let Some(pending) = self.admin.take_due(now) else {
                break;
            };
            if let Some(after_commands) = pending.fault.as_ref().and_then(Then::late) {
                self.trace_command(host, &pending, None, in_flight);
                let answer = Answer::Completion(Box::new(pending));
                self.late.keep(answer, after_commands);
                continue;
            }
            let silent = pending.fault.as_ref().is_some_and(|fault| fault.silence);
            if silent {
                self.trace_command(host, &pending, None, in_flight);
                continue;
            }
            interrupt |= self.write_completion(host, &pending, in_flight);
            self.late.completed();
        }
        let (completions, events) = (self.admin.place().is_some(), self.aenq.place().is_some());
        while let Some(answer) = self.late.take_due(completions, events) {
            match answer {
                Answer::Completion(pending) => {
                    let in_flight = self.admin.in_flight();
                    interrupt |= self.write_completion(host, &pending, in_flight);
                }
                Answer::Event { group, syndrome } => self.push_event(host, now, group, syndrome),
            }
        }
        if interrupt {
            if let Some(ring) = &self.admin.completion {
                self.interrupts.raise(host, ring.vector());
            }
        }
    }

    /// Writes the completion of a command, and returns whether to raise an interrupt.
    fn write_completion(
        &mut self,
        host: &mut dyn Host,
        pending: &Pending,
        in_flight: usize,
    ) -> bool {
        let with_checksum = self.version() >= CHECKSUM_VERSION;
        let completion = self.admin.complete(host, pending, with_checksum);
        let completion = completion.map_err(|error| self.errors.report(host, error.into()));
        let now = host.now();
        let time = pending
            .rung
            .zip(now)
            .map(|(rung, now)| now.saturating_sub(rung));
        let opcode = pending.command.request().opcode;
        self.data
            .times
            .count_command(opcode, pending.status == 0, time);
        self.trace_command(host, pending, completion.ok(), in_flight);
        !pending
            .fault
            .as_ref()
            .is_some_and(|fault| fault.no_interrupt)
    }

    fn trace_command(
        &self,
        host: &mut dyn Host,
        pending: &Pending,
        completion: Option<AcqEntry>,
        in_flight: usize,
    ) {
        host.trace(&TraceEvent::Command {
            command: pending.command,
            completion,
            in_flight,
            injected: pending.fault.is_some(),
        });
    }
}

/// Properties of a command that rules match.
fn occasion(entry: &AqEntry) -> Occasion {
    let request = entry.request();
    let opcode = request.opcode;
    let selector = match Opcode::try_from(opcode) {
        Ok(Opcode::GetFeature | Opcode::SetFeature) => {
            Some(GetFeature::from_request(&request).feature_id)
        }
        Ok(Opcode::GetStats) => Some(GetStats::from_request(&request).stats_type),
        _ => None,
    };
    Occasion::Command { opcode, selector }
}
