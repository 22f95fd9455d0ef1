// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The trace and its readers.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use efa_testing::wait::{patience, wait_for};
use rustix::fs::{CWD, mkfifoat};
use serde_json::json;

use super::{Control, Emulator, failure, program, socket_in};

/// Options for a device whose socket cannot be created.
const NOWHERE: [&str; 2] = ["--device", "socket=/nowhere/socket"];

/// Waits until a file has so many lines, and returns its text.
fn read_when_there(path: &Path, lines: usize) -> String {
    wait_for("file with enough lines", || {
        let text = fs::read_to_string(path).unwrap();
        match text.lines().count() >= lines {
            true => Ok(text),
            false => Err(text),
        }
    })
}

/// Makes a device post events, each of which is a line of the trace.
fn post_events(control: &mut Control, count: usize) {
    let event = json!({"command": "event", "device": 1, "group": "WARNING"});
    let requests = format!("{event}\n").repeat(count);
    thread::scope(|scope| {
        let mut writer = control.0.get_ref().try_clone().unwrap();
        scope.spawn(move || writer.write_all(requests.as_bytes()).unwrap());
        for _ in 0..count {
            control.reply();
        }
    });
}

/// Returns the number of lines of a trace, and the number of lines that it reports as lost.
fn counted(text: &str) -> (usize, usize) {
    let mut counts = (0, 0);
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        assert!(words[0].parse::<f64>().is_ok() && words[1] == "1", "{line}");
        match words[2] {
            "lost" => counts.1 += words[3].trim_end_matches(',').parse::<usize>().unwrap(),
            "aenq" => counts.0 += 1,
            _ => panic!("{line}"),
        }
    }
    counts
}

/// Starts a reader of a pipe, and returns its lines.
fn read_pipe(pipe: PathBuf) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let pipe = BufReader::new(File::open(pipe).unwrap());
        for line in pipe.lines() {
            let _ = sender.send(line.unwrap());
        }
    });
    lines
}

#[test]
fn an_unread_trace_does_not_block_devices() {
    const EVENTS: usize = 20_000;

    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    mkfifoat(CWD, &pipe, 0o600.into()).unwrap();
    let options = vec![
        "--instance".into(),
        // With so many devices, the buffer's share of each is small. Their descriptors are within a hard limit of 4096.
        format!("p5.48xlarge,msix=1,{}", socket_in(&folder, "efa")),
        "--trace".into(),
        pipe.to_str().unwrap().into(),
    ];
    let mut emulator = Emulator::start_with(folder, options);
    post_events(&mut emulator.control(), EVENTS);

    // A reader gets the lines in the pipe and in the emulator, and the number of lost lines.
    let reader = read_pipe(pipe);
    let (mut lines, mut lost) = (0, 0);
    while lines + lost < EVENTS {
        let (line, missing) = counted(&reader.recv_timeout(patience()).unwrap());
        lines += line;
        lost += missing;
    }
    emulator.terminate();
    assert_eq!(reader.iter().next(), None);
    assert_eq!(lines + lost, EVENTS);
    assert!(
        (1000..10_000).contains(&lines),
        "{lines} lines, {lost} lost"
    );
}

#[test]
fn the_end_does_not_wait_for_readers_of_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    mkfifoat(CWD, &pipe, 0o600.into()).unwrap();
    let mut emulator = Emulator::start(&["--trace", pipe.to_str().unwrap()]);
    post_events(&mut emulator.control(), 10_000);
    emulator.terminate();
}

#[test]
fn the_trace_is_whole_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let mut emulator = Emulator::start(&["--trace", path.to_str().unwrap()]);
    post_events(&mut emulator.control(), 20_000);
    emulator.terminate();
    assert_eq!(counted(&fs::read_to_string(&path).unwrap()), (20_000, 0));
}

#[test]
fn the_trace_has_a_filter() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let trace = path.to_str().unwrap();
    for (filter, expected) in [
        ("events", 1),
        ("1:admin,events", 1),
        ("0:events", 0),
        ("admin", 0),
    ] {
        let mut emulator = Emulator::start(&["--trace", trace, "--trace-filter", filter]);
        post_events(&mut emulator.control(), 1);
        emulator.terminate();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(counted(&text), (expected, 0), "{filter}: {text}");
    }

    for (options, part) in [
        (
            &["--trace", trace, "--trace-filter", "x"][..],
            "no such kind: `x`",
        ),
        (&["--trace-filter", "all"], "--trace <FILE>"),
    ] {
        let error = failure(2, program().args(NOWHERE).args(options));
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_trace_is_written_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let emulator = Emulator::start(&["--trace", path.to_str().unwrap()]);
    emulator
        .control()
        .ok(&json!({"command": "event", "device": 1, "group": "WARNING"}));
    let text = read_when_there(&path, 1);
    let words: Vec<_> = text.split_whitespace().collect();
    assert!(words[0].parse::<f64>().unwrap() < 60.0, "{text}");
    assert_eq!(words[1], "1", "{text}");
    assert!(text.ends_with('\n'), "{text}");

    let trace = ["--trace", "/nowhere/trace"];
    let error = failure(1, program().args(NOWHERE).args(trace));
    assert!(error.contains("cannot write the trace /nowhere/trace"));
}

#[test]
fn errors_name_queues_that_do_not_exist() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    for (request, expected) in [
        (
            json!({"command": "peek", "queue": {"cq": 1}, "length": 8}),
            "there is no completion queue 1",
        ),
        (
            json!({"command": "peek", "queue": {"cq": 1}, "length": 4097}),
            "at most 4096 bytes",
        ),
        (
            json!({"command": "poke", "queue": {"rq": 2}, "offset": 8, "data": [1, 255]}),
            "there is no receive queue of a queue pair 2",
        ),
        (
            json!({"command": "poke", "queue": {"rq": 2}, "data": [256]}),
            "256",
        ),
        (
            json!({"command": "poke", "queue": {"sq": 2}, "data": []}),
            "unknown variant `sq`",
        ),
        (
            json!({"command": "notify", "cq": 3}),
            "there is no completion queue 3",
        ),
        (
            json!({"command": "notify", "eq": 4, "cq": 3, "device": 1}),
            "there is no event queue 4",
        ),
    ] {
        control.refuses(request.to_string(), expected);
    }
}

#[test]
fn clients_can_request_the_trace() {
    let emulator = Emulator::start(&[]);
    let mut control = emulator.control();
    let event = json!({"command": "event", "device": 1, "group": "WARNING"});
    let trace = |device| json!({"command": "trace", "device": device});
    let nothing = json!({"lines": [], "wire": [], "lost": 0});

    // No line is kept before the first request, returned twice, or returned for another device.
    control.ok(&event);
    assert_eq!(control.ok(&trace(1)), nothing);
    control.ok(&event);
    assert_eq!(control.ok(&trace(0)), nothing);
    let recent = control.ok(&trace(1));
    let line = recent["lines"][0].as_str().unwrap();
    assert!(line.starts_with("aenq WARNING"), "{recent}");
    assert_eq!(control.ok(&trace(1)), nothing);
    control.refuses(trace(2).to_string(), "no device 2");

    // The newest lines are kept.
    post_events(&mut control, 16384 + 10);
    let recent = control.ok(&trace(1));
    assert_eq!(recent["lines"].as_array().unwrap().len(), 16384);
    assert_eq!(recent["lost"], json!(10));
}
