// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Scenarios in files: what a driver or an operator does with a device, and what is then true.
//!
//! An empty line separates scenarios. Each begins with a device after a reset, with admin queues, and has a step on each line.
//! Alternatives of steps, which `|` separates, make several scenarios of one. `3x` repeats a step. Ids of commands begin at 0. A `+`
//! before a value of the state adds to the value at the start.

use serde_json::Value;

use super::*;

macro_rules! scenarios {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            run(include_str!(concat!("scenarios/", stringify!($name), ".txt")));
        }
    )*};
}
scenarios!(registers queues events sessions rules trace deaths);

fn run(scenarios: &str) {
    for scenario in scenarios.split("\n\n") {
        let lines = scenario.lines().filter(|line| !line.starts_with('#'));
        let steps: Vec<Vec<_>> = lines.map(|line| line.split(" | ").collect()).collect();
        for index in 0..steps.iter().map(Vec::len).max().unwrap_or(0) {
            println!("{}", scenario.lines().next().unwrap_or_default());
            let mut driver = Driver::new(Profile::Efa2);
            let start = state(&driver);
            for steps in &steps {
                let step = steps[index.min(steps.len() - 1)];
                // Shown if the step fails.
                println!("{step}");
                let times = step.split_once("x ");
                let times = times.and_then(|(times, step)| Some((times.parse().ok()?, step)));
                let (times, step) = times.unwrap_or((1, step));
                (0..times).for_each(|_: u32| take(&mut driver, &start, step));
            }
        }
    }
}

/// Takes a step.
fn take(driver: &mut Driver, start: &Value, step: &str) {
    let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
    let words: Vec<_> = rest.split_whitespace().collect();
    let short = |word: &str| number(word) as u16;
    let shorts = || words.iter().map(|word| short(word)).collect::<Vec<_>>();
    let Driver { device, world, aq, .. } = &mut *driver;
    match (verb, &words[..]) {
        ("device", [name]) => *driver = Driver::new(profile(name)),
        ("set", _) => driver.set(rest),
        ("rule", _) => driver.inject(rest),
        ("die", _) => driver.die(rest),
        ("clear", []) => device.clear(),
        ("power", []) => device.power_on(world),
        ("plug", []) => device.plug(world),
        ("unplug", []) => device.unplug(world),
        ("release", [name, count]) => {
            assert_eq!(device.release(name, None), number(count));
            driver.run(Duration::ZERO);
        }
        // Time passes, and the device has to run again after so many milliseconds.
        ("run", [time, due @ ..]) => {
            let found = driver.run(millis(time));
            if let [due] = due {
                let due = (*due != "never").then(|| driver.now + millis(due));
                assert_eq!(found, due);
            }
        }

        ("function_reset", []) => device.reset(world),
        ("start_reset", [reason]) => driver.start_reset(named(ResetReason::ALL, reason)),
        ("reset", [reason]) => driver.reset(named(ResetReason::ALL, reason)),
        ("try_reset", [works]) => assert_eq!(reset_works(driver), *works == "works"),
        ("set_response_address", []) => driver.set_response_address(),
        ("set_up", []) => driver.set_up(),
        ("set_up", [acq, aenq]) => driver.set_up_with([acq, aenq].map(|vector| short(vector) as u8)),
        ("start_over", []) => driver.start_over(),

        // A number of protocol errors may follow.
        ("write", [register, value, errors @ ..]) => {
            driver.write_at(offset(register), number(value) as u32);
            let errors = errors.iter().map(|errors| number(errors));
            errors.for_each(|errors| assert_eq!(driver.errors(), errors));
        }
        ("doorbell", [offset, value]) => {
            let offset = match *offset {
                "end" => device.doorbell_bar_size(),
                _ => number(offset),
            };
            driver.doorbell(offset, number(value) as u32);
        }
        ("read", [register, expected @ ..]) => {
            let response = driver.read_raw(offset(register) as u16);
            let found = response.map(|it| [it.reg_val.into(), it.reg_off.into()]);
            match expected {
                [at, value] => assert_eq!(found, Some([number(value), number(at)])),
                ["nothing"] => assert_eq!(found, None),
                [value] => assert_eq!(found.map(|it| it[0]), Some(number(value))),
                _ => {}
            }
        }
        ("mask", [masked]) => driver.mask(*masked == "1"),
        ("interrupts", _) => assert_eq!(world.take_interrupts(), shorts()),

        ("enable", [groups]) => driver.enable_events(number(groups) as u32),
        ("storm", [group, syndrome, count]) => {
            let (group, syndrome) = (short(group), short(syndrome));
            device.storm(group, syndrome, number(count)).unwrap();
        }
        ("post", [group, syndrome]) => driver.post_event(short(group), short(syndrome)),
        ("post_late", [group, syndrome]) => {
            device.post_event_late(short(group), short(syndrome), 1);
        }
        ("event", ["none"]) => assert!(driver.event().is_none()),
        ("event", _) => {
            let event = driver.event().expect("an event");
            assert_eq!([event.group, event.syndrome][..], shorts());
        }
        ("acknowledge", []) => driver.acknowledge_events(),

        ("dma", [is]) => world.dma_is_off = *is == "off",
        ("unmap", ["aq"]) => world.unmap(*aq),
        ("unmap", [ring]) => {
            let ring = if *ring == "acq" { &driver.acq } else { &driver.aenq };
            let base = ring.base;
            driver.world.unmap(base);
        }
        ("forget", []) => {
            world.trace.clear();
            (world.dma_bytes, world.interrupts) = (0, vec![]);
        }
        ("quiet", []) => assert_eq!((world.dma_bytes, &world.interrupts[..]), (0, &[][..])),
        ("traced", _) => assert!(world.traced(&rest.split(" .. ").collect::<Vec<_>>())),
        ("hide", _) => world.trace.retain(|line| !line.starts_with(rest)),
        (">", _) => assert_eq!(world.trace.drain(..1).next().as_deref(), Some(rest)),
        ("untraced", []) => assert_eq!(world.trace, [""; 0]),

        ("put", _) => {
            let entry = driver.entry(&command(rest));
            driver.put(&entry);
        }
        ("ring", []) => driver.ring(),
        ("try", _) => {
            driver.submit_request(&command(rest));
            driver.completion();
        }
        ("submit", _) => _ = driver.submit_request(&command(rest)),
        ("completed", _) => assert_eq!(driver.completed(), shorts()),
        ("completion", [id, status, bytes @ ..]) => {
            let (found, code, entry) = driver.completion().expect("a completion");
            assert_eq!((found, &*name_of(code)), (short(id), *status));
            assert_eq!(AcqHeader::of(&entry).checksum, checksum::of_entry(&entry));
            for (path, value) in pairs(bytes) {
                assert_eq!(field(&[], path).get(&entry), number(value), "{path}");
            }
        }

        ("errors", [errors]) => assert_eq!(driver.errors(), number(errors)),
        ("status", fields) => {
            let status = driver.read(Register::DevSts).to_le_bytes();
            for (name, value) in pairs(fields) {
                let found = field(DevSts::FIELDS, name).get(&status);
                assert_eq!(found, number(value), "{name}");
            }
        }
        ("state", fields) => {
            for (path, value) in pairs(fields) {
                let path = format!("/{}", path.replace('.', "/"));
                let found = state(driver).pointer(&path).expect(&path).clone();
                let expected: Value = match value.strip_prefix('+') {
                    Some(more) => (start.pointer(&path).unwrap().as_u64().unwrap() + number(more)).into(),
                    None => serde_json::from_str(value).expect(value),
                };
                assert_eq!(found, expected, "{path}");
            }
        }
        _ => {
            let (text, status) = step.rsplit_once(": ").unwrap_or((step, "SUCCESS"));
            let (code, _) = driver.execute_request(&command(text));
            assert_eq!(name_of(code), status);
        }
    }
}

fn state(driver: &Driver) -> Value {
    serde_json::to_value(driver.device.state()).unwrap()
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(number(text))
}

/// Returns the offset of a register, given by its name or as a number.
fn offset(text: &str) -> u64 {
    match text.starts_with(char::is_alphabetic) {
        true => u16::from(named(Register::ALL, text)).into(),
        false => number(text),
    }
}

fn name_of(status: u8) -> String {
    Status::try_from(status).map_or(status.to_string(), |status| status.to_string())
}

fn pairs<'a>(words: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    words.iter().map(|word| word.split_once('=').expect(word))
}

/// Returns a command whose other fields are zero.
fn command(text: &str) -> AqRequest {
    let (name, changes) = text.split_once(' ').unwrap_or((text, ""));
    let mut request = AllocPd {}.to_request();
    if let Ok(opcode) = name.parse() {
        return AqRequest { opcode, ..request };
    }
    request.opcode = named(Opcode::ALL, name).into();
    commands(&request, changes)[0]
}
