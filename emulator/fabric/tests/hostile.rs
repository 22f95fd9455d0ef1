// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Programs that do anything to their queues: no panic, no forbidden access to memory, and the devices keep working.

use proptest::{collection::vec, prelude::*};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn attacks_do_no_harm(data in vec(any::<u8>(), 0..4000)) {
        efa_testing::attack::programs::play(&data);
    }
}
