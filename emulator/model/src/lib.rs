// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A model of an EFA device.
//!
//! The model implements only the device's reaction to a driver and its programs: it has no threads, no clock and does no I/O. A
//! front end passes register writes, doorbells and the time to it. A transport carries out the work requests that it fetches,
//! and delivers packets of peers. Both implement [`Host`] for the device's DMA, interrupts and trace.
//!
//! # Structure
//!
//! Each part uses only those below it, and no two files use each other.
//!
//! ```text
//!  front end, operator, transport    callers
//!     |
//!     v
//!  device        combines the parts: a file for each kind of call
//!     |
//!     +--> admin         registers and resets, the admin queue, asynchronous events, interrupts;
//!     |      |           `commands.rs` lists the parts that each command reads or changes
//!     |      v
//!     +--> data_path     operation of queue pairs: doorbells, `requester`, `responder`, `region_change`; changes
//!     |      |           of their state, and the end of work requests
//!     |      v
//!     |    resources     the objects that a driver creates, a file for each kind: its state, and the commands
//!     |      |           that create, change and destroy it
//!     |      v
//!     +--> faults        faults that an operator injects: rules, also for the data path; death, storms of events
//!     |      |
//!     v      v
//!  host, trace, queue, statistics, latency, profile      common parts: interface to the host, and kind of the device
//! ```
//!
//! # Trust and bounds
//!
//! No caller is trusted. A driver may access a device in any way. An access that no correct driver makes is counted as a
//! [protocol error](State::protocol_errors) and has no other effect, and nothing panics. The work of each call and the memory
//! of a device are bounded:
//!
//! | what | bound |
//! |---|---|
//! | objects of each kind | the device's attributes, and 65,534 |
//! | pages of all regions | `max_total_pages`, with 12 bytes for each page that does not follow the one before |
//! | times of doorbells for work requests that are not fetched | 8 bytes for each entry of a send queue |
//! | latencies | 256 bytes for each kind of command and of work request, about 30 kinds |
//! | ids of work requests that have not ended | 8 KiB for each queue pair that sends |
//! | work requests of a queue pair that are fetched and not complete | 256 (`MAX_OUTSTANDING` in `resources/send_queue.rs`) |
//! | receive work requests that deliveries have taken | the descriptors of the queue |
//! | commands in flight | 256, the largest ring (`MAX_DEPTH` in `admin/ring.rs`) |
//! | commands executed in one call | 32 (`COMMANDS_PER_CALL` in `device/commands.rs`); fewer after 4,096 flushed work requests |
//! | addresses of pages read in one call | 16,384, and the rest of the last 512 (`PAGES_PER_CALL` in `resources/page_list.rs`) |
//! | work requests fetched in one call | one |
//! | work requests flushed at once | those in the two queues of one queue pair: `max_sq_depth`, and the ring of `max_rq_depth` |
//! | traced errors of one call | 64 of the driver, 64 of programs (`ERRORS_PER_CALL` in `reporter.rs`), one per command |
//! | segments of [`Device::gather`], [`Device::scatter`] or [`Device::deliver`] | pages of the length, and one more per buffer |
//! | reasons of resets | 1,024 (`MAX_REASONS` in `admin/reset.rs`) |
//! | answers withheld for a later session | 256 (`MAX` in `admin/late.rs`) |
//! | rules for faults | 1,024 for work requests, and 1,024 for everything else (`MAX_RULES` in `faults/rules.rs`) |
//! | late and held completions of work requests | 1,024 (`MAX_LATE` in `data_path/late.rs`) |
//! | events in storms | 64 kinds per queue type (`MAX_KINDS` in `faults/storm.rs`); in one call, the room in the queues |
//! | stray writes of a dead device | to 4,096 places, 512 in one call (`MAX_PLACES` and `AT_A_TIME` in `faults/death.rs`) |
//!
//! A call may leave work that is due at once. The caller then calls [`run`](Device::run), which returns the next due time.
//! The caller may release the device for other threads in between.

#![forbid(unsafe_code)]

mod admin;
mod data_path;
mod device;
mod dma;
mod ensure;
mod faults;
mod host;
mod latency;
mod layouts;
mod profile;
mod program_error;
mod protocol_error;
mod queue;
mod region_work;
mod reporter;
mod resources;
mod statistics;
mod trace;
mod view;

use ensure::ensure;
use view::view;

pub use admin::queue::AdminState;
pub use data_path::{
    requester::{Fetched, Payload, Request},
    responder::{Arrival, Content, Delivery, Refusal, WriteEnd},
};
pub use device::{
    Device,
    snapshot::Snapshot,
    state::{HostInfoState, State},
};
pub use dma::DmaError;
pub use faults::{
    death::{Death, FailedReset},
    names::RuleError,
    rules::{Rule, RuleId},
    storm::StormError,
    then::{Corruption, StatusCode, Then},
    when::{When, WorkKind},
};
pub use host::Host;
pub use latency::{CommandTimes, Histogram, Times};
pub use layouts::{attributes_of, fields_of};
pub use profile::{attributes::Overrides, config::Config, generation::Profile};
pub use program_error::{Fault, Hex, ProgramError, ProgramErrors, Since};
pub use protocol_error::ProtocolError;
pub use queue::{Queue, QueueError, WorkQueue};
pub use region_work::RegionWork;
pub use resources::{
    ResourceCounts,
    cq::CompletionQueue,
    eq::EventQueue,
    memory::Segment,
    mr::MemoryRegion,
    qp::{QpId, QueuePair},
    send_queue::Operation,
};
pub use statistics::{Counters, QpCounters, TransportEvent};
pub use trace::{TraceEvent, TraceKind};
