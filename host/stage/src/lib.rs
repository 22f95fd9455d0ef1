// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Stages the sources of a kernel module for a crate of the host.
//!
//! A module is one crate, whose root begins with attributes that only a root may have. [`module`]
//! creates a folder of links to the module's files, and a root without these attributes. The crate
//! of the host includes that root, so that all lines of the module are unchanged. Only
//! `sys/atomic.rs` is replaced: its accesses are preemption points here.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// The variable that names bindgen's output, which a build of the module makes.
const BINDINGS: &str = "EFA_BINDINGS";

/// The replacement of `sys/atomic.rs`.
const ATOMIC: &str = include_str!("atomic.rs");

/// Stages the module whose `root` is in `folder`, and sets `cfgs` as its Kbuild does. The host's crate has
/// `include!(concat!(env!("OUT_DIR"), "/module/root.rs"))`.
///
/// # Panics
///
/// If a file is missing, or the environment does not name bindgen's output.
pub fn module(folder: &str, root: &str, cfgs: &[&str]) {
    let folder = fs::canonicalize(folder).expect("the folder of the module");
    let bindings = env::var(BINDINGS)
        .unwrap_or_else(|_| panic!("{BINDINGS} names bindgen's output: see host/README.md"));
    println!("cargo::rerun-if-env-changed={BINDINGS}");
    // All files of `sys` are linked one by one.
    for source in [root, "sys"] {
        println!("cargo::rerun-if-changed={}", folder.join(source).display());
    }
    println!("cargo::rustc-cfg=MODULE");
    for cfg in cfgs {
        println!("cargo::rustc-cfg={cfg}");
    }

    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it")).join("module");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(out.join("ffi")).expect("a folder");
    link_all(&folder, &out, &["ffi", "sys", root]);
    fs::create_dir(out.join("sys")).expect("a folder");
    link_all(&folder.join("sys"), &out.join("sys"), &["atomic.rs"]);
    fs::write(out.join("sys/atomic.rs"), ATOMIC).expect("the staged atomics");
    link(&folder.join("ffi/uapi.rs"), &out.join("ffi/uapi.rs"));
    link(Path::new(&bindings), &out.join("ffi/bindings_generated.rs"));

    let text = fs::read_to_string(folder.join(root)).expect("the root of the module");
    fs::write(out.join("root.rs"), without_inner(&text)).expect("the staged root");
}

/// Links all folders and sources in a folder, except for `others`.
fn link_all(from: &Path, to: &Path, others: &[&str]) {
    for entry in fs::read_dir(from).expect("a folder of the module") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name");
        let is_source = path.is_dir() || path.extension().is_some_and(|end| end == "rs");
        if is_source && !others.iter().any(|other| name == *other) {
            link(&path, &to.join(name));
        }
    }
}

fn link(from: &Path, to: &Path) {
    symlink(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

/// Returns the text of a root without inner attributes and documentation; lines keep their numbers.
fn without_inner(text: &str) -> String {
    let is_inner = |line: &str| line.starts_with("//!") || line.starts_with("#![");
    text.lines()
        .map(|line| if is_inner(line) { "" } else { line })
        .fold(String::new(), |all, line| all + line + "\n")
}
