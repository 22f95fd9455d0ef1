// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The guide lists each counter and each event that a driver knows, with requests that provoke it.

use efa_testing::prelude::*;
use serde_json::{Value, json};

const GUIDE: &str = include_str!("../../../Documentation/emulator-faults.md");
const CONTROL: &str = include_str!("../../../Documentation/emulator-control.md");
const DRIVER: &str = include_str!("../../../efa_rs/verbs/counters.rs");

/// Bytes of each transfer: enough packets for all paths.
const LENGTH: u32 = 1 << 20;

/// Returns the rows of the tables under a heading: all names, and the requests for them.
fn rows(heading: &str) -> Vec<(Vec<&'static str>, Vec<Value>)> {
    let section = GUIDE.split("\n## ").find_map(|it| it.strip_prefix(heading));
    let rows = section.unwrap().lines().filter(|line| line.starts_with("| `"));
    let row = |line: &'static str| {
        let (names, how) = line[1..].split_once(" | ").unwrap();
        let requests = quoted(how).into_iter().filter(|span| span.starts_with('{'));
        let requests = requests.map(|json| serde_json::from_str(json).unwrap());
        (quoted(names), requests.collect())
    };
    rows.map(row).collect()
}

/// Returns the parts in backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns the driver's counters of a kind.
fn counters(kind: &str) -> Vec<&'static str> {
    let list = DRIVER.split(&format!("const {kind}: ")).nth(1).unwrap();
    let names = list.split("];").next().unwrap().split("c\"").skip(1);
    names.filter_map(|name| name.split('"').next()).collect()
}

#[test]
fn the_guide_has_each_of_them_once() {
    let mut guide: Vec<_> = rows("What provokes each counter").into_iter().flat_map(|(names, _)| names).collect();
    let mut driver = [counters("DEVICE"), counters("PORT")].concat();
    assert!(driver.len() > 40, "{driver:?}");
    guide.sort_unstable();
    driver.sort_unstable();
    assert_eq!(guide, driver);
    let groups: Vec<_> = rows("What provokes each event").into_iter().flat_map(|(names, _)| names).collect();
    assert_eq!(groups, AenqGroup::ALL.iter().map(|it| it.name()).collect::<Vec<_>>());
}

fn give(emulator: &Emulator, requests: &[Value]) {
    requests.iter().for_each(|request| drop(emulator.ok(request)));
}

/// Returns the sums of the counters of all devices.
fn counted(emulator: &Emulator) -> BTreeMap<String, u64> {
    let counters = emulator.ok(&json!({"command": "counters"}));
    let mut sum = BTreeMap::new();
    for device in counters["devices"].as_array().unwrap() {
        for (name, value) in device.as_object().unwrap() {
            *sum.entry(name.clone()).or_default() += value.as_u64().unwrap();
        }
    }
    sum
}

/// Sends requests, then moves data by each operation between two machines, until these counters of the driver are above zero.
fn provoke(names: &[&str], requests: &[Value]) {
    let emulator = Emulator::start(2, &["--seed", "1"]);
    let [mut a, mut b] = End::pair([0, 1].map(|at| emulator.device(at)), QpType::Srd);
    give(&emulator, requests);
    for _ in 0..3 {
        b.receive(0, 8192);
        a.put(&Send::message(&b.qp, &a.region, 4096));
    }
    let write = Send::write(&b.qp, &a.region, &b.region, LENGTH);
    let read = Send::read(&b.qp, &a.region, &b.region, LENGTH);
    for send in [write, read] {
        a.put(&send);
    }
    a.ring();
    wait_for(&format!("{names:?}"), || {
        let counted = counted(&emulator);
        // The driver's names of counters of reads and writes have the prefix `rdma_`.
        let value = |name: &&str| counted[name.trim_start_matches("rdma_")];
        match names.iter().all(|name| value(name) > 0) {
            true => Ok(()),
            false => Err(counted),
        }
    });
}

#[test]
fn each_counter_of_the_port() {
    let port = counters("PORT");
    for (names, requests) in rows("What provokes each counter") {
        if port.contains(&names[0]) {
            provoke(&names, &requests);
        }
    }
}

#[test]
fn each_command_for_counters_of_the_device() {
    let device = counters("DEVICE");
    let emulator = Emulator::start(1, &[]);
    for (names, requests) in rows("What provokes each counter") {
        if device.contains(&names[0]) {
            give(&emulator, &requests);
        }
    }
}

#[test]
fn each_event() {
    let emulator = Emulator::start(1, &[]);
    let trace = json!({"command": "trace"});
    emulator.ask(&trace);
    for (names, requests) in rows("What provokes each event") {
        give(&emulator, &requests);
        let lines = emulator.ask(&trace)["ok"]["lines"].to_string();
        assert!(lines.contains(names[0]), "{names:?}: {lines}");
    }
}

#[test]
fn the_scenario_of_the_guide() {
    let section = CONTROL.split("\n## Scenarios").nth(1).unwrap();
    let scenario = section.split("```").nth(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario");
    std::fs::write(&file, scenario).unwrap();
    let emulator = Emulator::start(2, &["--scenario", file.to_str().unwrap()]);
    let state = emulator.ask(&json!({"command": "state"}));
    assert_eq!(state["ok"]["faults"], 2);
    let network = emulator.ask(&json!({"command": "fabric"}));
    assert_eq!(network["ok"]["settings"]["path"][0]["down"], true);
}
