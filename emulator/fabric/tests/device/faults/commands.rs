// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rules for commands. `scenarios` has more, and those for registers and resets.

use super::*;

/// A completion: whether its id and its checksum are right, and its bytes 8 and 63.
type Seen = (bool, bool, [u8; 2]);

/// Takes all completions.
fn seen(driver: &mut Driver, id: u16) -> Vec<Seen> {
    let seen = |(its, _, entry): (u16, u8, AcqEntry)| {
        let checksum = AcqHeader::of(&entry).checksum == checksum::of_entry(&entry);
        (its == id, checksum, [entry[8], entry[63]])
    };
    from_fn(|| driver.completion()).map(seen).collect()
}

/// Each command is executed. It has these completions, at once and after 50 ms, and this many interrupts.
#[test]
fn completions() {
    // The number of the protection domain is in byte 8.
    let (good, bad_checksum) = ((true, true, [1, 0]), (true, false, [1, 0]));
    let corrupt = r#"{"corrupt":[{"offset":8,"value":255},{"offset":63,"value":1}]}"#;
    let rows: [(&str, &[Seen], &[Seen], usize); 8] = [
        (r#"{"silence":true}"#, &[], &[], 0),
        (r#"{"delay_ms":50}"#, &[], &[good], 1),
        (r#"{"duplicate":true}"#, &[good, good], &[], 1),
        (r#"{"wrong_id":true}"#, &[(false, true, [1, 0])], &[], 1),
        (r#"{"wrong_checksum":true}"#, &[bad_checksum], &[], 1),
        (r#"{"wrong_phase":true}"#, &[], &[], 1),
        (r#"{"no_interrupt":true}"#, &[good], &[], 0),
        (corrupt, &[(true, true, [255, 1])], &[], 1),
    ];
    for (then, at_once, later, interrupts) in rows {
        let mut driver = Driver::new(Profile::Efa2);
        driver.inject(&format!(r#"{{"when":{{"opcode":"ALLOC_PD"}},"then":{then}}}"#));
        let id = driver.submit(&AllocPd {});
        assert_eq!(seen(&mut driver, id), at_once, "{then}");
        driver.run(Duration::from_millis(50));
        assert_eq!(seen(&mut driver, id), later, "{then}");
        let raised = driver.world.take_interrupts();
        assert_eq!(raised, vec![0; interrupts], "{then}");
        // The command is not in flight any more.
        let state = driver.device.state();
        assert_eq!(state.resources.pd, 1, "{then}");
        assert_eq!(state.admin.in_flight, 0, "{then}");
        let completed = u64::from(!then.contains("silence"));
        assert_eq!(state.admin.submitted, 1, "{then}");
        assert_eq!(state.admin.completed, completed, "{then}");
        let line = "ALLOC_PD() = no completion (injected)";
        assert_eq!(driver.world.traced(&[line]), completed == 0, "{then}");
        driver.submit(&AllocUar {});
        assert_eq!(driver.world.take_interrupts(), [0], "{then}");
    }
}

/// Each line of the file has a rule, and a part of its error.
#[test]
fn invalid_rules() {
    for case in include_str!("invalid_rules.txt").lines() {
        let (json, part) = case.split_once(" | ").expect(case);
        let error = serde_json::from_str::<Rule>(json).expect_err(json);
        assert!(error.to_string().contains(part), "{json}: {error}");
    }
}
