// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which states a queue pair can go to, and what has to be given for it.

use crate::rdma::{
    ud_transition_is_ok,
    QpAttrMask,
    QpState,
    QpType, //
};

/// Returns whether a queue pair can go from one state to another with these attributes given.
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

/// The same for SRD, whose states are those of UD but for what is required and allowed.
fn srd_transition_is_ok(from: QpState, to: QpState, mask: QpAttrMask) -> bool {
    use QpState::*;

    // A state that is claimed has to be one that the device may have gone to by itself.
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
