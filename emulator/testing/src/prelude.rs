// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What tests of devices use, on a network in process or behind a socket.

pub use std::{
    collections::{BTreeMap, BTreeSet},
    iter::from_fn,
    sync::Arc,
    time::Duration,
};

pub use efa_fabric::{
    Access, Denied, Fabric, Frame, JoinError, Link, LinkId, Newcomer, PathSettings, PortId, Runs, Settings,
};
pub use efa_hw::{
    admin::{ah::*, control::*, cq::*, eq::*, event_counter::*, mr::*, pd::*, qp::*, uar::*, *},
    aenq::AenqGroup,
    checksum,
    eq::Eqe,
    features::*,
    host_info::{Bdf, DriverVersion, HostInfo, HostInfoFlags, SPEC_VERSION},
    io::*,
    regs::*,
    stats::*,
};
pub use efa_model::*;

pub use crate::{
    bus::{Memory, PAGE},
    cases::{self, Pair as _},
    commands::{Change, attachment, create_cq, create_eq, create_qp, detachment, reg_mr, to_state},
    driver::{AENQ_DEPTH, DEPTH as AQ_DEPTH},
    machine::{BASE, Control, Emulator, End, Machine, Thread, free_address, limited, program, runnable},
    mock::{Driver, World, config_with},
    net::{Arrivals, IOVA, LONG, MOST, Net, Peers, UNLIMITED_BUDGET, delay, network, networks},
    qp::{Cq, DEPTH, QKEY, Qp, Send, Shape, req_id_ex, status},
    region::{ALL_PERMISSIONS, Region, page_list, pattern},
    wait::{patience, wait_for, wait_until},
};
