#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_comp_cntr)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_its_parts() {
        let ops = QpAttachOps::SEND.with_if(true, QpAttachOps::RECV);
        assert!(ops.contains(QpAttachOps::SEND));
        assert!(ops.contains(QpAttachOps::RECV));
        assert!(!ops.contains(QpAttachOps::RDMA_READ));
    }

    #[test]
    fn nothing_is_added_without_the_condition() {
        let ops = QpAttachOps::SEND.with_if(false, QpAttachOps::RECV);
        assert!(ops == QpAttachOps::SEND);
    }

    #[test]
    fn the_empty_set_is_in_every_set() {
        assert!(QpAttachOps::SEND.contains(QpAttachOps::default()));
        assert!(!QpAttachOps::default().contains(QpAttachOps::SEND));
    }

    #[test]
    fn operations_are_different_bits() {
        let all = [
            QpAttachOps::SEND,
            QpAttachOps::RECV,
            QpAttachOps::RDMA_READ,
            QpAttachOps::REMOTE_RDMA_READ,
            QpAttachOps::RDMA_WRITE,
            QpAttachOps::REMOTE_RDMA_WRITE,
        ]
        .iter()
        .fold(0, |all, op| all | op.0);
        assert_eq!(all.count_ones(), 6);
    }

    #[test]
    fn numbers_of_attributes_have_a_limit() {
        for namespace in [0, 1 << 12] {
            assert!(is_attribute(namespace));
            assert!(is_attribute(namespace | 30));
            assert!(!is_attribute(namespace | 31));
        }
        assert!(!is_attribute(u16::MAX));
    }

    #[test]
    fn the_entry_of_failures_is_found() {
        let raw = bindings::ib_comp_cntr_entry_IB_COMP_CNTR_ENTRY_ERR;
        assert!(CompCntrEntry::from_raw(raw) == CompCntrEntry::Err);
    }

    #[test]
    fn the_entry_of_successes_is_found() {
        let raw = bindings::ib_comp_cntr_entry_IB_COMP_CNTR_ENTRY_COMP;
        assert!(CompCntrEntry::from_raw(raw) == CompCntrEntry::Comp);
    }

    #[test]
    fn operations_keep_their_value() {
        let set = bindings::ib_comp_cntr_modify_op_IB_COMP_CNTR_MODIFY_OP_SET;
        let inc = bindings::ib_comp_cntr_modify_op_IB_COMP_CNTR_MODIFY_OP_INC;
        assert!(matches!(
            CompCntrModifyOp::from_raw(set, 5),
            CompCntrModifyOp::Set(5)
        ));
        assert!(matches!(
            CompCntrModifyOp::from_raw(inc, 6),
            CompCntrModifyOp::Inc(6)
        ));
    }
}
