// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The bus of a device behind a vfio-user socket, and the part of a VMM.

use std::{path::Path, time::Duration};

use efa_hw::{
    admin::Protocol,
    features::DeviceAttr,
    regs::{Register, ResetReason, Version},
};
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
};
use vfio_user::{Client, DmaMap};

use super::ram::Ram;
use crate::{bus::Bus, driver::Driver, wait::wait_for};

/// Offset of the command register in the configuration space.
const COMMAND: u64 = 0x04;

/// Bits of the command register that a driver needs to use the device.
pub const MEMORY_AND_BUS_MASTER: u16 = 0b110;

/// A device behind a socket.
#[derive(Debug)]
pub struct Socket {
    /// The connection.
    pub client: Client,
    /// Index of the BAR with the doorbells.
    doorbells: u32,
}

/// A machine with an emulated EFA and a driver.
pub type Machine = Driver<Socket>;

impl Bus for Socket {
    type Memory = Ram;

    fn write(&mut self, _: &mut Ram, _: Duration, offset: u64, value: u32) {
        self.client.region_write(VFIO_PCI_BAR0_REGION_INDEX, offset, &value.to_le_bytes()).expect("a write");
    }

    fn doorbell(&mut self, _: &mut Ram, offset: u64, value: u32) {
        self.client.region_post(self.doorbells, offset, &value.to_le_bytes()).expect("a write");
    }

    fn advance(&mut self, _: &mut Ram, _: Duration) -> bool {
        true
    }
}

impl Machine {
    /// Connects to the device at a socket, as a machine with `memory` bytes of memory. Resets the device and sets up its admin
    /// queues, without interrupts.
    pub fn start(socket: &Path, memory: u64) -> Self {
        let mut machine =
            wait_for("device", || Client::connect(socket).map(|client| Self::of(client, Ram::new(memory))));
        machine.share_memory();
        let llq = machine.device.client.region_info(VFIO_PCI_BAR2_REGION_INDEX);
        machine.world.map_llq(llq.expect("a BAR"));
        machine.enable(MEMORY_AND_BUS_MASTER);
        machine.reset(ResetReason::Normal);
        let version = machine.read(Register::Version);
        machine.protocol = Protocol::of(Version::from_raw(version));
        machine.set_up();
        machine.mask(true);
        let attributes: DeviceAttr = machine.feature().expect("a feature");
        machine.device.doorbells = attributes.db_bar.into();
        machine
    }

    /// Returns the machine of a client, without sharing its memory.
    pub fn of(client: Client, ram: Ram) -> Self {
        let doorbells = 0;
        Self::over(Socket { client, doorbells }, ram)
    }

    /// Maps all memory for the device.
    pub fn share_memory(&mut self) {
        let (address, size) = self.world.range();
        let map = DmaMap { readable: true, writable: true, offset: 0, address, size };
        let file = Some(self.world.file());
        self.device.client.dma_map(map, file).expect("a mapping");
    }

    /// Writes the command register of the configuration space.
    pub fn enable(&mut self, command: u16) {
        let (region, command) = (VFIO_PCI_CONFIG_REGION_INDEX, command.to_le_bytes());
        let written = self.device.client.region_write(region, COMMAND, &command);
        written.expect("a write");
    }

    /// Reads the command register of the configuration space.
    pub fn command(&mut self) -> u16 {
        let (region, mut command) = (VFIO_PCI_CONFIG_REGION_INDEX, [0xff; 2]);
        let read = self.device.client.region_read(region, COMMAND, &mut command);
        read.expect("a read");
        u16::from_le_bytes(command)
    }
}
