// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Execution of admin commands: dispatch to the parts of the device that each command reads or changes.

use efa_hw::admin::{AcqEntry, AqEntry, Command, Opcode, Response, Status};

use super::features::Features;
use crate::{
    Host,
    data_path::DataPath,
    ensure,
    profile::bars::Bars,
    protocol_error::ProtocolError,
    resources::{Resources, failure::Failure, mr::Registration, qp::Used},
};

/// Parts of a device that commands access.
pub(crate) struct Parts<'a> {
    pub(crate) bars: &'a Bars,
    /// Number of entries in the MSI-X table.
    pub(crate) vectors: u16,
    pub(crate) features: &'a mut Features,
    pub(crate) data: &'a mut DataPath,
}

/// Progress of a command.
pub(crate) enum Execution {
    /// The command has ended: the content of its completion, or the reason of its failure.
    Done(Result<AcqEntry, Failure>),
    /// The command registers a memory region whose page list exceeds the budget of this call.
    Unfinished(Box<Registration>),
}

impl From<Failure> for Execution {
    fn from(failure: Failure) -> Self {
        Self::Done(Err(failure))
    }
}

/// Executes a command. Also returns its protocol error, if any. Reads page addresses while `budget` lasts, and subtracts them.
pub(crate) fn execute(
    mut parts: Parts<'_>,
    host: &mut dyn Host,
    entry: &AqEntry,
    budget: &mut u32,
) -> (Execution, Option<ProtocolError>) {
    if !entry.is_intact() {
        let command_id = entry.header().command_id.id;
        let error = ProtocolError::Checksum { command_id };
        return (Failure::from(Status::MalformedRequest).into(), Some(error));
    }
    let Ok(opcode) = Opcode::try_from(entry.header().opcode) else {
        return (Failure::from(Status::BadOpcode).into(), None);
    };
    // Discard lookups by programs since the last command: they are not errors of the driver.
    parts.data.resources.take_missed();
    let execution = match opcode {
        Opcode::RegMr => register(parts.data, host, entry, budget),
        _ => Execution::Done(dispatch(opcode, &mut parts, host, entry)),
    };
    let missed = parts.data.resources.take_missed();
    (execution, missed.then_some(ProtocolError::EndedObject { opcode }))
}

/// Begins to register a memory region.
fn register(data: &mut DataPath, host: &mut dyn Host, entry: &AqEntry, budget: &mut u32) -> Execution {
    let DataPath { attributes, resources: Resources { mrs, pds, .. }, .. } = data;
    let begun = command(entry).and_then(|command| mrs.begin(attributes, pds, command));
    match begun {
        Ok(registration) => resume(data, host, Box::new(registration), budget),
        Err(failure) => failure.into(),
    }
}

/// Resumes a registration.
pub(crate) fn resume(
    data: &mut DataPath,
    host: &mut dyn Host,
    mut registration: Box<Registration>,
    budget: &mut u32,
) -> Execution {
    let DataPath { attributes, resources: Resources { mrs, pds, .. }, .. } = data;
    match registration.pages.read(attributes, host, budget) {
        Ok(false) => Execution::Unfinished(registration),
        Ok(true) => {
            let made = mrs.finish(attributes, pds, *registration);
            Execution::Done(made.map(|made| made.to_entry()).map_err(Failure::from))
        }
        Err(failure) => failure.into(),
    }
}

fn dispatch(opcode: Opcode, parts: &mut Parts<'_>, host: &mut dyn Host, entry: &AqEntry) -> Result<AcqEntry, Failure> {
    use efa_hw::admin::{ah::*, cq::*, eq::*, event_counter::*, mr::*, pd::*, qp::*, uar::*};
    use efa_hw::{
        features::{GetFeature, SetFeature},
        stats::GetStats,
    };

    let Parts { bars, vectors, features, data } = parts;
    let DataPath { attributes, resources, statistics, .. } = &mut **data;
    let Resources { pds, uars, eqs, event_counters, ahs, mrs, cqs, qps } = resources;
    match opcode {
        // These also affect work requests and the objects that a queue pair refers to.
        Opcode::ModifyQp => run(entry, |c: ModifyQp| data.modify_qp(host, &c)),
        Opcode::DestroyQp => run(entry, |c: DestroyQp| data.destroy_qp(host, &c)),
        Opcode::DeregMr => run(entry, |c: DeregMr| data.dereg_mr(host, &c)),
        // `register` executes the first one.
        Opcode::RegMr | Opcode::Service => Err(Status::UnsupportedOpcode.into()),
        Opcode::CreateQp => run(entry, |c: CreateQp| qps.create(attributes, bars, Used { pds, uars, cqs }, &c)),
        Opcode::QueryQp => run(entry, |c: QueryQp| qps.query(&c)),
        Opcode::CreateAh => run(entry, |c: CreateAh| ahs.create(attributes, pds, &c)),
        Opcode::DestroyAh => run(entry, |c: DestroyAh| ahs.destroy(pds, &c)),
        Opcode::AllocMr => run(entry, |c: AllocMr| mrs.alloc(attributes, pds, &c)),
        Opcode::CreateCq => run(entry, |c: CreateCq| cqs.create(attributes, bars, uars, eqs, &c)),
        Opcode::DestroyCq => run(entry, |c: DestroyCq| cqs.destroy(uars, eqs, &c)),
        Opcode::GetFeature => run(entry, |c: GetFeature| features.get(attributes, &c)),
        Opcode::SetFeature => run(entry, |c: SetFeature| features.set(attributes, host, &c)),
        Opcode::GetStats => run(entry, |c: GetStats| statistics.get(attributes, &c)),
        Opcode::AllocPd => run(entry, |_: AllocPd| pds.alloc(attributes)),
        Opcode::DeallocPd => run(entry, |c: DeallocPd| pds.dealloc(&c)),
        Opcode::AllocUar => run(entry, |_: AllocUar| uars.alloc(attributes, bars)),
        Opcode::DeallocUar => run(entry, |c: DeallocUar| uars.dealloc(&c)),
        Opcode::CreateEq => run(entry, |c: CreateEq| eqs.create(attributes, *vectors, &c)),
        Opcode::DestroyEq => run(entry, |c: DestroyEq| eqs.destroy(&c)),
        Opcode::CreateEventCounter => run(entry, |c: CreateEventCounter| event_counters.create(attributes, uars, &c)),
        Opcode::DestroyEventCounter => {
            run(entry, |c: DestroyEventCounter| event_counters.destroy(attributes, uars, &c))
        }
        Opcode::ModifyEventCounter => run(entry, |c: ModifyEventCounter| event_counters.modify(attributes, host, &c)),
        Opcode::AttachEventCounter => run(entry, |c: AttachEventCounter| event_counters.attach(attributes, qps, &c)),
        Opcode::DetachEventCounter => run(entry, |c: DetachEventCounter| event_counters.detach(attributes, qps, &c)),
    }
}

/// Decodes a command, executes it and encodes its response.
fn run<C: Command, F: Into<Failure>>(
    entry: &AqEntry,
    execute: impl FnOnce(C) -> Result<C::Response, F>,
) -> Result<AcqEntry, Failure> {
    match execute(command(entry)?) {
        Ok(response) => Ok(response.to_entry()),
        Err(failure) => Err(failure.into()),
    }
}

/// Decodes the command of an entry. Fails unless all reserved bits are zero.
fn command<C: Command>(entry: &AqEntry) -> Result<C, Failure> {
    let command = C::from_request(&entry.request());
    let header = entry.header();
    let (id, phase) = (header.command_id.id, header.flags.phase);
    let canonical = AqEntry::new(entry.protocol(), &command.to_request(), id, phase);
    ensure(canonical == *entry, Status::MalformedRequest)?;
    Ok(command)
}
