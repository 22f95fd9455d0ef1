// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A kernel that is a process: a vhost-user frontend with memory of its own, and two queues.

use std::{
    fs::File,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, memfd_create};
use vhost::{
    VhostBackend, VhostUserMemoryRegionInfo, VringConfigData,
    vhost_user::{
        Frontend, VhostUserFrontend,
        message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures},
    },
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Where the kernel's memory is.
const RAM: u64 = 0x8000_0000;
const RAM_SIZE: u64 = 0x20000;

/// Each queue has a page for each of its three parts. Further on are the buffers.
const COMMANDS: u64 = 0x0000;
const INTERRUPTS: u64 = 0x3000;
const REQUEST: u64 = 0x6000;
const ANSWER: u64 = 0x8000;
const INTERRUPT: u64 = 0xa000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const QUEUE_SIZE: u16 = 16;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// What a kernel asks for: to read configuration space, to write it, and likewise a BAR, or to fill a part of that.
pub const READ_CONFIG: u8 = 1;
/// See [`READ_CONFIG`].
pub const WRITE_CONFIG: u8 = 2;
/// See [`READ_CONFIG`].
pub const READ_BAR: u8 = 3;
/// See [`READ_CONFIG`].
pub const WRITE_BAR: u8 = 4;
/// See [`READ_CONFIG`].
pub const FILL_BAR: u8 = 5;

const COMMAND: u64 = 0x04;
const MEMORY_AND_BUS_MASTER: u16 = 0b110;

/// Longer than any wait should be.
const TIMEOUT: Duration = Duration::from_secs(10);

struct Queue {
    at: u64,
    added: u16,
    kick: EventFd,
    call: EventFd,
}

/// Linux in user mode, as far as a PCI function is concerned.
pub struct Kernel {
    memory: File,
    _frontend: Frontend,
    commands: Queue,
    interrupts: Queue,
}

impl Kernel {
    /// Connects to the function at this socket.
    pub fn boot(socket: &Path) -> Self {
        let memory = File::from(memfd_create("memory", MemfdFlags::empty()).unwrap());
        memory.set_len(RAM_SIZE).unwrap();
        let mut frontend = Frontend::connect(socket, 2).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        let protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        assert_eq!(features, (1 << 32) | protocol);
        frontend.set_features(features).unwrap();
        frontend.get_protocol_features().unwrap();
        frontend
            .set_protocol_features(VhostUserProtocolFeatures::REPLY_ACK)
            .unwrap();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: RAM,
            memory_size: RAM_SIZE,
            userspace_addr: RAM,
            mmap_offset: 0,
            mmap_handle: memory.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).unwrap();
        let queues = [COMMANDS, INTERRUPTS].map(|at| Queue {
            at,
            added: 0,
            kick: EventFd::new(0).unwrap(),
            call: EventFd::new(EFD_NONBLOCK).unwrap(),
        });
        for (index, queue) in queues.iter().enumerate() {
            let addresses = VringConfigData {
                queue_max_size: QUEUE_SIZE,
                queue_size: QUEUE_SIZE,
                flags: 0,
                desc_table_addr: RAM + queue.at,
                used_ring_addr: RAM + queue.at + USED,
                avail_ring_addr: RAM + queue.at + AVAILABLE,
                log_addr: None,
            };
            frontend.set_vring_num(index, QUEUE_SIZE).unwrap();
            frontend.set_vring_addr(index, &addresses).unwrap();
            frontend.set_vring_base(index, 0).unwrap();
            frontend.set_vring_call(index, &queue.call).unwrap();
            frontend.set_vring_kick(index, &queue.kick).unwrap();
            frontend.set_vring_enable(index, true).unwrap();
        }
        let [commands, interrupts] = queues;
        Self {
            memory,
            _frontend: frontend,
            commands,
            interrupts,
        }
    }

    fn put(&self, at: u64, data: &[u8]) {
        self.memory.write_all_at(data, at).unwrap();
    }

    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut data = [0; N];
        self.memory.read_exact_at(&mut data, at).unwrap();
        data
    }

    fn describe(&self, queue: u64, index: u64, at: u64, length: u32, flags: u16) {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&(RAM + at).to_le_bytes());
        descriptor[8..12].copy_from_slice(&length.to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        descriptor[14..].copy_from_slice(&1_u16.to_le_bytes());
        self.put(queue + 16 * index, &descriptor);
    }

    /// Adds the chain that begins with the first descriptor.
    fn add(memory: &File, queue: &mut Queue) {
        let slot = u64::from(queue.added % QUEUE_SIZE);
        let ring = queue.at + AVAILABLE;
        memory.write_all_at(&[0, 0], ring + 4 + 2 * slot).unwrap();
        queue.added = queue.added.wrapping_add(1);
        memory
            .write_all_at(&queue.added.to_le_bytes(), ring + 2)
            .unwrap();
        queue.kick.write(1).unwrap();
    }

    fn used(&self, queue: &Queue) -> u16 {
        u16::from_le_bytes(self.get(queue.at + USED + 2))
    }

    fn wait(&self, queue: &Queue) {
        let start = Instant::now();
        while self.used(queue) != queue.added {
            assert!(start.elapsed() < TIMEOUT, "no answer");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends a message and waits for its end, with so much room for an answer.
    pub fn request(&mut self, message: &[u8], answer: u32) {
        self.put(REQUEST, message);
        let flags = if answer > 0 { NEXT } else { 0 };
        // CAST: a message is short.
        self.describe(COMMANDS, 0, REQUEST, message.len() as u32, flags);
        self.describe(COMMANDS, 1, ANSWER, answer, WRITE);
        Self::add(&self.memory, &mut self.commands);
        self.wait(&self.commands);
    }

    /// A message.
    pub fn message(operation: u8, bar: u8, size: usize, address: u64, data: &[u8]) -> Vec<u8> {
        let mut message = vec![operation, bar, 0, 0];
        message.extend(u32::try_from(size).unwrap().to_le_bytes());
        message.extend(address.to_le_bytes());
        message.extend(data);
        message
    }

    /// Reads something of configuration space or a BAR.
    pub fn read<const N: usize>(&mut self, operation: u8, bar: u8, address: u64) -> [u8; N] {
        self.put(ANSWER, &[0xaa; N]);
        let message = Self::message(operation, bar, N, address, &[]);
        self.request(&message, u32::try_from(N).unwrap());
        self.get(ANSWER)
    }

    /// Writes it.
    pub fn write(&mut self, operation: u8, bar: u8, address: u64, data: &[u8]) {
        self.request(&Self::message(operation, bar, data.len(), address, data), 0);
    }

    /// Turns the function on.
    pub fn set_master(&mut self) {
        self.write(
            WRITE_CONFIG,
            0,
            COMMAND,
            &MEMORY_AND_BUS_MASTER.to_le_bytes(),
        );
    }

    /// Gives the function a buffer for an interrupt.
    pub fn lend_buffer(&mut self) {
        self.describe(INTERRUPTS, 0, INTERRUPT, 20, WRITE);
        Self::add(&self.memory, &mut self.interrupts);
    }

    /// The next interrupt: where is written, and what.
    pub fn interrupt(&self) -> (u64, u32) {
        self.wait(&self.interrupts);
        assert_eq!(self.interrupts.call.read().unwrap(), 1);
        assert_eq!(self.get(INTERRUPT), [7, 0, 0, 0, 4, 0, 0, 0]);
        let address = u64::from_le_bytes(self.get(INTERRUPT + 8));
        (address, u32::from_le_bytes(self.get(INTERRUPT + 16)))
    }

    /// Whether no interrupt has come for the buffers so far.
    pub fn has_no_interrupt(&self) -> bool {
        self.used(&self.interrupts) != self.interrupts.added
    }
}
