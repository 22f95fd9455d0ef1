#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_mr_attr)]
mod tests {
    use super::*;

    // CAST: A set of bits.
    const OPTIONAL: c_int = bindings::ib_access_flags_IB_ACCESS_RELAXED_ORDERING as c_int;

    #[test]
    fn access_has_the_bits_of_the_caller() {
        assert_eq!(Access::from_raw(0).bits(), 0);
        assert_eq!(Access::from_raw(7).bits(), 7);
        assert_eq!(Access::from_raw(-1).bits(), u32::MAX);
    }

    #[test]
    fn optional_flags_may_be_ignored() {
        assert_eq!(Access::from_raw(OPTIONAL).required(), 0);
    }

    #[test]
    fn other_flags_may_not_be_ignored() {
        // CAST: A set of bits.
        let flags = (Access::LOCAL_WRITE | Access::REMOTE_READ) as c_int;
        let access = Access::from_raw(flags | OPTIONAL);
        assert_eq!(access.required(), Access::LOCAL_WRITE | Access::REMOTE_READ);
        assert_eq!(access.bits() & access.required(), access.required());
    }

    #[test]
    fn flags_are_different_bits() {
        let flags = [
            Access::LOCAL_WRITE,
            Access::REMOTE_WRITE,
            Access::REMOTE_READ,
        ];
        let all = flags.iter().fold(0, |all, flag| all | flag);
        assert_eq!(all.count_ones(), 3);
    }

    #[test]
    fn keys_are_zero_by_default() {
        let keys = MrKeys::default();
        assert_eq!(keys.lkey, 0);
        assert_eq!(keys.rkey, 0);
    }
}
