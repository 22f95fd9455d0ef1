// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A function as User-Mode Linux uses it.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use efa_fabric::Settings;
use efa_machine::{
    Kernel,
    kernel::{FILL_BAR, READ_BAR, READ_CONFIG, WRITE_BAR, WRITE_CONFIG},
};
use efa_model::{Config, Profile};
use efa_vfio::{Function, MsixTable, Runtime, listen};
use efa_vhost_user::Server;
use tempfile::TempDir;

const VENDOR: u16 = 0x1d0f;
const COMMAND: u64 = 0x04;
const MEMORY_AND_BUS_MASTER: u16 = 0b110;
const LLQ: u8 = 2;

/// Long enough for what should not come.
const PAUSE: Duration = Duration::from_millis(50);

struct Machine {
    folder: TempDir,
    function: Arc<Function>,
}

impl Machine {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Arc::new(Runtime::new(Settings::default(), 1, Instant::now()));
        let config = Config::new(Profile::Efa3, 0);
        let function = Function::new(&runtime, config, None, Box::new(|_, _: &_| {}));
        let function = Arc::new(function.unwrap());
        let listener = listen(&folder.path().join("socket")).unwrap();
        let server = Server::new(listener, Arc::clone(&function));
        thread::spawn(move || server.run());
        thread::spawn(move || runtime.work());
        Self { folder, function }
    }

    fn boot(&self) -> Kernel {
        Kernel::boot(&self.folder.path().join("socket"))
    }

    fn interrupt(&self, vector: u16) {
        self.function.with(|_, host, _| host.interrupt(vector));
    }

    /// Fills a vector's entry of the table, but for its mask.
    fn fill_entry(&self, kernel: &mut Kernel, vector: u64, data: u32) {
        let MsixTable { bar, offset, .. } = self.function.msix_table();
        let at = offset + 16 * vector;
        kernel.write(WRITE_BAR, bar, at, &0xfee0_0000_u64.to_le_bytes());
        kernel.write(WRITE_BAR, bar, at + 8, &data.to_le_bytes());
    }

    fn unmask(&self, kernel: &mut Kernel, vector: u64) {
        let MsixTable { bar, offset, .. } = self.function.msix_table();
        kernel.write(WRITE_BAR, bar, offset + 16 * vector + 12, &[0; 4]);
    }
}

#[test]
fn configuration_space_is_that_of_the_function() {
    let machine = Machine::start();
    let mut kernel = machine.boot();
    assert_eq!(u16::from_le_bytes(kernel.read(READ_CONFIG, 0, 0)), VENDOR);
    kernel.set_master();
    let command = u16::from_le_bytes(kernel.read(READ_CONFIG, 0, COMMAND));
    assert_eq!(command, MEMORY_AND_BUS_MASTER);
}

#[test]
fn what_is_written_to_configuration_space_may_have_more_bytes_than_it_says() {
    let machine = Machine::start();
    let mut kernel = machine.boot();
    let mut data = [0xff; 8];
    data[..2].copy_from_slice(&MEMORY_AND_BUS_MASTER.to_le_bytes());
    kernel.request(&Kernel::message(WRITE_CONFIG, 0, 2, COMMAND, &data), 0);
    let command = u16::from_le_bytes(kernel.read(READ_CONFIG, 0, COMMAND));
    assert_eq!(command, MEMORY_AND_BUS_MASTER);
    // The cache line size and the latency timer, of which the former can be written.
    assert_eq!(kernel.read(READ_CONFIG, 0, 0x0c), [0, 0]);
}

#[test]
fn a_bar_has_memory() {
    let machine = Machine::start();
    let mut kernel = machine.boot();
    kernel.set_master();
    kernel.write(WRITE_BAR, LLQ, 0x40, b"hello...");
    assert_eq!(&kernel.read(READ_BAR, LLQ, 0x40), b"hello...");
    kernel.request(&Kernel::message(FILL_BAR, LLQ, 4, 0x42, b"x"), 0);
    assert_eq!(&kernel.read(READ_BAR, LLQ, 0x40), b"hexxxx..");
    // Nothing is there.
    assert_eq!(kernel.read(READ_BAR, 1, 0), [0xff; 4]);
    assert_eq!(kernel.read(READ_BAR, LLQ, u64::MAX), [0xff; 4]);
}

#[test]
fn an_interrupt_is_what_the_table_says() {
    let machine = Machine::start();
    let mut kernel = machine.boot();
    kernel.set_master();
    machine.fill_entry(&mut kernel, 1, 33);
    machine.unmask(&mut kernel, 1);
    kernel.lend_buffer();
    machine.interrupt(1);
    assert_eq!(kernel.interrupt(), (0xfee0_0000, 33));
}

#[test]
fn an_interrupt_of_a_masked_vector_comes_later() {
    let machine = Machine::start();
    let mut kernel = machine.boot();
    kernel.set_master();
    machine.fill_entry(&mut kernel, 0, 7);
    kernel.lend_buffer();
    machine.interrupt(0);
    thread::sleep(PAUSE);
    assert!(kernel.has_no_interrupt());
    machine.unmask(&mut kernel, 0);
    assert_eq!(kernel.interrupt(), (0xfee0_0000, 7));
}

#[test]
fn an_interrupt_waits_for_a_buffer() {
    let machine = Machine::start();
    let mut kernel = machine.boot();
    kernel.set_master();
    machine.fill_entry(&mut kernel, 0, 7);
    machine.unmask(&mut kernel, 0);
    machine.interrupt(0);
    thread::sleep(PAUSE);
    kernel.lend_buffer();
    assert_eq!(kernel.interrupt(), (0xfee0_0000, 7));
}

#[test]
fn nonsense_is_answered_with_nothing() {
    let machine = Machine::start();
    let mut kernel = machine.boot();
    for message in [
        Kernel::message(9, 0, 4, 0, &[]),
        Kernel::message(WRITE_BAR, 0, 1 << 30, 0, &[0; 4]),
        Kernel::message(FILL_BAR, LLQ, 1 << 30, 0, &[]),
        vec![READ_CONFIG; 3],
    ] {
        kernel.request(&message, 4);
    }
    // An answer is as long as the buffer for it.
    kernel.request(&Kernel::message(READ_CONFIG, 0, 1 << 30, 0, &[]), 2);
    assert_eq!(u16::from_le_bytes(kernel.read(READ_CONFIG, 0, 0)), VENDOR);
}

#[test]
fn the_next_kernel_finds_the_function_as_after_power_on() {
    let machine = Machine::start();
    let mut kernel = machine.boot();
    kernel.set_master();
    drop(kernel);
    let mut kernel = machine.boot();
    let command = u16::from_le_bytes(kernel.read(READ_CONFIG, 0, COMMAND));
    assert_eq!(command, 0);
}
