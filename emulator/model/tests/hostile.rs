// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A guest that does whatever it likes: nothing panics, and work and memory stay bounded.

mod attack;
mod input;
mod mock;

use attack::{command, populate};
use efa_hw::{
    admin::{
        AcqEntry, AqEntry, Command, Opcode, Status,
        ah::{CreateAh, CreateAhResponse, DestroyAh},
        cq::{CreateCqResponse, DestroyCq},
        eq::{CreateEqResponse, DestroyEq},
        mr::{DeregMr, RegMrResponse},
        pd::{AllocPd, AllocPdResponse, DeallocPd},
        qp::{CreateQpResponse, DestroyQp},
        stamp,
        uar::{AllocUarResponse, DeallocUar},
    },
    regs::Register,
};
use efa_model::Profile;
use input::Input;
use mock::Driver;
use proptest::{collection::vec, prelude::*};

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]

    #[test]
    fn bytes(data in vec(any::<u8>(), 0..4096)) {
        attack::play(&data);
    }

    /// Whatever was made in whichever order can be destroyed, and then nothing is left.
    #[test]
    fn teardown(data in vec(any::<u8>(), 0..4096)) {
        let mut driver = Driver::new(Profile::Efa3);
        let addresses: Vec<u64> = (0..8).map(|_| driver.world.map(1)).collect();
        let mut made = populate(&mut driver, &addresses);
        let mut input = Input(&data);
        while !input.is_empty() {
            let entry = command(&mut input, &addresses);
            let (status, completion) = driver.execute_entry(entry);
            if status == 0 {
                made.push((entry, completion));
            }
        }

        // What others use comes last. Some of it is gone already.
        let destroy: [fn(&AqEntry, &AcqEntry) -> Option<AqEntry>; 3] = [
            |command, completion| match Opcode::try_from(command[2]) {
                Ok(Opcode::CreateQp) => {
                    let qp_handle = CreateQpResponse::decode(completion).qp_handle;
                    Some(DestroyQp { qp_handle }.to_entry())
                }
                Ok(Opcode::RegMr | Opcode::AllocMr) => {
                    let l_key = RegMrResponse::decode(completion).l_key;
                    Some(DeregMr { l_key }.to_entry())
                }
                Ok(Opcode::CreateAh) => {
                    let ah = CreateAhResponse::decode(completion).ah;
                    let pd = CreateAh::decode(command).pd;
                    Some(DestroyAh { ah, pd }.to_entry())
                }
                _ => None,
            },
            |command, completion| {
                (command[2] == u8::from(Opcode::CreateCq)).then(|| {
                    let cq_idx = CreateCqResponse::decode(completion).cq_idx;
                    DestroyCq { cq_idx }.to_entry()
                })
            },
            |command, completion| match Opcode::try_from(command[2]) {
                Ok(Opcode::CreateEq) => {
                    let eqn = CreateEqResponse::decode(completion).eqn;
                    Some(DestroyEq { eqn }.to_entry())
                }
                Ok(Opcode::AllocUar) => {
                    let uar = AllocUarResponse::decode(completion).uar;
                    Some(DeallocUar { uar }.to_entry())
                }
                Ok(Opcode::AllocPd) => {
                    let pd = AllocPdResponse::decode(completion).pd;
                    Some(DeallocPd { pd }.to_entry())
                }
                _ => None,
            },
        ];
        for destroy in destroy {
            for entry in made.iter().filter_map(|(command, completion)| destroy(command, completion)) {
                let (status, _) = driver.execute_entry(entry);
                prop_assert_ne!(status, u8::from(Status::ResourceBusy));
            }
        }
        prop_assert_eq!(driver.device.state().resources, Default::default());
        prop_assert_eq!(driver.device.state().protocol_errors, 0);
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
        (Register::AqCaps, (64 << 16) | 256),
        (Register::AcqBaseLo, acq as u32),
        (Register::AcqCaps, (64 << 16) | 256),
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
