#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_client_transport)]
mod tests {
    use super::*;

    #[test]
    fn the_next_key_differs_in_its_generation() {
        assert_eq!(Transport::UD.next_key(0x1200), 0x1201);
        assert_eq!(Transport::EFA_SRD.next_key(0x0012_3456), 0x0022_3456);
    }

    #[test]
    fn generations_wrap() {
        assert_eq!(Transport::UD.next_key(0x12ff), 0x1200);
        assert_eq!(Transport::EFA_SRD.next_key(0x01f2_3456), 0x0102_3456);
    }
}
