// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A guest that does whatever it likes: nothing panics, and work and memory stay bounded.

mod mock;

use std::time::Duration;

use efa_hw::{
    admin::{Command, Opcode, pd::AllocPd, stamp},
    regs::{Register, ResetReason},
};
use efa_model::{Config, Overrides, Profile};
use mock::Driver;
use proptest::{collection::vec, prelude::*};

/// Pages that a memory region may have here.
const MAX_MR_PAGES: u32 = 2000;

/// Bytes that the device may read or write in one call: the queue's entries, each with the longest
/// list of pages.
const MAX_DMA: usize = mock::DEPTH as usize * (2 * 64 + 3 * 4096 + MAX_MR_PAGES as usize * 8);

/// Bytes of an attacker, as values of the sizes that are wanted.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes([(); 4].map(|()| self.byte()))
    }

    /// A value that often means something: a small number, a number of an object, or an address.
    fn likely(&mut self, world: &[u64]) -> u64 {
        let byte = self.byte();
        let pick = usize::from(byte);
        match byte % 8 {
            0 => 0,
            1 | 2 => u64::from(byte >> 3) % 5,
            3 => 1 << (byte >> 3),
            4 | 5 => world[pick % world.len()],
            6 => self.u32().into(),
            _ => u64::from(self.u32()) << 32 | u64::from(self.u32()),
        }
    }
}

/// Does to a device what the bytes say.
fn fuzz_one(data: &[u8]) {
    let mut input = Input(data);
    let mut config = Config::new(
        [Profile::Efa0, Profile::Efa1, Profile::Efa2, Profile::Efa3][usize::from(input.byte() % 4)],
        0,
    );
    config.overrides = Overrides {
        max_mr_pages: Some(MAX_MR_PAGES),
        ..Overrides::default()
    };
    let mut driver = Driver::with(config);
    let mut addresses: Vec<u64> = (0..8).map(|_| driver.world.map(1)).collect();
    addresses.extend([driver.aq, driver.acq.base, driver.aenq.base]);

    while !input.is_empty() {
        driver.world.dma_bytes = 0;
        match input.byte() % 16 {
            0 => {
                let register = Register::ALL[usize::from(input.byte()) % Register::ALL.len()];
                let value = input.likely(&addresses) as u32;
                driver.write(register, value);
            }
            1 => {
                let (offset, value) = (input.likely(&addresses), input.u32());
                driver.write_at(offset, value);
            }
            2 => {
                let (now, offset) = (driver.now, input.likely(&addresses));
                driver
                    .device
                    .write_doorbell(&mut driver.world, now, offset, 0);
            }
            3 => {
                let time = Duration::from_millis(u64::from(input.u32()) % 100_000);
                driver.run(time);
            }
            4 => {
                let (now, group) = (driver.now, u16::from(input.byte()));
                driver.device.post_event(&mut driver.world, now, group, 0);
            }
            5 if input.byte() < 16 => driver.device.reset(),
            5 if input.byte() < 64 => {
                driver.device.reset();
                driver.reset(ResetReason::Normal);
                driver.set_up();
            }
            6 => {
                let address = addresses[usize::from(input.byte() % 8)];
                for offset in 0..usize::from(input.byte()) {
                    let value = input.likely(&addresses);
                    driver
                        .world
                        .write(address + offset as u64 % 512 * 8, &value.to_le_bytes());
                }
            }
            7 => {
                let entry = std::array::from_fn(|_| input.byte());
                driver.submit_entry(entry);
            }
            _ => {
                let mut entry = [0; 64];
                let mut offset = 4;
                let size = 4 + usize::from(input.byte() % 60);
                while offset < size {
                    let width = [1, 2, 4, 8][usize::from(input.byte() % 4)];
                    offset = usize::next_multiple_of(offset, width);
                    let value = input.likely(&addresses).to_le_bytes();
                    let end = (offset + width).min(64);
                    entry[offset..end].copy_from_slice(&value[..end - offset]);
                    offset += width;
                }
                entry[2] = 1 + input.byte() % Opcode::ALL.len() as u8;
                entry[3] = input.byte() & 0b110;
                driver.submit_entry(entry);
            }
        }
        assert!(
            driver.world.dma_bytes <= MAX_DMA,
            "{} bytes in one call",
            driver.world.dma_bytes
        );
        driver.world.trace.clear();
        driver.world.interrupts.clear();
        let state = driver.device.state();
        assert!(state.admin.in_flight <= 256 && state.resources.mr_pages <= 1 << 22);
        assert!(state.resources.pd <= 256 && state.resources.ah <= 4096);
    }

    // Whatever happened, a reset makes the device as new.
    driver.device.reset();
    driver.reset(ResetReason::Normal);
    driver.set_up();
    let before = driver.device.state();
    assert_eq!(before.resources, Default::default());
    assert_eq!(
        driver.execute(&AllocPd {}).map(|response| response.pd),
        Ok(1)
    );
    assert_eq!(
        driver.device.state().protocol_errors,
        before.protocol_errors
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..Default::default() })]

    #[test]
    fn bytes(data in vec(any::<u8>(), 0..4096)) {
        fuzz_one(&data);
    }

    /// Every command with random content, but for what the interface reserves.
    #[test]
    fn commands(opcode in 0_u8..22, flags in 0_u8..8, body in vec(any::<u8>(), 60)) {
        let mut driver = Driver::new(Profile::Efa3);
        let mut entry = [0; 64];
        entry[2] = opcode;
        entry[3] = flags;
        entry[4..].copy_from_slice(&body);
        driver.submit_entry(entry);
        prop_assert!(driver.completion().is_some());
        prop_assert!(driver.device.state().protocol_errors <= 1);
        prop_assert_eq!(driver.device.state().resources.cq, 0);
    }

    /// All of the queue at once, with any phases.
    #[test]
    fn queues(entries in vec(vec(any::<u8>(), 64), 32), submitted: u16) {
        let mut driver = Driver::new(Profile::Efa1);
        let aq = driver.aq;
        for (index, entry) in (0_u64..).zip(entries) {
            driver.world.write(aq + index * 64, &entry);
        }
        driver.write(Register::AqProdDb, submitted.into());
        prop_assert!(driver.device.state().admin.submitted <= 32);
    }
}

/// Deep rings and many commands in one doorbell.
#[test]
fn largest_queue() {
    let mut driver = Driver::new(Profile::Efa2);
    let base = driver.world.map(4);
    let acq = driver.world.map(4);
    for (register, value) in [
        (Register::AqBaseLo, base as u32),
        (Register::AqCaps, 64 << 16 | 256),
        (Register::AcqBaseLo, acq as u32),
        (Register::AcqCaps, 64 << 16 | 256),
    ] {
        driver.write(register, value);
    }
    for index in 0..256 {
        let mut entry = AllocPd {}.to_entry();
        stamp(&mut entry, index, true);
        driver.world.write(base + u64::from(index) * 64, &entry);
    }
    driver.write(Register::AqProdDb, 256);
    let state = driver.device.state();
    assert_eq!((state.admin.completed, state.resources.pd), (256, 256));
    assert_eq!(state.protocol_errors, 0);
}
