#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_counters)]
mod tests {
    use super::*;

    const COUNTERS: &[CounterDesc] =
        &[CounterDesc::new(c"tx_bytes"), CounterDesc::new(c"rx_bytes")];

    #[test]
    fn as_many_values_as_counters() -> Result {
        let stats = alloc(COUNTERS);
        assert!(!stats.is_null());
        {
            // SAFETY: The structure was just allocated, and has no other user.
            let values = unsafe { values(stats) };
            assert_eq!(values.len(), COUNTERS.len());
            values.fill(1);
        }
        // SAFETY: The structure was allocated by `alloc`, and is not used any more.
        unsafe { bindings::rdma_free_hw_stats_struct(stats) };
        Ok(())
    }

    #[test]
    fn a_counter_is_always_on() {
        assert_eq!(COUNTERS[0].0.flags, 0);
    }
}
