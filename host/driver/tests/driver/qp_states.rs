// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Transitions of an SRD queue pair between its states, with and without each attribute.

use driver::{
    program::{qp_attr, Program, UP},
    rig::name_of,
};
use efa_model::Profile;
use ib_core::ffi::*;
use kernel::error::Result;

use crate::run_bound_with;

const RESET: u32 = ib_qp_state_IB_QPS_RESET;
const INIT: u32 = ib_qp_state_IB_QPS_INIT;
const RTR: u32 = ib_qp_state_IB_QPS_RTR;
const RTS: u32 = ib_qp_state_IB_QPS_RTS;
const SQD: u32 = ib_qp_state_IB_QPS_SQD;
const SQE: u32 = ib_qp_state_IB_QPS_SQE;
const ERR: u32 = ib_qp_state_IB_QPS_ERR;

const CURRENT: u32 = ib_qp_attr_mask_IB_QP_CUR_STATE;
const NOTIFY: u32 = ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY;
const PKEY: u32 = ib_qp_attr_mask_IB_QP_PKEY_INDEX;
const PORT: u32 = ib_qp_attr_mask_IB_QP_PORT;
const KEY: u32 = ib_qp_attr_mask_IB_QP_QKEY;
const PSN: u32 = ib_qp_attr_mask_IB_QP_SQ_PSN;
const RETRY: u32 = ib_qp_attr_mask_IB_QP_RNR_RETRY;
const ATTRIBUTES: [u32; 7] = [CURRENT, NOTIFY, PKEY, PORT, KEY, PSN, RETRY];

/// The path to each state that a program can choose.
const PATHS: [&[u32]; 6] = [
    &[RESET],
    &[INIT],
    &[INIT, RTR],
    &UP,
    &[INIT, RTR, RTS, SQD],
    &[INIT, ERR],
];

/// Returns the attributes that a transition requires, and those that it permits.
fn attributes(from: u32, to: u32) -> Option<(u32, u32)> {
    match (from, to) {
        (RESET, ERR) => None,
        (_, RESET | ERR) => Some((0, 0)),
        (RESET, INIT) => Some((PKEY | PORT | KEY, 0)),
        (INIT, INIT) => Some((0, PKEY | PORT | KEY)),
        (INIT, RTR) => Some((0, PKEY | KEY)),
        (RTR, RTS) => Some((PSN, CURRENT | KEY | RETRY)),
        (RTS | SQD, RTS) => Some((0, CURRENT | KEY)),
        (RTS, SQD) => Some((0, NOTIFY)),
        (SQD, SQD) => Some((0, PKEY | KEY)),
        _ => None,
    }
}

/// Modifies a new queue pair that has gone this path; returns the result and its state.
fn modify(path: &[u32], to: u32, mask: u32, change: fn(&mut ib_qp_attr)) -> (Result, u32) {
    let program = Program::new().unwrap();
    let (pd, cq) = (
        program.alloc_pd().unwrap(),
        program.create_cq(16, false, None).unwrap(),
    );
    let qp = program.create_qp(pd, cq.id, true, 32, 16).unwrap();
    for state in path {
        program.modify_qp(qp.id, *state).unwrap();
    }
    let (mut attr, _) = qp_attr(to);
    attr.cur_qp_state = path[path.len() - 1];
    change(&mut attr);
    let process = &program.process;
    let result = process.modify_qp(qp.id, &mut attr, mask, &[], &mut []);
    (result, process.query_qp(qp.id).unwrap().qp_state)
}

#[test]
fn change_with_the_right_attributes() {
    for path in PATHS {
        let from = path[path.len() - 1];
        for to in [RESET, INIT, RTR, RTS, SQD, SQE, ERR] {
            run_bound_with(Profile::Efa4, |_| {
                let row = attributes(from, to);
                let (required, permitted) = row.unwrap_or_default();
                for other in ATTRIBUTES.into_iter().chain([0]) {
                    let mask = ib_qp_attr_mask_IB_QP_STATE | required ^ other;
                    let is_right = row.is_some() && (other & !permitted == 0);
                    let (result, state) = modify(path, to, mask, |_| {});
                    let found = (name_of(result), state);
                    let wanted = if is_right {
                        ("ok", to)
                    } else {
                        ("EINVAL", from)
                    };
                    assert_eq!(
                        (found.0.as_str(), found.1),
                        wanted,
                        "{from} to {to}, {mask:#x}"
                    );
                }
            });
        }
    }
}

/// There are one port and one partition key, and SRD has no path.
#[test]
fn have_no_other_port_key_or_path() {
    run_bound_with(Profile::Efa4, |_| {
        let (_, mask) = qp_attr(INIT);
        for (mask, change) in [
            (mask, (|attr| attr.port_num = 2) as fn(&mut ib_qp_attr)),
            (mask, |attr| attr.pkey_index = 1),
            (mask | ib_qp_attr_mask_IB_QP_AV, |_| {}),
        ] {
            let (result, state) = modify(&[RESET], INIT, mask, change);
            assert_eq!((name_of(result).as_str(), state), ("EOPNOTSUPP", RESET));
        }
    });
}
