// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A model of an EFA device.
//!
//! The model is the device's reaction to a driver and its programs, and nothing else: it has no threads, no clock and does no I/O.
//! A front passes it register writes, doorbells and the time. A transport carries out the work requests that it fetches, and delivers
//! packets of peers. Both implement [`Host`] for what the device does in turn: DMA, interrupts and a trace.
//!
//! # Where things are
//!
//! Each part uses those below it only, and no two files use each other.
//!
//! ```text
//!  front, operator, transport    who calls it
//!     |
//!     v
//!  device        the parts put together: a file for each kind of call
//!     |
//!     +--> admin         registers and resets, the admin queue, asynchronous events, interrupts;
//!     |      |           `commands.rs` is the list of which command reads and changes what
//!     |      v
//!     +--> data_path     what queue pairs do: doorbells, `requester`, `responder`, `region_change`; how they
//!     |      |           change state and how work requests end
//!     |      v
//!     |    resources     the objects that a driver makes, a file for each kind: what each is, and the commands
//!     |      |           that make, change and destroy it
//!     |      v
//!     +--> faults        what an operator makes it do: rules, also for the data path; death, storms of events
//!     |      |
//!     v      v
//!  host, trace, queue, statistics, latency, profile      what all need: the outside world, and what kind of device it is
//! ```
//!
//! # Who is trusted
//!
//! Nobody. A driver may do anything to a device. What a correct driver never does is counted as a
//! [protocol error](State::protocol_errors) and otherwise has no effect, and nothing panics. The work of each call and the memory
//! of a device are bounded:
//!
//! | what | bound |
//! |---|---|
//! | objects of each kind | the device's attributes, and 65,534 |
//! | pages of all regions | `max_total_pages`, each of which takes 12 bytes if none follows another |
//! | times of work requests that are not fetched | 8 bytes for each in a send queue |
//! | latencies | 256 bytes for each kind of command and of work request, of which there are some thirty |
//! | ids of work requests that have not ended | 8 KiB for each queue pair that sends |
//! | work requests of a queue pair that are fetched and not complete | 256 (`MAX_OUTSTANDING` in `resources/send_queue.rs`) |
//! | receive work requests that deliveries have taken | the descriptors of the queue |
//! | commands in flight | 256, the largest ring (`MAX_DEPTH` in `admin/ring.rs`) |
//! | commands executed in one call | 32 (`COMMANDS_PER_CALL` in `device/commands.rs`), and none after one that flushed 4,096 work requests |
//! | addresses of pages read in one call | 16,384 and what is left of the last 512 (`PAGES_PER_CALL` in `resources/page_list.rs`) |
//! | work requests fetched in one call | one |
//! | work requests flushed at once | those in the two queues of one queue pair: `max_sq_depth`, and the ring of `max_rq_depth` |
//! | errors of one call that are traced | 64 of the driver and 64 of programs (`ERRORS_PER_CALL` in `data_path.rs`), and one for each command |
//! | segments that [`gather`](Device::gather), [`scatter`](Device::scatter) or [`deliver`](Device::deliver) add | the pages of the length that is asked for, and one more for each buffer |
//! | reasons of resets | 1,024 (`MAX_REASONS` in `admin/reset.rs`) |
//! | answers of a later session | 256 (`MAX` in `admin/late.rs`) |
//! | rules for faults | 1,024 for work requests, and as many for all else (`MAX_RULES` in `faults/rules.rs`) |
//! | completions of work requests that come late | 1,024 (`MAX_LATE` in `data_path/late.rs`) |
//! | kinds of events in storms | 64 of each (`MAX_KINDS` in `faults/storm.rs`), and in one call what fits into the queues |
//! | places that a dead device writes to, and writes in one call | 4,096 and 512 (`MAX_PLACES` and `AT_A_TIME` in `faults/death.rs`) |
//!
//! A call after which a device has more to do at once is followed by [`run`](Device::run), which says so, too. Whoever calls it may
//! let others have the device in between.

#![forbid(unsafe_code)]

mod admin;
mod data_path;
mod device;
mod dma;
mod faults;
mod host;
mod latency;
mod profile;
mod program_error;
mod protocol_error;
mod queue;
mod region_work;
mod reporter;
mod resources;
mod snapshot;
mod state;
mod statistics;
mod trace;

pub use data_path::{
    requester::{Fetched, Payload, Request},
    responder::{Arrival, Content, Delivery, Refusal, WriteEnd},
};
pub use device::Device;
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
pub use profile::{
    attributes::Overrides,
    config::Config,
    generation::Profile,
    instance::{Instance, Rdma},
};
pub use program_error::{Fault, Hex, ProgramError, ProgramErrors, Since};
pub use protocol_error::ProtocolError;
pub use queue::{Queue, QueueError};
pub use region_work::RegionWork;
pub use resources::{mr::Segment, qp::QpId, send_queue::Operation};
pub use snapshot::{CompletionQueue, EventQueue, MemoryRegion, QueuePair, Snapshot, WorkQueue};
pub use state::{AdminState, HostInfoState, ResourceCounts, State};
pub use statistics::{Counters, TransportEvent};
pub use trace::{TraceEvent, TraceKind};
