#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_details)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_order() {
        assert_eq!(Details::new([1, 2, 3, 4]).0, [1, 2, 3, 4]);
    }

    #[test]
    fn values_that_are_missing_are_zero() {
        assert_eq!(Details::new([7]).0, [7, 0, 0, 0]);
        assert_eq!(Details::new([]).0, Details::default().0);
    }
}
