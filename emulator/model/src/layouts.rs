// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Fields of each admin command.

use efa_hw::{
    admin::{Command, Opcode, ah::*, cq::*, eq::*, event_counter::*, mr::*, pd::*, qp::*, uar::*},
    features::*,
    fields::{Described, Item},
    stats::GetStats,
};

macro_rules! commands {
    ($($name:ident)*) => {
        /// Returns the fields of a command's payload, and those of its response.
        pub fn fields_of(opcode: Opcode) -> [&'static [Item]; 2] {
            match opcode {
                Opcode::Service => [&[]; 2],
                $(Opcode::$name => [$name::FIELDS, <$name as Command>::Response::FIELDS],)*
            }
        }
    };
}

commands! {
    CreateQp ModifyQp QueryQp DestroyQp CreateAh DestroyAh RegMr DeregMr CreateCq DestroyCq GetFeature SetFeature GetStats
    AllocPd DeallocPd AllocUar DeallocUar CreateEq DestroyEq AllocMr CreateEventCounter DestroyEventCounter
    AttachEventCounter ModifyEventCounter DetachEventCounter
}

macro_rules! features {
    ($($name:ident)*) => {
        /// Returns the fields of a feature that a driver reads.
        pub fn attributes_of(feature: u8) -> &'static [Item] {
            match FeatureId::try_from(feature) {
                $(Ok(FeatureId::$name) => $name::FIELDS,)*
                Ok(FeatureId::HostInfo) | Err(_) => &[],
            }
        }
    };
}

features! { DeviceAttr AenqConfig NetworkAttr QueueAttr1 HwHints EventQueueAttr QueueAttr2 }
