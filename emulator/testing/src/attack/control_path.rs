// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A guest that uses its device in arbitrary ways, also between the beginning and the end of deliveries and work requests.

use std::num::NonZeroU32;

use efa_hw::fields::{Kind, leaves};
use efa_model::Profile::{Efa0, Efa1, Efa2, Efa3, Efa4};

use super::{Input, transport::Transport};
use crate::prelude::*;

/// Limit on pages of a memory region in attacks.
const MAX_MR_PAGES: u32 = 2000;

/// Limit on bytes that the device reads or writes in one call: the queue's entries, each with the longest list of pages.
const MAX_DMA: usize = AQ_DEPTH as usize * (128 + 64 + 3 * 4096 + MAX_MR_PAGES as usize * 8);

impl Input<'_> {
    /// Returns a value that is often valid: a small number, an object's number, or an address.
    fn likely(&mut self, world: &[u64]) -> u64 {
        let byte = self.byte();
        let pick = usize::from(byte);
        match byte % 8 {
            0 => 0,
            1 | 2 => u64::from(byte >> 3) % 5,
            3 => 1 << (byte >> 3),
            4 | 5 => world[pick % world.len()],
            6 => self.u32().into(),
            _ => self.u64(),
        }
    }

    /// Returns the good value, most of the time.
    pub(super) fn near(&mut self, good: u64, world: &[u64]) -> u64 {
        if self.byte() < 16 { self.likely(world) } else { good }
    }

    /// Returns the number of an object, most of the time.
    pub(super) fn number(&mut self, world: &[u64]) -> u64 {
        let number = u64::from(self.byte() % 4) + 1;
        self.near(number, world)
    }
}

/// Returns the configuration of a device with all optional features.
pub fn config(profile: Profile) -> Config {
    let mut config = Config::new(profile, 0);
    config.overrides = Overrides {
        max_mr_pages: Some(MAX_MR_PAGES),
        event_counters: Some(true),
        max_event_counters: Some(64),
        event_counter_max_val: Some(1000),
        event_counter_events: Some(QpEvents::DEFINED),
        fast_mr: Some(true),
        physical_mr: Some(true),
        ..Overrides::default()
    };
    config
}

/// Returns a command that is valid or nearly valid: a good one, with numbers, addresses, and unless it
/// has one, a kind from the input.
pub fn command(input: &mut Input<'_>, world: &[u64]) -> AqRequest {
    let address = world[usize::from(input.byte() % 8)];
    let opcode = Opcode::ALL[usize::from(input.byte()) % Opcode::ALL.len()];
    let pages = u64::from(input.byte() % 32);
    let mut request = match opcode {
        Opcode::CreateQp => CreateQp { qp_type: 0, ..create_qp(0, 0, 0, 0) }.to_request(),
        Opcode::ModifyQp => to_state(0, QpState::Reset).to_request(),
        Opcode::CreateCq => CreateCq { caps_1: CqCaps1::from_raw(input.byte() & 0x20), ..create_cq(0, 0) }.to_request(),
        Opcode::CreateEq => create_eq(0).to_request(),
        Opcode::RegMr => {
            let length = input.near(pages * 8, world) as u32;
            let mut command = reg_mr(0, 0, pages * 4096);
            command.flags.mem_addr_phy_mode_en = input.byte() < 16;
            command.set_page_list(match input.byte() % 4 {
                0 => PageList::Inline([address, 0, 0, input.near(0, world)]),
                1 => PageList::Indirect(CtrlBuffInfo { length: input.near(20, world) as u32, address }),
                _ => PageList::Direct(CtrlBuffInfo { length, address }),
            });
            command.to_request()
        }
        Opcode::AllocMr => AllocMr { max_pages: 16, ..AllocMr::default() }.to_request(),
        Opcode::SetFeature => {
            let mut command = SetFeature { feature_id: AenqConfig::ID.into(), ..SetFeature::default() };
            command.data[4] = input.byte() & 0x1e;
            command.to_request()
        }
        // The first 8 bytes of a page are in page lists.
        Opcode::CreateEventCounter => {
            CreateEventCounter { paddr: input.number(world) % 512 * 8, ..CreateEventCounter::default() }.to_request()
        }
        Opcode::AttachEventCounter | Opcode::DetachEventCounter => AttachEventCounter {
            events: QpEvents::from_raw(match opcode {
                Opcode::AttachEventCounter => input.u32(),
                _ => 1 << (input.byte() % 16),
            }),
            ..AttachEventCounter::default()
        }
        .to_request(),
        _ => AllocPd {}.to_request(),
    };
    request.opcode = opcode.into();
    leaves(fields_of(opcode)[0], &mut |field| {
        let value = match field.kind {
            Kind::Id | Kind::Key => input.number(world),
            Kind::Address => input.near(address + field.get(&request.payload), world),
            Kind::Code(names) if field.get(&request.payload) == 0 => {
                let (value, _) = names[usize::from(input.byte()) % names.len()];
                input.near(value.into(), world)
            }
            Kind::Gid => {
                let address = [1 + input.byte() % 3; 16];
                request.payload[field.bit / 8..][..16].copy_from_slice(&address);
                return;
            }
            Kind::Bytes => return,
            _ => input.near(field.get(&request.payload), world),
        };
        field.put(&mut request.payload, value);
    });
    request
}

/// Creates some objects of each kind as targets; returns the commands with their completions.
pub fn populate(driver: &mut Driver, addresses: &[u64]) -> Vec<(AqRequest, AcqEntry)> {
    for &address in addresses.iter().take(8) {
        for index in 0..512 {
            driver.world.store(address + index * 8, &addresses[0].to_le_bytes());
        }
    }
    // Bytes of 0xff make valid commands, which refer to objects with number 4. There are four of each kind.
    let good = |opcode: Opcode| {
        let index = Opcode::ALL.iter().position(|other| *other == opcode);
        let data = [&[0xff, index.unwrap() as u8], [0xff; 128].as_slice()].concat();
        command(&mut Input(&data), addresses)
    };
    [
        Opcode::AllocPd,
        Opcode::AllocUar,
        Opcode::CreateEq,
        Opcode::CreateCq,
        Opcode::CreateQp,
        Opcode::RegMr,
        Opcode::CreateAh,
        Opcode::CreateEventCounter,
        Opcode::AttachEventCounter,
    ]
    .into_iter()
    .flat_map(|opcode| [good(opcode); 4])
    .map(|request| (request, driver.execute_request(&request)))
    .filter_map(|(request, (status, completion))| (status == 0).then_some((request, completion)))
    .collect()
}

/// Performs an action that an operator may perform at any time.
fn operate(driver: &mut Driver, input: &mut Input<'_>) {
    let (choice, options, now) = (input.byte(), input.byte(), driver.now);
    let (device, world) = (&mut driver.device, &mut driver.world);
    match choice % 8 {
        0 => device.unplug(world),
        1 | 2 => device.plug(world),
        3 => {
            let death = Death {
                silent: options & 1 != 0,
                dma: options & 2 != 0,
                how: if options & 4 != 0 { FailedReset::NeverStarts } else { FailedReset::NeverEnds },
                resets: NonZeroU32::MIN.saturating_add(u32::from(options >> 6)),
            };
            device.die(world, now, death);
        }
        4 => device.clear(),
        5 => device.post_event_late(options.into(), 0, (options >> 4).into()),
        6 => {
            let _ = device.storm(options.into(), 0, 1 << (options % 64));
        }
        _ => {
            let eqn = (options & 1 != 0).then_some(u16::from(options >> 5));
            let _ = device.storm_of_completion_events(eqn, 1, u64::MAX);
        }
    }
}

/// Submits an entry, most often with a phase and a checksum for which the device reads the rest.
fn submit(driver: &mut Driver, input: &mut Input<'_>, mut entry: AqEntry) {
    if input.byte() >= 16 {
        let flags = &mut entry.bytes_mut()[3];
        *flags = (*flags & !1) | u8::from(driver.phase());
        entry.update_checksum();
    }
    driver.submit_entry(&entry);
}

/// Plays an attack on a device, according to the bytes.
pub fn play(data: &[u8]) {
    let mut input = Input(data);
    let profile = [Efa0, Efa1, Efa2, Efa3, Efa4][usize::from(input.byte() % 5)];
    let mut driver = Driver::with(config(profile));
    let mut addresses: Vec<u64> = (0..8).map(|_| driver.world.map(1)).collect();
    addresses.extend([driver.aq, driver.acq.base, driver.aenq.base]);
    populate(&mut driver, &addresses);
    let mut transport = Transport::new(&mut driver, addresses[0]);

    while !input.is_empty() {
        driver.world.dma_bytes = 0;
        match input.byte() % 16 {
            0 if input.byte() < 32 => {
                let register = Register::ALL[usize::from(input.byte()) % Register::ALL.len()];
                let value = input.likely(&addresses) as u32;
                driver.write(register, value);
            }
            1 if input.byte() < 64 => {
                let (offset, value) = (input.likely(&addresses), input.u32());
                driver.write_at(offset, value);
            }
            2 => {
                let (offset, value) = (input.likely(&addresses), input.u32());
                let Driver { device, world, .. } = &mut driver;
                device.write_doorbell(world, offset, value);
                let _ = device.fetch(world);
            }
            3 => {
                let time = Duration::from_millis(u64::from(input.u32()) % 100_000);
                driver.run(time);
            }
            4 => {
                let (now, group) = (driver.now, u16::from(input.byte()));
                driver.device.post_event(&mut driver.world, now, group, 0);
            }
            5 if input.byte() < 16 => driver.device.reset(&mut driver.world),
            5 if input.byte() < 32 => {
                driver.device.power_on(&mut driver.world);
                driver.reset(ResetReason::Normal);
                driver.set_up();
                populate(&mut driver, &addresses);
                transport.start_over(&mut driver, addresses[0]);
            }
            5 if input.byte() < 64 => {
                driver.start_reset(ResetReason::Normal);
                driver.write(Register::DevCtl, 0);
                driver.set_response_address();
                driver.set_up();
            }
            9 if input.byte() < 16 => operate(&mut driver, &mut input),
            6 => {
                let address = addresses[usize::from(input.byte() % 8)];
                for offset in 0..usize::from(input.byte()) {
                    let value = input.likely(&addresses);
                    driver.world.store(address + offset as u64 % 512 * 8, &value.to_le_bytes());
                }
            }
            7 => {
                let mut entry = AqEntry::zeroed(driver.protocol);
                for byte in entry.bytes_mut() {
                    *byte = input.byte();
                }
                submit(&mut driver, &mut input, entry);
            }
            8 => {
                let request = command(&mut input, &addresses);
                let mut entry = driver.entry(&request);
                let offset = usize::from(input.byte()) % entry.bytes().len();
                entry.bytes_mut()[offset] = input.byte();
                submit(&mut driver, &mut input, entry);
            }
            10..=12 => transport.work(&mut driver, &mut input, &addresses),
            13 => transport.modify(&mut driver, &mut input),
            _ => {
                let request = command(&mut input, &addresses);
                driver.submit_request(&request);
            }
        }
        assert!(driver.world.dma_bytes <= MAX_DMA, "{} bytes in one call", driver.world.dma_bytes);
        driver.world.trace.clear();
        driver.world.interrupts.clear();
        let state = driver.device.state();
        assert!(state.admin.in_flight <= 256 && state.resources.mr_pages <= 1 << 22);
        assert!(state.resources.pd <= 256 && state.resources.ah <= 4096);
        assert!(state.resources.event_counter <= 64);
    }

    // Power-on restores the initial state in any case.
    driver.device.power_on(&mut driver.world);
    driver.reset(ResetReason::Normal);
    driver.set_up();
    let before = driver.device.state();
    assert_eq!(before.resources, Default::default());
    assert_eq!(driver.execute(&AllocPd {}).map(|response| response.pd), Ok(1));
    assert_eq!(driver.device.state().protocol_errors, before.protocol_errors);
}
