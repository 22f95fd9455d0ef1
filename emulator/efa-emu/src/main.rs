// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Emulates Elastic Fabric Adapters, which virtual machines attach over vfio-user sockets.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    efa_emu::main()
}
