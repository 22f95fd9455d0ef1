// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Execution of admin commands.

use std::collections::VecDeque;

use efa_hw::{
    admin::{AcqEntry, AqEntry, Command, Opcode, Response, Status},
    features::{GetFeature, SetFeature},
    host_info::HostInfo,
    stats::GetStats,
};

use crate::{
    DmaError, Host, ProtocolError, attributes::Attributes, bars::Bars, requester::Request,
    resources::Resources, statistics::Statistics,
};

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The device does not want to execute it.
    Refused(Status),
    /// Its control buffer can not be read.
    Dma(DmaError),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

impl From<DmaError> for Failure {
    fn from(error: DmaError) -> Self {
        Self::Dma(error)
    }
}

impl Failure {
    /// What the driver is told.
    pub(crate) fn status(self) -> Status {
        match self {
            Self::Refused(status) => status,
            Self::Dma(_) => Status::UnknownError,
        }
    }
}

/// A command that can be executed.
pub(crate) trait Execute: Command {
    fn execute(
        self,
        firmware: &mut Firmware,
        host: &mut dyn Host,
    ) -> Result<Self::Response, Failure>;
}

/// What executes commands, and all state that they change.
#[derive(Debug)]
pub(crate) struct Firmware {
    pub(crate) attributes: Attributes,
    pub(crate) bars: Bars,
    /// Entries of the MSI-X table.
    pub(crate) vectors: u16,
    pub(crate) resources: Resources,
    pub(crate) statistics: Statistics,
    /// Groups of asynchronous events that the driver wants.
    pub(crate) aenq_groups: u32,
    pub(crate) host_info: Option<HostInfo>,
    /// Work requests that the transport has not taken.
    pub(crate) requests: VecDeque<Request>,
    /// What the data path met that a correct driver never does, and nobody was told of.
    pub(crate) complaints: Vec<ProtocolError>,
}

impl Firmware {
    /// Forgets all that the driver made.
    pub(crate) fn reset(&mut self) {
        self.resources.end();
        self.requests.clear();
        self.aenq_groups = 0;
        self.host_info = None;
    }

    /// Executes a command and returns the content of its completion.
    pub(crate) fn execute(
        &mut self,
        host: &mut dyn Host,
        entry: &AqEntry,
    ) -> Result<AcqEntry, Failure> {
        use efa_hw::admin::{ah::*, cq::*, eq::*, event_counter::*, mr::*, pd::*, qp::*, uar::*};

        if !entry.is_intact() {
            let command_id = entry.header().command_id.id;
            self.complaints.push(ProtocolError::Checksum { command_id });
            return Err(Status::MalformedRequest.into());
        }
        let opcode = Opcode::try_from(entry.header().opcode)
            .map_err(|_| Failure::Refused(Status::BadOpcode))?;
        // What programs looked for in the meantime is their affair.
        self.resources.take_missed();
        let result = match opcode {
            Opcode::CreateQp => self.run::<CreateQp>(host, entry),
            Opcode::ModifyQp => self.run::<ModifyQp>(host, entry),
            Opcode::QueryQp => self.run::<QueryQp>(host, entry),
            Opcode::DestroyQp => self.run::<DestroyQp>(host, entry),
            Opcode::CreateAh => self.run::<CreateAh>(host, entry),
            Opcode::DestroyAh => self.run::<DestroyAh>(host, entry),
            Opcode::RegMr => self.run::<RegMr>(host, entry),
            Opcode::DeregMr => self.run::<DeregMr>(host, entry),
            Opcode::CreateCq => self.run::<CreateCq>(host, entry),
            Opcode::DestroyCq => self.run::<DestroyCq>(host, entry),
            Opcode::GetFeature => self.run::<GetFeature>(host, entry),
            Opcode::SetFeature => self.run::<SetFeature>(host, entry),
            Opcode::GetStats => self.run::<GetStats>(host, entry),
            Opcode::AllocPd => self.run::<AllocPd>(host, entry),
            Opcode::DeallocPd => self.run::<DeallocPd>(host, entry),
            Opcode::AllocUar => self.run::<AllocUar>(host, entry),
            Opcode::DeallocUar => self.run::<DeallocUar>(host, entry),
            Opcode::CreateEq => self.run::<CreateEq>(host, entry),
            Opcode::DestroyEq => self.run::<DestroyEq>(host, entry),
            Opcode::AllocMr => self.run::<AllocMr>(host, entry),
            Opcode::Service => Err(Status::UnsupportedOpcode.into()),
            Opcode::CreateEventCounter => self.run::<CreateEventCounter>(host, entry),
            Opcode::DestroyEventCounter => self.run::<DestroyEventCounter>(host, entry),
            Opcode::AttachEventCounter => self.run::<AttachEventCounter>(host, entry),
            Opcode::ModifyEventCounter => self.run::<ModifyEventCounter>(host, entry),
            Opcode::DetachEventCounter => self.run::<DetachEventCounter>(host, entry),
        };
        if self.resources.take_missed() {
            self.complaints.push(ProtocolError::EndedObject { opcode });
        }
        result
    }

    fn run<C: Execute>(
        &mut self,
        host: &mut dyn Host,
        entry: &AqEntry,
    ) -> Result<AcqEntry, Failure> {
        let command = C::from_request(&entry.request());
        if !is_canonical(&command, entry) {
            return Err(Status::MalformedRequest.into());
        }
        Ok(command.execute(self, host)?.to_entry())
    }
}

/// Whether all that the interface reserves is zero in an entry.
fn is_canonical(command: &impl Command, entry: &AqEntry) -> bool {
    let header = entry.header();
    let (id, phase) = (header.command_id.id, header.flags.phase);
    AqEntry::new(entry.protocol(), &command.to_request(), id, phase) == *entry
}
