// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The program as its users see it: options, sockets, signals, the control protocol, and what it records.

mod control;
mod links;
mod metrics;
mod options;
mod schemas;
mod trace;

use std::{
    fs::{self, File},
    io::{Read, Seek, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    process::{Command, Output},
};

use efa_testing::prelude::*;
use rustix::process::Signal;
use serde_json::{Value, json};

/// Runs a program that should end by itself.
fn run(command: &mut Command) -> Output {
    let mut files = [(); 2].map(|()| tempfile::tempfile().unwrap());
    let [stdout, stderr] = files.each_ref().map(|file| file.try_clone().unwrap());
    let mut child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
    let end = || child.try_wait().unwrap().ok_or(());
    let status = wait_for("end of the program", end);
    let [stdout, stderr] = files.each_mut().map(|file| {
        let mut text = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut text).unwrap();
        text
    });
    Output { status, stdout, stderr }
}
