// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The attributes of a queue pair: those that can be modified and queried, and its states.

use kernel::prelude::*;

use super::{
    qp::Qp,
    Efa, //
};
use crate::{
    hw::admin::qp::{
        ModifyQp,
        ModifyQpMask,
        QueryQp, //
    },
    rdma::{
        ud_transition_is_ok,
        QpAttr,
        QpAttrMask,
        QpState,
        QpType,
        QueriedQp,
        Udata, //
    },
    sys::atomic::Relaxed,
};

/// Attributes that can be modified.
const MODIFIABLE: QpAttrMask = QpAttrMask::STATE
    .or(QpAttrMask::CUR_STATE)
    .or(QpAttrMask::EN_SQD_ASYNC_NOTIFY)
    .or(QpAttrMask::PKEY_INDEX)
    .or(QpAttrMask::PORT)
    .or(QpAttrMask::QKEY)
    .or(QpAttrMask::SQ_PSN)
    .or(QpAttrMask::RNR_RETRY);

/// Attributes that can be queried.
const QUERYABLE: QpAttrMask = QpAttrMask::STATE
    .or(QpAttrMask::PKEY_INDEX)
    .or(QpAttrMask::PORT)
    .or(QpAttrMask::QKEY)
    .or(QpAttrMask::SQ_PSN)
    .or(QpAttrMask::CAP)
    .or(QpAttrMask::RNR_RETRY);

impl Qp<'_> {
    /// Returns the state that was last set.
    fn state(&self) -> Option<QpState> {
        QpState::from_raw(self.state.load(Relaxed).into())
    }

    /// Modifies attributes of the queue pair.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if an attribute can't be modified, or not to this value.
    /// - [`EINVAL`] if there is no transition to the new state, or none with these attributes.
    /// - Those of the admin command and of [`Udata`].
    pub(super) fn modify_at(&self, efa: &Efa<'_>, attr: &QpAttr, udata: &Udata<'_>) -> Result {
        udata.expect_no_io()?;
        let has = |attribute| attr.mask.contains(attribute);

        let cur_state = if has(QpAttrMask::CUR_STATE) {
            attr.cur_state
        } else {
            self.state().ok_or(EINVAL)?
        };
        let new_state = if has(QpAttrMask::STATE) {
            attr.state
        } else {
            cur_state
        };

        if !MODIFIABLE.contains(attr.mask) {
            return Err(EOPNOTSUPP);
        }
        #[cfg(kverbs)]
        if let (Some(pair), Some(QpState::Reset), QpState::Err) =
            (&self.posted, self.state(), new_state)
        {
            // A client may drain it. The device has nothing to flush, and lacks the transition.
            pair.close();
            return Ok(());
        }
        if !transition_is_ok(self.qp_type, cur_state, new_state, attr.mask) {
            return Err(EINVAL);
        }
        if has(QpAttrMask::PORT) && attr.port_num != 1
            || has(QpAttrMask::PKEY_INDEX) && attr.pkey_index != 0
        {
            return Err(EOPNOTSUPP);
        }

        // Attributes that are not in the mask are zero.
        let given = |attribute, value: u32| if has(attribute) { value } else { 0 };
        let command = ModifyQp {
            modify_mask: ModifyQpMask {
                qp_state: has(QpAttrMask::STATE),
                cur_qp_state: has(QpAttrMask::STATE),
                qkey: has(QpAttrMask::QKEY),
                sq_psn: has(QpAttrMask::SQ_PSN),
                sq_drained_async_notify: has(QpAttrMask::EN_SQD_ASYNC_NOTIFY),
                rnr_retry: has(QpAttrMask::RNR_RETRY),
            },
            qp_handle: self.device_qp.handle,
            qp_state: given(QpAttrMask::STATE, new_state as u32),
            cur_qp_state: given(QpAttrMask::STATE, cur_state as u32),
            qkey: given(QpAttrMask::QKEY, attr.qkey),
            sq_psn: given(QpAttrMask::SQ_PSN, attr.sq_psn),
            sq_drained_async_notify: has(QpAttrMask::EN_SQD_ASYNC_NOTIFY)
                && attr.en_sqd_async_notify,
            rnr_retry: if has(QpAttrMask::RNR_RETRY) {
                attr.rnr_retry
            } else {
                0
            },
        };
        let modify = || efa.admin().execute(&command);
        #[cfg(kverbs)]
        match &self.posted {
            Some(pair) => {
                let is_in_error = || self.is_in_error(efa);
                pair.change_state(self.state(), new_state, modify, is_in_error)?;
            }
            None => modify().map(drop)?,
        }
        #[cfg(not(kverbs))]
        modify()?;
        // Without a new state, it is what the caller assumes.
        if has(QpAttrMask::STATE) {
            self.state.store(new_state as u8, Relaxed);
            #[cfg(kverbs)]
            if let Some(pair) = &self.posted {
                pair.enter(new_state);
            }
        }
        Ok(())
    }

    /// Returns whether the device has put the queue pair into the error state.
    #[cfg(kverbs)]
    fn is_in_error(&self, efa: &Efa<'_>) -> bool {
        let query = QueryQp {
            qp_handle: self.device_qp.handle,
        };
        let queried = efa.admin().execute(&query);
        queried.is_ok_and(|queried| queried.qp_state == QpState::Err as u32)
    }

    /// Returns attributes of the queue pair.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the device does not report a requested attribute.
    /// - [`EIO`] if the device returns an unknown state.
    /// - Those of the admin command.
    pub(super) fn query_at(&self, efa: &Efa<'_>, mask: QpAttrMask) -> Result<QueriedQp> {
        if !QUERYABLE.contains(mask) {
            return Err(EOPNOTSUPP);
        }

        let queried = efa.admin().execute(&QueryQp {
            qp_handle: self.device_qp.handle,
        })?;
        let state = QpState::from_raw(queried.qp_state).ok_or_else(|| {
            efa.admin()
                .report_invalid("a state that no queue pair can have", queried.qp_state)
        })?;
        Ok(QueriedQp {
            state,
            qkey: queried.qkey,
            sq_psn: queried.sq_psn,
            sq_draining: queried.sq_draining,
            port_num: 1,
            rnr_retry: queried.rnr_retry,
            cap: self.cap,
        })
    }
}

/// Returns whether a queue pair has this transition, with these attributes.
fn transition_is_ok(qp_type: QpType, from: QpState, to: QpState, mask: QpAttrMask) -> bool {
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
