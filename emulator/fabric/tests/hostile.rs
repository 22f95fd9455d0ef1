// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Whatever a program does to its queues: nothing panics, no byte moves that may not, and the devices work on.

use proptest::{collection::vec, prelude::*};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn attacks_do_no_harm(data in vec(any::<u8>(), 0..4000)) {
        efa_testing::attack::programs::play(&data);
    }
}
