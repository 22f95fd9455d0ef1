#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_qp_attr)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Err,
    ];

    const CAP: QpCap = QpCap {
        max_send_wr: 1,
        max_recv_wr: 2,
        max_send_sge: 3,
        max_recv_sge: 4,
        max_inline_data: 5,
    };

    /// What a datagram queue pair needs for its first state.
    const TO_INIT: QpAttrMask = QpAttrMask::STATE
        .or(QpAttrMask::PKEY_INDEX)
        .or(QpAttrMask::PORT)
        .or(QpAttrMask::QKEY);

    fn raw() -> bindings::ib_qp_attr {
        bindings::ib_qp_attr::default()
    }

    #[test]
    fn each_state_is_found_by_its_number() {
        for state in STATES {
            assert!(QpState::from_raw(state as u32) == Some(state));
        }
    }

    #[test]
    fn numbers_of_no_state_are_refused() {
        assert!(QpState::from_raw(bindings::ib_qp_state_IB_QPS_ERR + 1).is_none());
        assert!(QpState::from_raw(u32::MAX).is_none());
    }

    #[test]
    fn capacity_is_the_same_there_and_back() {
        let back = QpCap::from_raw(&CAP.into_raw());
        assert_eq!(back.max_send_wr, CAP.max_send_wr);
        assert_eq!(back.max_recv_wr, CAP.max_recv_wr);
        assert_eq!(back.max_send_sge, CAP.max_send_sge);
        assert_eq!(back.max_recv_sge, CAP.max_recv_sge);
        assert_eq!(back.max_inline_data, CAP.max_inline_data);
    }

    #[test]
    fn capacity_has_no_rdma_contexts() {
        assert_eq!(CAP.into_raw().max_rdma_ctxs, 0);
    }

    #[test]
    fn default_capacity_is_zero() {
        let raw = QpCap::default().into_raw();
        assert_eq!(raw.max_send_wr, 0);
        assert_eq!(raw.max_inline_data, 0);
    }

    #[test]
    fn a_mask_contains_its_parts() {
        assert!(TO_INIT.contains(QpAttrMask::STATE));
        assert!(TO_INIT.contains(QpAttrMask::QKEY));
        assert!(TO_INIT.contains(QpAttrMask::STATE.or(QpAttrMask::PORT)));
        assert!(TO_INIT.contains(TO_INIT));
    }

    #[test]
    fn a_mask_lacks_what_was_not_added() {
        assert!(!TO_INIT.contains(QpAttrMask::SQ_PSN));
        assert!(!TO_INIT.contains(QpAttrMask::STATE.or(QpAttrMask::SQ_PSN)));
    }

    #[test]
    fn nothing_is_in_every_mask() {
        assert!(QpAttrMask::NONE.contains(QpAttrMask::NONE));
        assert!(TO_INIT.contains(QpAttrMask::NONE));
        assert!(!QpAttrMask::NONE.contains(QpAttrMask::STATE));
    }

    #[test]
    fn a_mask_is_that_of_the_core() {
        assert!(QpAttrMask::from_raw(bindings::ib_qp_attr_mask_IB_QP_STATE) == QpAttrMask::STATE);
        assert!(QpAttrMask::from_raw(0) == QpAttrMask::NONE);
    }

    #[test]
    fn attributes_are_read_from_their_fields() {
        let raw = bindings::ib_qp_attr {
            qp_state: bindings::ib_qp_state_IB_QPS_RTR,
            cur_qp_state: bindings::ib_qp_state_IB_QPS_INIT,
            pkey_index: 1,
            port_num: 2,
            qkey: 3,
            sq_psn: 4,
            rnr_retry: 5,
            ..raw()
        };
        let attr = QpAttr::from_raw(&raw, bindings::ib_qp_attr_mask_IB_QP_STATE);
        assert!(attr.state == QpState::Rtr);
        assert!(attr.cur_state == QpState::Init);
        assert_eq!(attr.pkey_index, 1);
        assert_eq!(attr.port_num, 2);
        assert_eq!(attr.qkey, 3);
        assert_eq!(attr.sq_psn, 4);
        assert_eq!(attr.rnr_retry, 5);
    }

    #[test]
    fn the_mask_of_attributes_is_kept() {
        let attr = QpAttr::from_raw(&raw(), bindings::ib_qp_attr_mask_IB_QP_QKEY);
        assert!(attr.mask == QpAttrMask::QKEY);
        assert!(!attr.en_sqd_async_notify);
    }

    #[test]
    fn a_state_that_is_none_is_the_error_state() {
        let raw = bindings::ib_qp_attr {
            qp_state: 1000,
            ..raw()
        };
        assert!(QpAttr::from_raw(&raw, 0).state == QpState::Err);
    }

    #[test]
    fn queried_attributes_reach_their_fields() {
        let queried = QueriedQp {
            state: QpState::Rts,
            qkey: 1,
            sq_psn: 2,
            sq_draining: true,
            port_num: 3,
            rnr_retry: 4,
            cap: CAP,
        };
        let raw = queried.to_raw();
        assert_eq!(raw.qp_state, bindings::ib_qp_state_IB_QPS_RTS);
        assert_eq!(raw.qkey, 1);
        assert_eq!(raw.sq_psn, 2);
        assert_eq!(raw.sq_draining, 1);
        assert_eq!(raw.port_num, 3);
        assert_eq!(raw.rnr_retry, 4);
        assert_eq!(raw.cap.max_send_wr, CAP.max_send_wr);
    }

    #[test]
    fn queried_attributes_that_are_not_listed_are_zero() {
        let queried = QueriedQp {
            state: QpState::Reset,
            qkey: 0,
            sq_psn: 0,
            sq_draining: false,
            port_num: 1,
            rnr_retry: 0,
            cap: QpCap::default(),
        };
        let raw = queried.to_raw();
        assert_eq!(raw.dest_qp_num, 0);
        assert_eq!(raw.rq_psn, 0);
        assert_eq!(raw.timeout, 0);
    }

    #[test]
    fn datagram_queue_pair_comes_up() {
        assert!(ud_transition_is_ok(QpState::Reset, QpState::Init, TO_INIT));
        assert!(ud_transition_is_ok(
            QpState::Init,
            QpState::Rtr,
            QpAttrMask::STATE
        ));
        assert!(ud_transition_is_ok(
            QpState::Rtr,
            QpState::Rts,
            QpAttrMask::STATE.or(QpAttrMask::SQ_PSN)
        ));
    }

    #[test]
    fn a_state_cannot_be_left_out() {
        assert!(!ud_transition_is_ok(
            QpState::Reset,
            QpState::Rts,
            QpAttrMask::STATE.or(QpAttrMask::SQ_PSN)
        ));
    }

    #[test]
    fn a_required_attribute_cannot_be_left_out() {
        assert!(!ud_transition_is_ok(
            QpState::Reset,
            QpState::Init,
            QpAttrMask::STATE.or(QpAttrMask::PORT)
        ));
    }

    #[test]
    fn an_attribute_too_many_is_refused() {
        assert!(!ud_transition_is_ok(
            QpState::Init,
            QpState::Rtr,
            QpAttrMask::STATE.or(QpAttrMask::SQ_PSN)
        ));
    }

    #[test]
    fn every_state_may_be_reset() {
        let mask = QpAttrMask::STATE;
        for state in STATES {
            assert!(ud_transition_is_ok(state, QpState::Reset, mask));
        }
    }

    #[test]
    fn every_state_but_reset_may_go_to_error() {
        let mask = QpAttrMask::STATE;
        for state in STATES {
            let is_reset = state == QpState::Reset;
            assert!(ud_transition_is_ok(state, QpState::Err, mask) != is_reset);
        }
    }

    #[test]
    fn transports_differ() {
        assert!(QpType::UD != QpType::DRIVER);
        assert!(QpType::from_raw(bindings::ib_qp_type_IB_QPT_UD) == QpType::UD);
    }
}
