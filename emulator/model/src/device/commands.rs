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
        queue::{FetchedCommand, Pending},
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
            if let Some((fetched, registration)) = self.admin.executing.take() {
                let execution = commands::resume(&mut self.data, host, registration, &mut pages);
                self.progressed(host, now, fetched, execution);
                continue;
            }
            let ring = self.admin.submission.as_mut();
            let Some(ring) = ring.filter(|ring| ring.waiting() > 0) else {
                return false;
            };
            let fetched = ring.fetch(host);
            let rung = self.admin.rung.pop_front().flatten();
            match fetched {
                Ok((command, true)) => self.execute(host, now, command, rung, &mut pages),
                Ok((entry, false)) => {
                    let command_id = entry.header().command_id.id;
                    self.report(host, ProtocolError::Phase { command_id });
                }
                Err(error) => self.report(host, error),
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
        command: AqEntry,
        rung: Option<Duration>,
        pages: &mut u32,
    ) {
        let fault = self.faults.hit(occasion(&command));
        if fault.as_ref().is_some_and(Then::is_fatal) {
            let in_flight = self.admin.in_flight() + 1;
            host.trace(&TraceEvent::Command { command, completion: None, in_flight, injected: true });
            self.apply(host, now, fault.as_ref());
            return;
        }
        self.stale = false;
        let status = fault.as_ref().and_then(|fault| fault.status);
        let fetched = FetchedCommand { command, rung, fault };
        if let Some(status) = status.filter(|status| status.code() != 0) {
            self.executed(now, fetched, Err(status.code()));
            return;
        }
        let parts = Parts {
            bars: &self.bars,
            vectors: self.config.vectors,
            features: &mut self.features,
            data: &mut self.data,
        };
        let (execution, error) = commands::execute(parts, host, &command, pages);
        self.progressed(host, now, fetched, execution);
        if let Some(error) = error {
            self.report(host, error);
        }
    }

    /// Keeps an unfinished command for the next call, or queues the completion of a finished one.
    fn progressed(&mut self, host: &mut dyn Host, now: Duration, fetched: FetchedCommand, execution: Execution) {
        let result = match execution {
            Execution::Done(result) => result,
            Execution::Unfinished(registration) => {
                self.admin.executing = Some((fetched, registration));
                return;
            }
        };
        let result = result.map_err(|failure| {
            if let Failure::Dma(error) = failure {
                self.report(host, error);
            }
            failure.status().into()
        });
        self.data.errors.begin();
        self.executed(now, fetched, result);
    }

    /// Queues the completion of a command that succeeded with a response, or failed with a status.
    fn executed(&mut self, now: Duration, fetched: FetchedCommand, result: Result<AcqEntry, u8>) {
        let (status, response) = match result {
            Ok(response) => (0, response),
            Err(status) => (status, [0; 64]),
        };
        let delay = fetched.fault.as_ref().and_then(Then::delay);
        let due = now.saturating_add(delay.unwrap_or_default());
        let pending = Pending { fetched, status, response };
        let number = self.data.late.number();
        self.admin.executed(due, number, pending);
    }

    /// Completes the commands that are due.
    pub(super) fn complete_commands(&mut self, host: &mut dyn Host, now: Duration) {
        let mut interrupt = false;
        loop {
            let in_flight = self.admin.in_flight();
            let Some(pending) = self.admin.take_due(now) else {
                break;
            };
            let fault = pending.fetched.fault.as_ref();
            let late = fault.and_then(Then::late);
            if late.is_some() || fault.is_some_and(|fault| fault.silence) {
                trace(host, &pending, None, in_flight);
                if let Some(after_commands) = late {
                    let answer = Answer::Completion(Box::new(pending));
                    self.late.keep(answer, after_commands);
                }
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
    fn write_completion(&mut self, host: &mut dyn Host, pending: &Pending, in_flight: usize) -> bool {
        let with_checksum = self.version() >= CHECKSUM_VERSION;
        let completion = self.admin.complete(host, pending, with_checksum);
        let completion = completion.map_err(|error| self.report(host, error));
        let FetchedCommand { command, rung, fault } = &pending.fetched;
        let time = rung.zip(host.now());
        let time = time.map(|(rung, now)| now.saturating_sub(rung));
        let (opcode, ok) = (command.request().opcode, pending.status == 0);
        self.data.times.count_command(opcode, ok, time);
        trace(host, pending, completion.ok(), in_flight);
        !fault.as_ref().is_some_and(|fault| fault.no_interrupt)
    }
}

fn trace(host: &mut dyn Host, pending: &Pending, completion: Option<AcqEntry>, in_flight: usize) {
    host.trace(&TraceEvent::Command {
        command: pending.fetched.command,
        completion,
        in_flight,
        injected: pending.fetched.fault.is_some(),
    });
}

/// Properties of a command that rules match.
fn occasion(entry: &AqEntry) -> Occasion {
    let request = entry.request();
    let opcode = request.opcode;
    let selector = match Opcode::try_from(opcode) {
        Ok(Opcode::GetFeature | Opcode::SetFeature) => Some(GetFeature::from_request(&request).feature_id),
        Ok(Opcode::GetStats) => Some(GetStats::from_request(&request).stats_type),
        _ => None,
    };
    Occasion::Command { opcode, selector }
}
