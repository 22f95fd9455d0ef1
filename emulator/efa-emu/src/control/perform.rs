// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Execution of requests.

use std::time::Duration;

use efa_fabric::Settings;
use efa_model::{Device, Host};
use serde_json::{Map, Value, json, to_value};

use crate::control::{
    emulator::Emulator,
    protocol::{Bytes, Command, DeviceInfo, EventGroup, Injected, PROTOCOL, Released, Reply, Request, Sample, Welcome},
    scope::Scope,
};

/// Limit in bytes on one read of a queue.
const MAX_PEEK: usize = 4096;

/// A result that becomes the value of `ok` in a reply, or one sentence about what is wrong.
trait Answer {
    fn answer(self) -> Result<Value, String>;
}

impl Answer for Value {
    fn answer(self) -> Result<Value, String> {
        Ok(self)
    }
}

impl Answer for () {
    fn answer(self) -> Result<Value, String> {
        Ok(json!({}))
    }
}

impl<T: Answer, E: ToString> Answer for Result<T, E> {
    fn answer(self) -> Result<Value, String> {
        self.map_err(|error| error.to_string())?.answer()
    }
}

impl Emulator {
    /// Performs a request, and returns the reply as a line.
    pub fn reply(&self, request: &[u8]) -> Vec<u8> {
        self.reply_to(&Scope::default(), request)
    }

    /// Performs a request of a client within the scope of its socket, and returns the reply as a line.
    pub(crate) fn reply_to(&self, scope: &Scope, request: &[u8]) -> Vec<u8> {
        match self.request(scope, request) {
            Ok(reply) => Reply::Ok(reply).to_line(),
            Err(error) => Reply::Error(error).to_line(),
        }
    }

    /// Performs a request within a scope, and returns the value of `ok` in the reply.
    ///
    /// # Errors
    ///
    /// One sentence about what is wrong.
    pub(crate) fn request(&self, scope: &Scope, request: &[u8]) -> Result<Value, String> {
        let request = serde_json::from_slice(request).map_err(|error| error.to_string())?;
        let Request { device, command } = scope.admit(request)?;
        self.perform(device, command)
    }

    /// Calls `work` on a device.
    fn on<R: Answer>(
        &self,
        device: Option<usize>,
        work: impl FnOnce(&mut Device, &mut dyn Host, Duration) -> R,
    ) -> Result<Value, String> {
        self.device(device)?.function.with(work).answer()
    }

    fn perform(&self, device: Option<usize>, command: Command) -> Result<Value, String> {
        match command {
            Command::Hello { .. } | Command::Fabric { .. } if device.is_some() => {
                Err("unknown field `device`: this command is about no single device".into())
            }
            Command::Hello { protocol: Some(other) } if other != PROTOCOL => {
                Err(format!("protocol version {other} is not supported: this program supports version {PROTOCOL}"))
            }
            Command::Hello { .. } => to_value(Welcome::new()).answer(),
            Command::Fabric { set } => {
                if let Some(set) = set {
                    self.runtime.fabric().set(changed(&self.runtime.fabric().settings(), set)?);
                }
                to_value(self.network()).answer()
            }
            Command::Devices {} => {
                let info = |(index, device): (usize, &super::Device)| DeviceInfo {
                    device: index,
                    profile: device.profile,
                    socket: device.socket.clone(),
                };
                to_value(self.selected(device)?.map(info).collect::<Vec<_>>()).answer()
            }
            Command::Counters {} => to_value(Sample {
                devices: self.selected(device)?.map(|it| it.1.counters()).collect(),
                paths: device.is_none().then(|| self.runtime.fabric().paths()),
            })
            .answer(),
            Command::Snapshot {} => to_value(self.snapshot(device)?).answer(),
            Command::State {} => to_value(self.device(device)?.state()).answer(),
            Command::Trace {} => to_value(self.device(device)?.recorded.take_recent()).answer(),
            Command::Unplug {} => {
                self.device(device)?.function.unplug();
                ().answer()
            }
            Command::Plug {} => {
                self.device(device)?.function.plug();
                ().answer()
            }
            Command::Inject { rule } => {
                self.on(device, |device, _, _| to_value(Injected { rule: device.inject(rule) }))
            }
            Command::Release { name, count } => {
                self.on(device, |device, _, _| to_value(Released { released: device.release(&name, count) }))
            }
            Command::Set { set } => self.on(device, |device, _, _| device.set(*set)),
            Command::Event { after_commands: Some(_), after_reset: false, .. } => {
                Err("`after_commands` needs `after_reset`".into())
            }
            Command::Event { count: Some(_), after_reset: true, .. } => {
                Err("either `count` or `after_reset`, but not both".into())
            }
            Command::Event { group: EventGroup(group), syndrome, count, after_reset, after_commands } => {
                self.on(device, |device, host, now| {
                    match count {
                        Some(count) => return device.storm(group, syndrome, count.get()),
                        None if after_reset => {
                            device.post_event_late(group, syndrome, after_commands.unwrap_or(1));
                        }
                        None => device.post_event(host, now, group, syndrome),
                    }
                    Ok(())
                })
            }
            Command::FailQp { qp } => self
                .on(device, |device, host, _| device.fail_qp(host, qp))
                .map_err(|_| format!("there is no queue pair {qp}")),
            Command::Die(death) => self.on(device, |device, host, now| {
                if !device.is_plugged() {
                    return Err("an unplugged device can't die: plug it in first");
                }
                device.die(host, now, death);
                Ok(())
            }),
            Command::Clear {} => self.on(device, |device, _, _| device.clear()),
            Command::Peek { length, .. } if length > MAX_PEEK => {
                Err(format!("at most {MAX_PEEK} bytes can be read at once"))
            }
            Command::Peek { queue, offset, length } => self.on(device, |device, host, _| {
                let mut data = vec![0; length];
                let read = device.peek(host, queue, offset, &mut data);
                read.map(|()| to_value(Bytes { data }))
            }),
            Command::Poke { queue, offset, data } => {
                self.on(device, |device, host, _| device.poke(host, queue, offset, &data))
            }
            Command::Notify { eq, cq, count: Some(count) } => {
                self.on(device, |device, _, _| device.storm_of_completion_events(eq, cq, count.get()))
            }
            Command::Notify { eq, cq, .. } => {
                self.on(device, |device, host, _| device.post_completion_event(host, eq, cq))
            }
        }
    }
}

/// Returns the settings with the values in `set` replaced.
pub(crate) fn changed(settings: &Settings, set: Map<String, Value>) -> Result<Settings, String> {
    let mut value = to_value(settings).answer()?;
    if let Value::Object(object) = &mut value {
        object.extend(set);
    }
    let settings: Settings = serde_json::from_value(value).map_err(|error| error.to_string())?;
    settings.check()?;
    Ok(settings)
}
