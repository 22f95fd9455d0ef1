// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The trace, the capture, and their readers.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use rustix::fs::{CWD, mkfifoat};

use super::*;

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

fn pipe(folder: &Path) -> PathBuf {
    let pipe = folder.join("pipe");
    mkfifoat(CWD, &pipe, 0o600.into()).unwrap();
    pipe
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
    let own = tempfile::tempdir().unwrap();
    let pipe = pipe(own.path());
    let mut command = program();
    // With so many devices, the buffer's share of each is small. Their descriptors are within a hard limit of 4096.
    let socket = folder.path().join("efa");
    let instance = format!("p5.48xlarge,msix=1,socket={}", socket.display());
    command.args(["--instance", &instance, "--trace"]).arg(&pipe);
    let mut emulator = Emulator::launch(command, folder);
    post_events(&mut emulator.connect(), EVENTS);

    // A reader gets the lines in the pipe and in the emulator, and the number of lost lines.
    let reader = read_pipe(pipe);
    let (mut lines, mut lost) = (0, 0);
    while lines + lost < EVENTS {
        let (line, missing) = counted(&reader.recv_timeout(patience()).unwrap());
        lines += line;
        lost += missing;
    }
    assert_eq!(emulator.end(Signal::TERM), Some(0));
    assert_eq!(reader.iter().next(), None);
    assert_eq!(lines + lost, EVENTS);
    assert!((1000..10_000).contains(&lines), "{lines} lines, {lost} lost");
}

#[test]
fn the_end_does_not_wait_for_readers_of_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = pipe(folder.path());
    let mut emulator = Emulator::start(2, &["--trace", pipe.to_str().unwrap()]);
    post_events(&mut emulator.connect(), 10_000);
    assert_eq!(emulator.end(Signal::TERM), Some(0));
}

/// Files are written soon, and are whole at the end. Both have the same events, but only the trace has a filter.
#[test]
fn events_are_written_to_files() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["trace", "capture"].map(|name| folder.path().join(name));
    let [trace, capture] = paths.each_ref().map(|path| path.to_str().unwrap());
    for (options, count, traced) in [
        (&["--capture", capture][..], 20_000, 20_000),
        (&["--trace-filter", "events", "--capture", capture], 1, 1),
        (&["--trace-filter", "1:admin,events", "--capture", capture], 1, 1),
        (&["--trace-filter", "0:events", "--capture", capture], 1, 0),
        (&["--trace-filter", "admin", "--capture", capture], 1, 0),
        (&[], 1, 1),
    ] {
        let mut emulator = Emulator::start(2, &[&["--trace", trace], options].concat());
        post_events(&mut emulator.connect(), count);
        let text = || fs::read_to_string(trace).unwrap();
        wait_until("trace with a line", || traced == 0 || text().contains('\n'));
        assert_eq!(emulator.end(Signal::TERM), Some(0));
        assert_eq!(counted(&text()), (traced, 0), "{options:?}: {}", text());
        let records = fs::read(capture).unwrap_or_default();
        let events = records.windows(12).filter(|part| part == b"aenq WARNING");
        assert_eq!(events.count(), if options.is_empty() { 0 } else { count });
        let _ = fs::remove_file(capture);
    }
}

#[test]
fn clients_can_request_the_trace() {
    let emulator = Emulator::start(2, &[]);
    let mut control = emulator.connect();
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
