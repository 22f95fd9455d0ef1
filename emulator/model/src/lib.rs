// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A model of an EFA device.
//!
//! The model is what a device does with what a driver tells it, and nothing else: it has no threads,
//! no clock and does no I/O. A front gives it register writes and the time, and implements [`Host`]
//! for what it does in turn: DMA, interrupts and a trace.
//!
//! A driver may do anything to it. What a correct driver never does is counted as a
//! [protocol error](State::protocol_errors) and otherwise has no effect, the work of each call and
//! the memory of the device are bounded, and nothing panics.

#![forbid(unsafe_code)]

mod admin_queue;
mod aenq;
mod attributes;
mod bars;
mod config;
mod death;
mod device;
mod faults;
mod features;
mod firmware;
mod host;
mod instance;
mod late;
mod page_list;
mod profile;
mod protocol_error;
mod queue;
mod registers;
mod registration;
mod requester;
mod reset;
mod resources;
mod responder;
mod ring;
mod state;
mod statistics;
mod storm;
mod trace;

pub use attributes::Overrides;
pub use config::Config;
pub use death::{Death, FailedReset};
pub use device::Device;
pub use faults::{Corruption, Rule, RuleError, RuleId, StatusCode, Then, When};
pub use host::{DmaError, Host};
pub use instance::{Instance, Rdma};
pub use profile::Profile;
pub use protocol_error::ProtocolError;
pub use queue::{Queue, QueueError};
pub use registration::RegionWork;
pub use requester::{Payload, Request};
pub use resources::{mr::Segment, qp::QpId, send_queue::Operation};
pub use responder::{Arrival, Content, Landing, Refusal, WriteEnd};
pub use state::{AdminState, HostInfoState, ResourceCounts, State};
pub use statistics::{Counters, TransportEvent};
pub use storm::StormError;
pub use trace::TraceEvent;
