// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Executes work requests. Each device is its own only peer.
//!
//! No loss, delay or reordering, and no time passes. The emulator's `fabric` models a network.

use efa_hw::io::CompStatus;
use efa_model::Operation;
use efa_model::{
    Arrival, Content, Delivery, Device, DmaError, Fetched, Host, Payload, Refusal, Request,
    Segment, TransportEvent, WriteEnd,
};

use crate::hardware::Machine;

/// Executes all posted work requests. Returns whether there were any.
pub(crate) fn run(device: &mut Device, machine: &mut Machine) -> bool {
    let mut any = false;
    loop {
        match device.fetch(machine) {
            Fetched::Request(request) => {
                let status = carry_out(device, machine, &request).unwrap_or_else(|status| status);
                device.complete(machine, &request, status);
            }
            Fetched::Internal => {}
            Fetched::Idle => return any,
        }
        any = true;
    }
}

/// Copies bytes to segments of memory.
fn copy(machine: &mut Machine, bytes: &[u8], to: &[Segment]) -> Result<(), DmaError> {
    let mut rest = bytes;
    for segment in to {
        let (part, after) = rest.split_at((segment.length as usize).min(rest.len()));
        machine.dma_write(segment.address, part)?;
        rest = after;
    }
    Ok(())
}

fn collect(machine: &mut Machine, from: &[Segment]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for segment in from {
        let start = bytes.len();
        bytes.resize(start + segment.length as usize, 0);
        machine
            .dma_read(segment.address, &mut bytes[start..])
            .ok()?;
    }
    Some(bytes)
}

fn status(refusal: Refusal) -> CompStatus {
    match refusal {
        // The drop is not reported to the sender.
        Refusal::Drop => CompStatus::Ok,
        Refusal::NotReady => CompStatus::RemoteRnr,
        Refusal::Status(status) => status,
    }
}

fn carry_out(
    device: &mut Device,
    machine: &mut Machine,
    request: &Request,
) -> Result<CompStatus, CompStatus> {
    let length = request.length;
    let content = match request.operation {
        Operation::Send => Content::Send {
            length,
            immediate: request.immediate,
        },
        Operation::RdmaWrite => {
            let end = Some(WriteEnd {
                length,
                immediate: request.immediate,
                unsolicited: request.unsolicited,
            });
            Content::Write {
                memory: request.remote,
                length,
                end,
            }
        }
        Operation::RdmaRead => Content::Read {
            memory: request.remote,
            length,
            version: request.version,
        },
    };
    let arrival = Arrival {
        peer: request.peer,
        peer_qp: request.qp.number,
        qp: request.peer_qp,
        transport: request.transport,
        qkey: request.qkey,
        content,
    };
    let mut place = Vec::new();
    let delivery: Delivery = device
        .deliver(machine, &arrival, &mut place)
        .map_err(status)?;
    if request.operation == Operation::RdmaRead {
        let peer = delivery.qp();
        device
            .delivered(machine, &arrival, delivery, Ok(()))
            .map_err(status)?;
        let (mut from, mut to) = (Vec::new(), Vec::new());
        device.gather_for_peer(peer, request.remote, length, &mut from)?;
        device.count(TransportEvent::Read(length));
        device.scatter(request, 0, length, &mut to)?;
        let bytes = collect(machine, &from).ok_or(CompStatus::RemoteAbort)?;
        copy(machine, &bytes, &to).map_err(|_| CompStatus::LocalQpInternalError)?;
        device.read_served(machine, peer);
        return Ok(CompStatus::Ok);
    }
    let mut from = Vec::new();
    let bytes = match device.gather(request, 0, length, &mut from) {
        Ok(Payload::Inline(bytes)) => Some(bytes.to_vec()),
        Ok(Payload::Memory) => collect(machine, &from),
        Err(status) => {
            device.cancel(delivery);
            return Err(status);
        }
    };
    let Some(bytes) = bytes else {
        device.cancel(delivery);
        return Err(CompStatus::LocalQpInternalError);
    };
    let written = copy(machine, &bytes, &place);
    device
        .delivered(machine, &arrival, delivery, written)
        .map_err(status)?;
    Ok(CompStatus::Ok)
}
