// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A machine with a device: what a VMM does, and what a driver does.

use std::path::Path;

use efa_hw::{
    admin::{AcqEntry, AcqHeader, AqEntry, Command, Protocol, Response, Status},
    features::{DeviceAttr, Feature, GetFeature, NetworkAttr},
    regs::{
        AqCaps, DevCtl, DevSts, EventRingCaps, IntrMask, MmioRegRead, ReadlessResponse, Register,
        ResetReason, Version,
    },
};
use efa_testing::wait::{wait_for, wait_until};
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
};
use vfio_user::{Client, DmaMap};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::ram::{PAGE, Ram};

/// The command register in the configuration space, and its bits.
const COMMAND: u64 = 0x04;
const MEMORY_AND_BUS_MASTER: u16 = 0b110;

/// Entries of the admin queues.
const DEPTH: u16 = 32;

/// A machine with an emulated EFA.
#[derive(Debug)]
pub struct Machine {
    pub(crate) client: Client,
    pub(crate) ram: Ram,
    /// The memory of the device, where send queues are.
    llq: MmapRegion,
    doorbell_region: u32,
    protocol: Protocol,
    response: u64,
    aq: u64,
    acq: u64,
    request: u16,
    submitted: u16,
    completed: u16,
    address: [u8; 16],
}

impl Machine {
    /// Plugs the device at a socket into a machine with so many bytes of memory, and has a driver reset it and set up its admin
    /// queues.
    pub fn start(socket: &Path, memory: u64) -> Self {
        let mut machine = Self::connect(socket, memory);
        machine.reset();
        machine
    }

    /// Plugs the device in, without a driver.
    pub fn connect(socket: &Path, memory: u64) -> Self {
        let mut client = wait_for("device", || Client::connect(socket));
        let mut ram = Ram::new(memory);
        let (address, size) = ram.range();
        let map = DmaMap {
            readable: true,
            writable: true,
            offset: 0,
            address,
            size,
        };
        client.dma_map(map, Some(&ram.file)).expect("a mapping");
        let llq_region = client
            .region_info(VFIO_PCI_BAR2_REGION_INDEX)
            .expect("a BAR");
        let file = llq_region.file.expect("a BAR that can be mapped");
        let shared = FileOffset::new(file, 0);
        // CAST: a BAR.
        let llq = MmapRegion::from_file(shared, llq_region.size as usize).expect("a mapping");
        let [response, aq, acq] = [PAGE, PAGE, PAGE].map(|size| ram.allocate(size));
        Self {
            client,
            llq,
            doorbell_region: 0,
            protocol: Protocol::V1,
            response,
            aq,
            acq,
            request: 0,
            submitted: 0,
            completed: 0,
            address: [0; 16],
            ram,
        }
    }

    /// Has a driver reset the device and set up its admin queues.
    pub fn reset(&mut self) {
        let command = MEMORY_AND_BUS_MASTER.to_le_bytes();
        self.client
            .region_write(VFIO_PCI_CONFIG_REGION_INDEX, COMMAND, &command)
            .expect("a write");
        self.set_response();
        let reset = DevCtl {
            dev_reset: true,
            reset_reason: ResetReason::Normal.into(),
            ..Default::default()
        };
        self.write(Register::DevCtl, reset.into_raw());
        self.set_response();
        self.wait_for_reset(true);
        self.write(Register::DevCtl, 0);
        self.wait_for_reset(false);
        self.protocol = Protocol::of(Version::from_raw(self.read(Register::Version)));
        (self.submitted, self.completed) = (0, 0);
        self.ram.write(self.acq, &[0; 64 * DEPTH as usize]);
        let aq_caps = AqCaps {
            depth: DEPTH,
            // CAST: 64 or 128.
            entry_size: self.protocol.entry_size() as u16,
        };
        self.set_address(Register::AqBaseLo, Register::AqBaseHi, self.aq);
        self.write(Register::AqCaps, aq_caps.into_raw());
        let acq_caps = EventRingCaps {
            depth: DEPTH,
            entry_size: 64,
            msix_vector: 0,
        };
        self.set_address(Register::AcqBaseLo, Register::AcqBaseHi, self.acq);
        self.write(Register::AcqCaps, acq_caps.into_raw());
        self.write(Register::IntrMask, IntrMask { masked: true }.into_raw());
        self.address = self.feature::<NetworkAttr>().addr;
        self.doorbell_region = self.feature::<DeviceAttr>().db_bar.into();
    }

    /// The address of the device.
    pub fn address(&self) -> [u8; 16] {
        self.address
    }

    fn set_address(&mut self, low: Register, high: Register, address: u64) {
        // CAST: one half each.
        self.write(low, address as u32);
        self.write(high, (address >> 32) as u32);
    }

    fn set_response(&mut self) {
        self.set_address(Register::MmioRespLo, Register::MmioRespHi, self.response);
    }

    /// Writes a register.
    pub fn write(&mut self, register: Register, value: u32) {
        let offset = u16::from(register).into();
        self.client
            .region_write(VFIO_PCI_BAR0_REGION_INDEX, offset, &value.to_le_bytes())
            .expect("a write");
    }

    /// Reads a register.
    pub fn read(&mut self, register: Register) -> u32 {
        self.request = self.request.wrapping_add(1);
        let request = MmioRegRead {
            req_id: self.request,
            reg_off: register.into(),
        };
        self.write(Register::MmioRegRead, request.into_raw());
        wait_for("answer to a register read", || {
            let response = ReadlessResponse::decode(&self.ram.load(self.response));
            match response.req_id == self.request {
                true => Ok(response.reg_val),
                false => Err(response),
            }
        })
    }

    fn wait_for_reset(&mut self, in_progress: bool) {
        wait_until("begin or end of a reset", || {
            let status = DevSts::from_raw(self.read(Register::DevSts));
            status.reset_in_progress == in_progress
        });
    }

    /// Rings a doorbell.
    pub fn doorbell(&mut self, offset: u64, value: u32) {
        self.client
            .region_post(self.doorbell_region, offset, &value.to_le_bytes())
            .expect("a write");
    }

    /// Writes the memory of the device.
    pub(crate) fn write_llq(&self, offset: u64, bytes: &[u8]) {
        // CAST: it is in the BAR.
        let slice = self.llq.get_slice(offset as usize, bytes.len());
        slice.expect("an offset in the BAR").copy_from(bytes);
    }

    /// Submits a command.
    pub fn submit<C: Command>(&mut self, command: &C) {
        let phase = self.submitted / DEPTH % 2 == 0;
        let id = self.submitted & 0xfff;
        let entry = AqEntry::new(self.protocol, &command.to_request(), id, phase);
        let bytes = entry.bytes();
        let at = usize::from(self.submitted % DEPTH) * bytes.len();
        self.ram.write(self.aq + at as u64, bytes);
        self.submitted = self.submitted.wrapping_add(1);
    }

    /// Tells the device of the commands that were submitted.
    pub fn ring(&mut self) {
        self.write(Register::AqProdDb, self.submitted.into());
    }

    /// Waits for the next completion, and returns its status.
    pub fn completion(&mut self) -> (u8, AcqEntry) {
        let at = self.acq + 64 * u64::from(self.completed % DEPTH);
        let phase = self.completed / DEPTH % 2 == 0;
        let completed = wait_for("completion of a command", || {
            let entry = self.ram.load(at);
            let header = AcqHeader::of(&entry);
            match header.flags.phase == phase {
                true => Ok((header.status, entry)),
                false => Err(header),
            }
        });
        self.completed = self.completed.wrapping_add(1);
        completed
    }

    /// Executes a command.
    ///
    /// # Errors
    ///
    /// The device refuses it.
    pub fn try_execute<C: Command>(&mut self, command: &C) -> Result<C::Response, Status> {
        self.submit(command);
        self.ring();
        let (status, entry) = self.completion();
        match Status::try_from(status).expect("a known status") {
            Status::Success => Ok(C::Response::from_entry(&entry)),
            status => Err(status),
        }
    }

    /// Executes a command.
    pub fn execute<C: Command>(&mut self, command: &C) -> C::Response {
        self.try_execute(command)
            .expect("a command that is possible")
    }

    /// Writes the addresses of so many pages, of which no two are contiguous and the last is `last`; returns the length and the address of
    /// the list.
    pub fn page_list(&mut self, pages: u64, last: u64) -> (u32, u64) {
        let (base, _) = self.ram.range();
        let list: Vec<u8> = (1..pages)
            .map(|page| base + 2 * page * PAGE)
            .chain([last])
            .flat_map(u64::to_le_bytes)
            .collect();
        let address = self.ram.allocate(list.len() as u64);
        self.ram.write(address, &list);
        // CAST: a list is shorter than that.
        (list.len() as u32, address)
    }

    /// Asks the device for a feature, by a command.
    pub fn feature<F: Feature>(&mut self) -> F {
        let command = GetFeature {
            feature_id: F::ID.into(),
            ..Default::default()
        };
        F::from_response(&self.execute(&command))
    }
}
