// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The metrics, as a collector receives them.

use super::*;

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

/// Fetches the metrics in the OpenMetrics text format, and checks that all lines are valid.
fn scrape(address: &str) -> String {
    let answer = exchange(address, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let content_type = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(content_type), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())));
    let lines = body.strip_suffix("# EOF\n").unwrap();
    let (mut family, mut kind, mut unit) = ("", "", "");
    let mut seen = BTreeSet::new();
    // Limit and count of the last bucket of a histogram.
    let mut bucket = (0.0, 0.0);
    for line in lines.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let [what, name, text] = [(); 3].map(|()| words.next().expect(line));
            match what {
                "HELP" => (family, kind, unit) = (name, "", ""),
                "TYPE" => kind = text,
                "UNIT" => unit = text,
                _ => panic!("{line}"),
            }
            assert!(is_name(name) && name.starts_with("efa_emu_") && name == family, "{line}");
            assert!(!text.is_empty() && seen.insert((what, name)), "{line}");
            continue;
        }
        // Base units only.
        let ends = ["bytes", "seconds"].into_iter().find(|end| family.ends_with(end));
        assert_eq!(ends.unwrap_or_default(), unit, "{line}");
        let (sample, value) = line.rsplit_once(' ').expect(line);
        let value: f64 = value.parse().expect(line);
        let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let labels = labels.strip_suffix('}').expect(line);
        let labels = labels.split("\",").filter(|label| !label.is_empty());
        let labels: BTreeMap<_, _> = labels.map(|it| it.split_once("=\"").expect(line)).collect();
        assert!(labels.keys().all(|name| is_name(name)), "{line}");
        match (kind, name.strip_prefix(family).expect(line)) {
            ("counter", "_total") | ("gauge", "") | ("histogram", "_sum") => {}
            ("histogram", "_bucket") => {
                let limit = labels["le"].trim_end_matches('"').replace("+Inf", "inf");
                let limit = limit.parse().expect(line);
                assert!(limit > bucket.0 && value >= bucket.1, "{line}");
                bucket = (limit, value);
            }
            ("histogram", "_count") => {
                assert_eq!(bucket, (f64::INFINITY, value), "{line}");
                bucket = (0.0, 0.0);
            }
            _ => panic!("{line}"),
        }
        assert!(seen.insert(("", sample)), "{line} twice");
    }
    body.to_owned()
}

/// Returns the value of a sample.
fn get(metrics: &str, sample: &str) -> f64 {
    let start = format!("efa_emu_{sample} ");
    let mut values = metrics.lines().filter_map(|line| line.strip_prefix(&start));
    values.next().expect(sample).parse().unwrap()
}

fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let mut bytes = name.bytes();
    bytes.next().is_some_and(letter) && bytes.all(|byte| letter(byte) || byte.is_ascii_digit())
}

/// Samples after one message, one RDMA write, and one command that a rule lets fail.
const WORK: &str = r#"
send_work_requests_total{device="0"} 1
send_bytes_total{device="0"} 1000
receive_bytes_total{device="1"} 1000
rdma_write_bytes_total{device="0"} 100000
rdma_write_receive_bytes_total{device="1"} 100000
admin_commands_total{device="0",opcode="CREATE_QP"} 1
admin_command_failures_total{device="0",opcode="CREATE_QP"} 0
admin_command_failures_total{device="1",opcode="GET_STATS"} 1
fault_hits_total{device="1"} 1
objects{device="0",kind="qp"} 1
objects{device="0",kind="mr_page"} 1024
protocol_errors_total{device="0"} 0
work_request_duration_seconds_count{device="0",operation="SEND"} 1
work_request_duration_seconds_count{device="0",operation="RDMA_WRITE"} 1
admin_command_duration_seconds_count{device="0",opcode="CREATE_QP"} 1
device_ready{device="1"} 1
overflowed_packets_total 0
remote_devices 0
"#;

#[test]
fn metrics_count_the_work_of_devices() {
    let (emulator, address) = start();
    let before = scrape(&address);
    assert_eq!(get(&before, "send_work_requests_total{device=\"0\"}"), 0.0);
    for (device, opcode, then) in
        [(0, "ALLOC_PD", json!({"delay_ms": 70})), (1, "GET_STATS", json!({"status": "RESOURCE_BUSY"}))]
    {
        let rule = json!({"when": {"opcode": opcode}, "then": then});
        emulator.ok(&json!({"command": "inject", "device": device, "rule": rule}));
    }
    let [mut a, mut b] = End::pair([0, 1].map(|at| emulator.device(at)), QpType::Srd);
    b.receive(0, 8928);
    let send = Send::message(&b.qp, &a.region, 1000);
    assert_eq!(a.run(&send), CompStatus::Ok);
    assert_eq!(b.wait(), CompStatus::Ok);
    let write = Send::write(&b.qp, &a.region, &b.region, 100_000);
    assert_eq!(a.run(&write), CompStatus::Ok);
    let error = b.machine.execute(&efa_hw::stats::GetStats::default());
    assert!(error.is_err());

    let after = scrape(&address);
    for line in WORK.trim().lines() {
        let line = format!("\nefa_emu_{line}\n");
        assert!(after.contains(&line), "{line}{after}");
    }
    for (sum, least) in [
        ("work_request_duration_seconds_sum{device=\"0\",operation=\"SEND\"}", 1e-7),
        ("admin_command_duration_seconds_sum{device=\"0\",opcode=\"ALLOC_PD\"}", 0.07),
    ] {
        assert!(get(&after, sum) >= least, "{after}");
    }
    let packets = |path| get(&after, &format!("path_packets_total{{path=\"{path}\"}}"));
    assert!((0..4).map(packets).sum::<f64>() > 0.0);
    // The metrics have all counters that the command `counters` lists, and 11 others.
    let counters = emulator.ok(&json!({"command": "counters"}));
    let counters = counters["devices"][0].as_object().unwrap().len();
    assert_eq!(after.matches("_total{device=\"0\"}").count(), counters + 11);
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
