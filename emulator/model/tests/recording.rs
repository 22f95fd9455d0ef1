// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What was recorded of a device is done again by another one, and what is different is named.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
    time::Duration,
};

use efa_hw::{
    admin::{
        cq::{CqCaps2, CreateCq},
        pd::AllocPd,
        uar::AllocUar,
    },
    regs::Register,
};
use efa_model::{
    Call, Config, Death, Device, Difference, Event, Outcome, Overrides, Player, Profile, Recorder,
    Rule,
};
use efa_testing::mock::Driver;

/// Keeps calls in memory, as they are after they were in a file.
#[derive(Clone, Debug, Default)]
struct Keeper {
    call: Vec<Event<'static>>,
    calls: Arc<Mutex<Vec<Vec<Event<'static>>>>>,
}

impl Recorder for Keeper {
    fn note(&mut self, event: &Event<'_>) {
        let bytes = postcard::to_allocvec(event).unwrap();
        let event = postcard::from_bytes(&bytes).unwrap();
        self.call.push(event);
    }

    fn end(&mut self) {
        let call = std::mem::take(&mut self.call);
        self.calls.lock().unwrap().push(call);
    }
}

fn config() -> Config {
    Config::new(Profile::Efa3, 1)
}

/// A driver with a device that is recorded from the start.
fn recorded() -> (Driver, Keeper) {
    let keeper = Keeper::default();
    let mut driver = Driver::powered_on(config());
    driver.device = Device::new(config());
    driver.device.record(Box::new(keeper.clone()));
    (driver, keeper)
}

fn rule(json: &str) -> Rule {
    serde_json::from_str(json).unwrap()
}

/// Something of everything that does not need a peer.
fn session() -> Vec<Vec<Event<'static>>> {
    let (mut driver, keeper) = recorded();
    driver.reset(efa_hw::regs::ResetReason::Normal);
    driver.set_up();
    driver.execute(&AllocPd {}).unwrap();
    let uar = driver.execute(&AllocUar {}).unwrap().uar;
    let create = CreateCq {
        caps_2: CqCaps2 {
            cq_entry_size_words: 8,
            ..CqCaps2::default()
        },
        sub_cq_depth: 64,
        base_address: driver.world.map(1),
        num_sub_cqs: 1,
        uar,
        ..CreateCq::default()
    };
    driver.execute(&create).unwrap();
    for json in [
        r#"{"when": {"opcode": "ALLOC_PD"}, "then": {"status": "RESOURCE_BUSY", "corrupt": [{"offset": 20, "value": 7}]}, "times": 1}"#,
        r#"{"when": {"register": "CAPS"}, "then": {"value": 5}, "times": 1}"#,
        r#"{"when": {"work": "RDMA_READ", "qp": 3, "peer": "fe80::1"}, "then": {"status": 9}}"#,
    ] {
        driver.device.inject(rule(json));
    }
    driver.device.set(Overrides {
        max_eq: Some(0),
        ..Overrides::default()
    });
    assert!(driver.execute(&AllocPd {}).is_err());
    driver.read(Register::Caps);
    driver.device.inject(rule(
        r#"{"when": {"opcode": "ALLOC_PD"}, "then": {"hold": "pd"}, "times": 1}"#,
    ));
    driver.submit(&AllocPd {});
    assert_eq!(driver.device.release("pd", Some(2)), 1);
    driver.run(Duration::ZERO);
    assert!(driver.completion().is_some());
    driver.device.clear();
    driver.device.storm(2, 3, 4).unwrap();
    driver.run(Duration::from_secs(3));
    assert!(driver.device.fail_qp(&mut driver.world, 7).is_err());
    // What no driver does.
    driver.write_at(0x9999, 1);
    driver.world.dma_is_off = true;
    driver.write(Register::MmioRegRead, 0x1_0000);
    driver.world.dma_is_off = false;
    let (world, now) = (&mut driver.world, driver.now);
    driver.device.die(world, now, Death::default());
    driver.device.reset(world);
    driver.device.unplug(world);
    driver.device.plug(world);
    let calls = keeper.calls.lock().unwrap();
    calls.clone()
}

fn play(config: Config, calls: &[Vec<Event<'static>>]) -> Result<u64, Difference> {
    let mut player = Player::new(config);
    for call in calls {
        player.play(call.clone())?;
    }
    Ok(player.same())
}

#[test]
fn a_device_does_again_what_another_one_did() {
    let calls = session();
    let events = calls.iter().map(Vec::len).sum::<usize>() as u64;
    assert!(events > 80, "{events}");
    assert_eq!(play(config(), &calls), Ok(events));
}

#[test]
fn another_device_is_named() {
    let calls = session();
    // It is in a register that the driver reads.
    let mut other = config();
    other.overrides.reset_timeout = Some(77);
    let difference = play(other, &calls).unwrap_err();
    let text = difference.to_string();
    assert!(text.contains("write of "), "{text}");
    assert!(text.contains("now it is `"), "{text}");
}

/// Changes an event, so that it is one that a device would not do, or that leads to another one.
fn spoil(event: &mut Event<'static>) -> bool {
    match event {
        Event::Write { data, .. } => {
            let mut bytes = data.to_vec();
            let Some(byte) = bytes.last_mut() else {
                return false;
            };
            *byte ^= 1;
            *data = Cow::Owned(bytes);
        }
        Event::Interrupt(vector) => *vector += 1,
        Event::Trace(line) => line.to_mut().push('!'),
        Event::Return(Outcome::Nothing) => *event = Event::Return(Outcome::Due(None)),
        Event::Return(Outcome::Due(due)) => *due = Some(due.unwrap_or(0) + 1),
        Event::Return(_) => *event = Event::Return(Outcome::Nothing),
        Event::Read { address, .. } => *address += 1,
        Event::DeviceMemory { offset, .. } => *offset += 1,
        Event::Call(_) | Event::Time(_) | Event::BusMaster(_) => return false,
    }
    true
}

#[test]
fn each_other_event_is_named() {
    let calls = session();
    let mut number = 0;
    let mut spoilt = 0;
    for call in 0..calls.len() {
        for event in 0..calls[call].len() {
            number += 1;
            let mut other = calls.clone();
            if spoil(&mut other[call][event]) {
                spoilt += 1;
                let difference = play(config(), &other).unwrap_err();
                assert_eq!(difference.event, number, "{difference}");
            }
        }
    }
    assert!(spoilt > 40, "{spoilt}");
}

#[test]
fn what_is_missing_or_too_much_is_named() {
    let calls = session();
    let first = &calls[0];
    // A device does something that was not recorded.
    let cut = vec![first[..first.len() - 1].to_vec()];
    let difference = play(config(), &cut).unwrap_err();
    assert_eq!(
        (difference.event, difference.recorded),
        (first.len() as u64, None)
    );
    // It does nothing, although something was.
    let mut more = first.clone();
    more.push(Event::Interrupt(7));
    let difference = play(config(), &[more]).unwrap_err();
    assert_eq!(
        (difference.event, difference.found),
        (first.len() as u64 + 1, None)
    );
    // Nobody has begun that.
    let call = vec![Event::Call(Call::Cancel { delivery: 3 })];
    assert_eq!(play(config(), &[call]).unwrap_err().event, 1);
}
