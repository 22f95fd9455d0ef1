// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The program with a device for User-Mode Linux, which it serves from its sandbox.

use efa_hw::admin::qp::QpType;
use efa_machine::{Emulator, End, Kernel, kernel::READ_CONFIG};

#[test]
fn a_kernel_has_a_device_beside_a_machine() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kernel");
    let device = format!("socket={},protocol=vhost-user", socket.display());
    let emulator = Emulator::start(1, &["--device", &device]);
    for _ in 0..2 {
        let mut kernel = Kernel::boot(&socket);
        assert_eq!(kernel.read(READ_CONFIG, 0, 0), [0x0f, 0x1d]);
        kernel.set_master();
        assert_eq!(kernel.read(READ_CONFIG, 0, 4), [0b110, 0]);
    }
    End::new(&emulator.device(0), QpType::Srd);
}
