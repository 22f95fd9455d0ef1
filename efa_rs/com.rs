// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Talking to the device: registers, reset, admin commands and events.
//!
//! Nothing here trusts the device. What it writes is copied once and checked before it is used,
//! every wait has an end, and memory that it may use is freed only after it has let go of it or was
//! reset.

pub(crate) mod admin_queue;
mod aenq;
mod attributes;
mod commands;
mod controller;
mod counter;
mod error;
mod event_queue;
mod host_info;
mod page_list;
mod quarantine;
mod registers;
mod reset;
mod subscribers;

pub(crate) use self::{
    admin_queue::AdminQueue,
    attributes::Attributes,
    controller::{
        Controller,
        KeepAlives, //
    },
    counter::Counter,
    event_queue::{
        EventQueue,
        EventTarget, //
    },
    page_list::Pages,
    registers::Registers,
    reset::reset,
    subscribers::{
        CompletionHandler,
        Subscription, //
    },
};
