// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The metrics, as a collector receives them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    net::TcpStream,
};

use efa_hw::{admin::qp::QpType, io::CompStatus};
use efa_testing::{
    machine::{Emulator, End, free_address},
    qp::Send,
    wait::{patience, wait_for},
};
use serde_json::json;

/// Starts an emulator of two devices. Also returns the address of its metrics.
fn start() -> (Emulator, String) {
    let address = free_address().to_string();
    (Emulator::start(2, &["--metrics", &address]), address)
}

/// Sends a request, and returns the response, which is empty if there is none.
fn exchange(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(patience())).unwrap();
    let mut answer = Vec::new();
    if stream.write_all(request).is_ok() {
        let _ = stream.read_to_end(&mut answer);
    }
    String::from_utf8(answer).unwrap()
}

/// Fetches and parses the metrics.
fn scrape(address: &str) -> Metrics {
    let answer = exchange(address, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let content_type = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(content_type), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())));
    Metrics::parse(body)
}

/// Metrics in the OpenMetrics text format, all lines of which are valid.
#[derive(Debug, Default)]
struct Metrics {
    /// The kind of each family.
    kinds: BTreeMap<String, String>,
    /// The samples, by name with labels.
    samples: BTreeMap<String, f64>,
}

impl Metrics {
    fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        let (text, end) = text.split_at(text.len() - "# EOF\n".len());
        assert_eq!(end, "# EOF\n");
        let (mut family, mut kind, mut unit) = (String::new(), String::new(), String::new());
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let mut words = comment.splitn(3, ' ');
                let [what, name, text] = [(); 3].map(|()| words.next().expect(line));
                match what {
                    "HELP" => {
                        assert!(is_name(name) && name.starts_with("efa_emu_"), "{line}");
                        assert!(!text.is_empty(), "{line}");
                        (family, kind, unit) = (name.to_owned(), String::new(), String::new());
                    }
                    "TYPE" => {
                        assert_eq!(name, family, "{line}");
                        kind = text.to_owned();
                        let old = metrics.kinds.insert(family.clone(), kind.clone());
                        assert_eq!(old, None, "{line} twice");
                    }
                    "UNIT" => {
                        assert_eq!(name, family, "{line}");
                        unit = text.to_owned();
                        // Base units only.
                        assert!(["bytes", "seconds"].contains(&text), "{line}");
                        assert!(family.ends_with(&format!("_{unit}")), "{line}");
                    }
                    _ => panic!("{line}"),
                }
                continue;
            }
            let units = ["bytes", "seconds"].into_iter();
            let suffixes = units.filter(|unit| family.ends_with(&format!("_{unit}")));
            assert!(
                suffixes.eq(Some(unit.as_str()).filter(|unit| !unit.is_empty())),
                "{line}"
            );
            let (sample, value) = line.rsplit_once(' ').expect(line);
            let value: f64 = value.parse().expect(line);
            let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            let suffix = name.strip_prefix(&family).expect(line);
            let suffixes: &[&str] = match kind.as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                "histogram" => &["_sum", "_count", "_bucket"],
                _ => panic!("{line} of no kind"),
            };
            assert!(is_name(name) && suffixes.contains(&suffix), "{line}");
            let labels = labels.strip_suffix('}').expect(line);
            let mut names = BTreeSet::new();
            for label in labels.split("\",").filter(|label| !label.is_empty()) {
                let (name, _) = label.split_once("=\"").expect(line);
                assert!(is_name(name) && names.insert(name), "{line}");
            }
            let old = metrics.samples.insert(sample.to_owned(), value);
            assert_eq!(old, None, "{line} twice");
        }
        metrics.check_histograms();
        metrics
    }

    /// Checks that the buckets of each histogram grow up to its count.
    fn check_histograms(&self) {
        let mut last: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for (name, kind) in &self.kinds {
            if kind != "histogram" {
                continue;
            }
            let mut buckets = BTreeMap::<String, Vec<(f64, f64)>>::new();
            for (sample, value) in &self.samples {
                if let Some(labels) = sample.strip_prefix(&format!("{name}_bucket{{")) {
                    let (before, le) = labels.split_once("le=\"").expect(sample);
                    let (le, after) = le.split_once('"').expect(sample);
                    let key = format!("{before}{after}").replace(",,", ",");
                    let key = key.trim_start_matches(',').to_owned();
                    let le = if le == "+Inf" {
                        f64::INFINITY
                    } else {
                        le.parse().unwrap()
                    };
                    buckets.entry(key).or_default().push((le, *value));
                }
            }
            for (labels, mut buckets) in buckets {
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{name} {labels}");
                last.insert(format!("{name}_count{{{labels}"), *buckets.last().unwrap());
            }
        }
        for (count, (le, value)) in last {
            assert_eq!(le, f64::INFINITY, "{count}");
            assert_eq!(self.samples.get(&count), Some(&value), "{count}");
        }
    }

    fn get(&self, sample: &str) -> f64 {
        let sample = format!("efa_emu_{sample}");
        *self
            .samples
            .get(&sample)
            .unwrap_or_else(|| panic!("{sample} is not in {:#?}", self.samples))
    }
}

fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let mut bytes = name.bytes();
    bytes.next().is_some_and(letter) && bytes.all(|byte| letter(byte) || byte.is_ascii_digit())
}

/// Sends a message and an RDMA write from one machine to another.
fn work(a: &mut End, b: &mut End) {
    End::introduce(a, b);
    b.receive(0, 8928);
    let send = Send::message(&b.qp, &a.region, 1000);
    assert_eq!(a.run(&send), CompStatus::Ok);
    assert_eq!(b.wait(), CompStatus::Ok);
    let write = Send::write(&b.qp, &a.region, &b.region, 100_000);
    assert_eq!(a.run(&write), CompStatus::Ok);
}

#[test]
fn metrics_count_the_work_of_devices() {
    let (emulator, address) = start();
    let before = scrape(&address);
    assert_eq!(before.get("device_ready{device=\"1\"}"), 1.0);
    assert_eq!(before.get("send_work_requests_total{device=\"0\"}"), 0.0);
    let rule = json!({"when": {"opcode": "GET_STATS"}, "then": {"status": "RESOURCE_BUSY"}});
    emulator.ask(&json!({"command": "inject", "device": 1, "rule": rule}));
    let [mut a, mut b] = [0, 1].map(|device| End::new(&emulator.device(device), QpType::Srd));
    work(&mut a, &mut b);
    let error = b.machine.execute(&efa_hw::stats::GetStats::default());
    assert!(error.is_err());

    let after = scrape(&address);
    for (sample, expected) in [
        ("send_work_requests_total{device=\"0\"}", 1.0),
        ("send_bytes_total{device=\"0\"}", 1000.0),
        ("receive_bytes_total{device=\"1\"}", 1000.0),
        ("rdma_write_bytes_total{device=\"0\"}", 100_000.0),
        ("rdma_write_receive_bytes_total{device=\"1\"}", 100_000.0),
        (
            "admin_commands_total{device=\"0\",opcode=\"CREATE_QP\"}",
            1.0,
        ),
        (
            "admin_command_failures_total{device=\"0\",opcode=\"CREATE_QP\"}",
            0.0,
        ),
        (
            "admin_command_failures_total{device=\"1\",opcode=\"GET_STATS\"}",
            1.0,
        ),
        ("fault_hits_total{device=\"1\"}", 1.0),
        ("objects{device=\"0\",kind=\"qp\"}", 1.0),
        ("protocol_errors_total{device=\"0\"}", 0.0),
        (
            "work_request_duration_seconds_count{device=\"0\",operation=\"SEND\"}",
            1.0,
        ),
        (
            "work_request_duration_seconds_count{device=\"0\",operation=\"RDMA_WRITE\"}",
            1.0,
        ),
        (
            "admin_command_duration_seconds_count{device=\"0\",opcode=\"CREATE_QP\"}",
            1.0,
        ),
        ("overflowed_packets_total", 0.0),
        ("remote_devices", 0.0),
    ] {
        assert_eq!(after.get(sample), expected, "{sample}");
    }
    let sum = "work_request_duration_seconds_sum{device=\"0\",operation=\"SEND\"}";
    assert!(after.get(sum) > 1e-7);
    let packets: f64 = (0..4)
        .map(|path| after.get(&format!("path_packets_total{{path=\"{path}\"}}")))
        .sum();
    assert!(packets > 0.0);
    // The metrics have all counters that the command `counters` lists.
    let counters = emulator.ask(&json!({"command": "counters"}));
    let counters = counters["ok"]["devices"][0].as_object().unwrap().clone();
    let exported = after.samples.keys();
    let exported = exported
        .filter(|name| name.ends_with("_total{device=\"0\"}"))
        .count();
    assert_eq!(exported, counters.len() + COUNTERS);
}

/// Counters of a device that are not statistics.
const COUNTERS: usize = 11;

#[test]
fn a_rule_makes_commands_late() {
    let (emulator, address) = start();
    let rule = json!({"when": {"opcode": "ALLOC_PD"}, "then": {"delay_ms": 70}});
    emulator.ask(&json!({"command": "inject", "rule": rule}));
    let _end = End::new(&emulator.device(0), QpType::Srd);
    let metrics = scrape(&address);
    let sum = metrics.get("admin_command_duration_seconds_sum{device=\"0\",opcode=\"ALLOC_PD\"}");
    assert!(sum >= 0.07, "{sum}");
}

#[test]
fn invalid_requests_have_an_error_status() {
    let (_emulator, address) = start();
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"GET /metrics HTTP/1.1\r\nno header\r\n\r\n", "400"),
        (b"\0\xff\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "400"),
    ] {
        let answer = exchange(&address, request);
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{request:?}: {answer}");
    }
    let endless = [&b"GET /metrics HTTP/1.1\r\nX: "[..], &[b'x'; 8192 - 26]].concat();
    assert!(exchange(&address, &endless).starts_with("HTTP/1.1 431 "));
    let head = exchange(&address, b"HEAD /metrics?x=y HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"));
}

#[test]
fn idle_clients_do_not_block_others() {
    let (_emulator, address) = start();
    let mut idle = Vec::new();
    // A client that sends a byte now and then counts as idle, too.
    let slow = TcpStream::connect(&address).unwrap();
    wait_for("response while other clients are idle", || {
        // The maximum number of connections, again and again.
        idle.extend((0..16).map(|_| TcpStream::connect(&address).unwrap()));
        let _ = (&slow).write_all(b"G");
        let answer = exchange(&address, b"GET /metrics HTTP/1.1\r\n\r\n");
        match answer.starts_with("HTTP/1.1 200 OK\r\n") {
            true => Ok(()),
            false => Err(answer),
        }
    });
}
