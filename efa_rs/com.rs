// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Control path of the device: registers, reset, admin commands and events.
//!
//! A [`Session`] is the use of the device between two resets. A [`Controller`] starts and halts
//! sessions. [`Recovery`] ends the session of a failed device and starts the next one.
//!
//! The device is not trusted. Data that it writes is copied once and checked before use. Every wait
//! is bounded. Memory that the device may use is [lent](Lent): it is freed only after the device
//! has released it or was stopped.

mod admin_in_flight;
mod admin_queue;
mod admin_rings;
mod aenq;
mod ah_cache;
mod attributes;
mod backoff;
mod bound;
mod commands;
mod controller;
mod epoch;
mod error;
mod event_queue;
mod function;
mod health;
mod host_info;
mod lent;
mod life;
mod page_list;
mod quarantine;
mod reclaim;
mod recovery;
mod registers;
mod report;
mod reset;
mod session;
mod statistics;
mod subscribers;

pub(crate) use self::{
    admin_queue::AdminQueue,
    ah_cache::PeerAh,
    attributes::Attributes,
    controller::Controller,
    error::CommandError,
    health::Cause,
    lent::{
        Lent,
        Loan, //
    },
    life::Service,
    page_list::Pages,
    reclaim::{
        KeyPlace,
        Reclaim, //
    },
    recovery::Recovery,
    session::Session,
    statistics::Counter,
    subscribers::{
        CompletionHandler,
        Subscription, //
    },
};

#[cfg(kverbs)]
pub(crate) use self::epoch::Epoch;
