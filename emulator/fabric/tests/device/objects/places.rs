// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Places of queues in the BARs.

use super::*;

/// Places do not overlap, and user access regions do not share pages of doorbells.
#[test]
fn places_in_bars() {
    let mut set = Set::new(Profile::Efa3);
    let uars = [set.uar, set.execute(&AllocUar {}).uar];
    let (llq_size, page) = (4096 * 64, 4096);
    let memory = set.driver.device.memory_bar_size();
    let doorbells = set.driver.device.doorbell_bar_size();
    assert!(memory.is_power_of_two() && doorbells.is_power_of_two());

    let (mut places, mut rings) = (BTreeSet::new(), BTreeSet::new());
    let mut pages = [BTreeSet::new(), BTreeSet::new()];
    for number in 0..256 {
        let uar = number % 2;
        let mut command = set.create_cq_with_events();
        command.uar = uars[uar];
        let cq = set.execute(&command);
        let mut command = create_qp(set.pd, uars[uar], cq.cq_idx, set.ring);
        (command.send_queue_depth, command.send_queue_ring_size) = (2048, 2048 * 128);
        let qp = set.execute(&command);
        for offset in [cq.db_offset, qp.sq_db_offset, qp.rq_db_offset] {
            assert!(u64::from(offset) < doorbells && offset % 4 == 0);
            assert!(places.insert(offset), "two doorbells at {offset:#x}");
            pages[uar].insert(offset / page);
        }
        let ring = qp.llq_descriptors_offset;
        assert!(u64::from(ring) + llq_size <= memory && ring % page == 0);
        rings.insert(u64::from(ring));
    }
    assert!(pages[0].is_disjoint(&pages[1]));
    let next = rings.iter().skip(1);
    assert!(rings.len() == 256 && rings.iter().zip(next).all(|(ring, next)| next - ring >= llq_size));
}

/// BARs are limited to the range of 32-bit offsets, even with larger attributes.
#[test]
fn bar_sizes_are_limited_by_32_bit_offsets() {
    for (max_uar, max_llq_size, sizes) in [(16, 4096, (1 << 26, 1 << 23)), (65535, 1_048_576, (1 << 31, 1 << 31))] {
        let overrides =
            format!(r#"{{"max_qp":16000,"max_cq":16000,"max_uar":{max_uar},"max_llq_size":{max_llq_size}}}"#);
        let device = Device::new(config_with(Profile::Efa3, &overrides));
        assert_eq!(device.memory_bar_size(), sizes.0);
        assert_eq!(device.doorbell_bar_size(), sizes.1);
    }
}
