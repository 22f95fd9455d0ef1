// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The state transitions of a queue pair, and the attributes that they require and permit.

use crate::rdma::{
    ud_transition_is_ok,
    QpAttrMask,
    QpState,
    QpType, //
};

/// Returns whether a queue pair has this transition, with these attributes.
pub(super) fn transition_is_ok(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    mask: QpAttrMask,
) -> bool {
    if qp_type == QpType::UD {
        ud_transition_is_ok(from, to, mask)
    } else {
        srd_transition_is_ok(from, to, mask)
    }
}

/// Does the same for SRD. It has the states of UD, but requires and permits other attributes.
fn srd_transition_is_ok(from: QpState, to: QpState, mask: QpAttrMask) -> bool {
    use QpState::*;

    // A current state given by the caller must be one that the device may enter on its own.
    if mask.contains(QpAttrMask::CUR_STATE) && !matches!(from, Rtr | Rts | Sqd | Sqe) {
        return false;
    }

    let none = QpAttrMask::NONE;
    let identity = QpAttrMask::PKEY_INDEX
        .or(QpAttrMask::PORT)
        .or(QpAttrMask::QKEY);
    let keys = QpAttrMask::PKEY_INDEX.or(QpAttrMask::QKEY);
    let qkey = QpAttrMask::CUR_STATE.or(QpAttrMask::QKEY);

    let (required, optional) = match (from, to) {
        (Reset, Err) => return false,
        (_, Reset | Err) => (none, none),
        (Reset, Init) => (identity, none),
        (Init, Init) => (none, identity),
        (Init, Rtr) => (none, keys),
        (Rtr, Rts) => (QpAttrMask::SQ_PSN, qkey.or(QpAttrMask::RNR_RETRY)),
        (Rts | Sqd | Sqe, Rts) => (none, qkey),
        (Rts, Sqd) => (none, QpAttrMask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (none, keys),
        _ => return false,
    };

    let allowed = required.or(optional).or(QpAttrMask::STATE);
    mask.contains(required) && allowed.contains(mask)
}
