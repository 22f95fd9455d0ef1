// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The control protocol: JSON lines that look at the devices and make them misbehave.

use std::{
    fs,
    io::{self, BufReader, Write},
    num::{NonZeroU32, NonZeroU64},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use efa_fabric::Settings;
use efa_hw::aenq::AenqGroup;
use efa_model::{Death, FailedReset, Overrides, Profile, Queue, Rule};
use efa_vfio::{Fabric, Function};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    lines::{Line, Lines},
    trace::Trace,
};

/// The longest request in bytes. Rules are much shorter.
const MAX_REQUEST: usize = 64 << 10;

/// Most bytes of a queue that are read at once.
const MAX_PEEK: usize = 4096;

/// A device that can be controlled.
pub(crate) struct Device {
    pub(crate) profile: Profile,
    pub(crate) socket: PathBuf,
    pub(crate) function: Arc<Function>,
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) trace: Trace,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Devices {},
    State {
        #[serde(default)]
        device: usize,
    },
    Trace {
        #[serde(default)]
        device: usize,
    },
    Inject {
        #[serde(default)]
        device: usize,
        rule: Rule,
    },
    Set {
        #[serde(default)]
        device: usize,
        // Boxed because it is much larger than the others.
        set: Box<Overrides>,
    },
    Event {
        #[serde(default)]
        device: usize,
        group: EventGroup,
        #[serde(default)]
        syndrome: u16,
        #[serde(default)]
        count: Option<NonZeroU64>,
        #[serde(default)]
        after_reset: bool,
        after_commands: Option<u64>,
    },
    Die {
        #[serde(default)]
        device: usize,
        #[serde(default)]
        silent: bool,
        #[serde(default = "once")]
        resets: NonZeroU32,
        #[serde(default)]
        how: FailedReset,
        #[serde(default)]
        dma: bool,
    },
    Unplug {
        #[serde(default)]
        device: usize,
    },
    Plug {
        #[serde(default)]
        device: usize,
    },
    Clear {
        #[serde(default)]
        device: usize,
    },
    Peek {
        #[serde(default)]
        device: usize,
        queue: Queue,
        #[serde(default)]
        offset: u64,
        length: usize,
    },
    Poke {
        #[serde(default)]
        device: usize,
        queue: Queue,
        #[serde(default)]
        offset: u64,
        data: Vec<u8>,
    },
    Notify {
        #[serde(default)]
        device: usize,
        eq: Option<u16>,
        cq: u16,
        count: Option<NonZeroU64>,
    },
    Counters {},
    Fabric {
        #[serde(default)]
        set: Option<Map<String, Value>>,
    },
}

const fn once() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// A group of asynchronous events, by its name or by its number, which may have no meaning.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Value")]
struct EventGroup(u16);

impl TryFrom<Value> for EventGroup {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
        let named = AenqGroup::ALL.iter().find(|group| value == group.name());
        named
            .map(|group| u16::from(*group))
            .or(number)
            .map(Self)
            .ok_or_else(|| {
                let names: Vec<_> = AenqGroup::ALL.iter().map(|group| group.name()).collect();
                format!(
                    "there is no event group {value}, only {} and numbers",
                    names.join(", ")
                )
            })
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Reply {
    Ok(Value),
    Error(String),
}

/// Does what one request asks for.
fn handle(devices: &[Device], request: &[u8]) -> Reply {
    match serde_json::from_slice(request)
        .map_err(|error| error.to_string())
        .and_then(|request| perform(devices, request))
    {
        Ok(value) => Reply::Ok(value),
        Err(error) => Reply::Error(error),
    }
}

fn perform(devices: &[Device], request: Request) -> Result<Value, String> {
    let device_at = |index: usize| {
        devices.get(index).ok_or_else(|| {
            format!(
                "there is no device {index}; the last one is {}",
                devices.len() - 1
            )
        })
    };
    let function = |index: usize| device_at(index).map(|device| &device.function);
    match request {
        Request::Devices {} => Ok(devices
            .iter()
            .enumerate()
            .map(|(index, device)| {
                json!({ "device": index, "profile": device.profile, "socket": device.socket })
            })
            .collect()),
        Request::State { device } => {
            let state = function(device)?.with(|device, _, _| device.state());
            serde_json::to_value(state).map_err(|error| error.to_string())
        }
        Request::Trace { device } => {
            let recent = device_at(device)?.trace.take_recent(device);
            serde_json::to_value(recent).map_err(|error| error.to_string())
        }
        Request::Inject { device, rule } => {
            let rule = function(device)?.with(|device, _, _| device.inject(rule));
            Ok(json!({ "rule": rule }))
        }
        Request::Set { device, set } => {
            function(device)?.with(|device, _, _| device.set(*set));
            Ok(json!({}))
        }
        Request::Event {
            device,
            group: EventGroup(group),
            syndrome,
            count,
            after_reset,
            after_commands,
        } => {
            if after_commands.is_some() && !after_reset {
                return Err("`after_commands` needs `after_reset`".into());
            }
            function(device)?.with(|device, host, now| {
                match (after_reset, count) {
                    (true, Some(_)) => {
                        return Err("either `count` or `after_reset`, but not both".into());
                    }
                    (true, None) => {
                        device.post_event_late(group, syndrome, after_commands.unwrap_or(1));
                    }
                    (false, Some(count)) => device
                        .storm(group, syndrome, count.get())
                        .map_err(|error| error.to_string())?,
                    (false, None) => device.post_event(host, now, group, syndrome),
                }
                Ok(json!({}))
            })
        }
        Request::Die {
            device,
            silent,
            resets,
            how,
            dma,
        } => {
            let death = Death {
                silent,
                resets,
                how,
                dma,
            };
            function(device)?.with(|device, host, now| {
                if !device.is_plugged() {
                    return Err("a device that is unplugged can't die: plug it in first".into());
                }
                device.die(host, now, death);
                Ok(json!({}))
            })
        }
        Request::Unplug { device } => {
            function(device)?.unplug();
            Ok(json!({}))
        }
        Request::Plug { device } => {
            function(device)?.plug();
            Ok(json!({}))
        }
        Request::Clear { device } => {
            function(device)?.with(|device, _, _| device.clear());
            Ok(json!({}))
        }
        Request::Peek {
            device,
            queue,
            offset,
            length,
        } => {
            if length > MAX_PEEK {
                return Err(format!("at most {MAX_PEEK} bytes can be read at once"));
            }
            let mut data = vec![0; length];
            function(device)?
                .with(|device, host, _| device.peek(host, queue, offset, &mut data))
                .map_err(|error| error.to_string())?;
            Ok(json!({ "data": data }))
        }
        Request::Poke {
            device,
            queue,
            offset,
            data,
        } => {
            function(device)?
                .with(|device, host, _| device.poke(host, queue, offset, &data))
                .map_err(|error| error.to_string())?;
            Ok(json!({}))
        }
        Request::Counters {} => {
            let counters: Vec<_> = devices
                .iter()
                .map(|device| device.function.with(|device, _, _| device.counters()))
                .collect();
            Ok(json!({ "devices": counters, "paths": device_at(0)?.fabric.paths() }))
        }
        Request::Fabric { set } => {
            let fabric = &device_at(0)?.fabric;
            if let Some(set) = set {
                fabric.set(changed(&fabric.settings(), set)?);
            }
            Ok(json!({
                "settings": fabric.settings(),
                "paths": fabric.paths(),
                "remote_devices": fabric.remote_devices(),
            }))
        }
        Request::Notify {
            device,
            eq,
            cq,
            count,
        } => function(device)?.with(|device, host, _| {
            match count {
                Some(count) => device
                    .storm_of_completion_events(eq, cq, count.get())
                    .map_err(|error| error.to_string())?,
                None => device
                    .post_completion_event(host, eq, cq)
                    .map_err(|error| error.to_string())?,
            }
            Ok(json!({}))
        }),
    }
}

/// Settings with other values for some of them.
fn changed(settings: &Settings, set: Map<String, Value>) -> Result<Settings, String> {
    let mut value = serde_json::to_value(settings).map_err(|error| error.to_string())?;
    if let Value::Object(object) = &mut value {
        object.extend(set);
    }
    let settings: Settings = serde_json::from_value(value).map_err(|error| error.to_string())?;
    settings.check()?;
    Ok(settings)
}

/// Answers all who connect. Returns only if nobody can connect any more.
pub(crate) fn serve(listener: &UnixListener, devices: &Arc<[Device]>) -> io::Error {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => return error,
        };
        let devices = Arc::clone(devices);
        let connection = thread::Builder::new().name("control connection".into());
        let started = connection.spawn(move || {
            if let Err(error) = answer(&stream, &devices) {
                tracing::info!(%error, "a control connection has ended");
            }
        });
        if let Err(error) = started {
            tracing::warn!(%error, "a control connection is refused");
        }
    }
}

fn answer(mut stream: &UnixStream, devices: &[Device]) -> io::Result<()> {
    let mut lines = Lines::new(BufReader::new(stream), MAX_REQUEST);
    while let Some(line) = lines.next()? {
        let reply = match line {
            Line::Whole(request) => handle(devices, request),
            Line::TooLong => Reply::Error(format!("a request is at most {MAX_REQUEST} bytes")),
        };
        let mut reply = serde_json::to_vec(&reply)?;
        reply.push(b'\n');
        stream.write_all(&reply)?;
    }
    Ok(())
}

/// Applies the requests in a file. Empty lines and those that begin with `#` are comments.
///
/// # Errors
///
/// The file can't be read, or a request in it fails; the message says where.
pub(crate) fn play(scenario: &Path, devices: &[Device]) -> Result<(), String> {
    let text = fs::read_to_string(scenario)
        .map_err(|error| format!("cannot read the scenario {}: {error}", scenario.display()))?;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Reply::Error(error) = handle(devices, line.as_bytes()) {
            return Err(format!("{}:{number}: {error}", scenario.display()));
        }
    }
    Ok(())
}

/// Sends requests to a control socket and prints the replies. True if none is an error.
///
/// # Errors
///
/// Those of the connection.
pub(crate) fn send(socket: &Path, requests: &[String]) -> io::Result<bool> {
    let mut stream = UnixStream::connect(socket)?;
    let mut replies = Lines::new(BufReader::new(stream.try_clone()?), usize::MAX);
    let mut all_ok = true;
    for request in requests {
        stream.write_all(request.replace('\n', " ").as_bytes())?;
        stream.write_all(b"\n")?;
        let Some(Line::Whole(reply)) = replies.next()? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        println!("{}", String::from_utf8_lossy(reply));
        all_ok &= reply.starts_with(br#"{"ok""#);
    }
    Ok(all_ok)
}
