// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Execution of each kind of request.

use efa_fabric::Settings;
use efa_model::Death;
use serde_json::{Map, Value};

use crate::{
    control::{
        emulator::{Device, Emulator},
        event_group::EventGroup,
        protocol::{
            Bytes, Clear, Counters, DeviceInfo, Devices, Die, Done, Event, Fabric, FailQp, Hello,
            Inject, Injected, Network, Notify, Peek, Perform, Plug, Poke, Release, Released, Reply,
            Request, Sample, Set, Snapshot, State, Trace, Unplug, Welcome,
        },
        scope::Scope,
    },
    snapshot,
    trace::Recent,
};

/// Limit in bytes on one read of a queue.
const MAX_PEEK: usize = 4096;

impl Emulator {
    /// Performs a request, and returns the reply as a line.
    pub fn reply(&self, request: &[u8]) -> Vec<u8> {
        Reply::from(self.request(request)).to_line()
    }

    /// Performs a request of a client within the scope of its socket, and returns the reply as a line.
    pub(crate) fn reply_to(&self, scope: &Scope, request: &[u8]) -> Vec<u8> {
        if scope.is_all() {
            return self.reply(request);
        }
        let perform = || {
            let unreadable = |error: serde_json::Error| error.to_string();
            let mut request: Value = serde_json::from_slice(request).map_err(unreadable)?;
            scope.admit(&mut request)?;
            let request: Request = serde_json::from_value(request).map_err(unreadable)?;
            request.perform_by(self)
        };
        Reply::from(perform()).to_line()
    }

    /// Performs a request, and returns the value of `ok` in the reply.
    ///
    /// # Errors
    ///
    /// One sentence about what is wrong.
    pub(crate) fn request(&self, request: &[u8]) -> Result<Value, String> {
        let request: Request =
            serde_json::from_slice(request).map_err(|error| error.to_string())?;
        request.perform_by(self)
    }
}

impl Perform<Hello> for Emulator {
    fn perform(&self, request: Hello) -> Result<Welcome, String> {
        request.welcome()
    }
}

impl Perform<Devices> for Emulator {
    fn perform(&self, Devices {}: Devices) -> Result<Vec<DeviceInfo>, String> {
        let info = |(index, device): (usize, &Device)| DeviceInfo {
            device: index,
            profile: device.profile,
            socket: device.socket.clone(),
        };
        Ok(self.devices().iter().enumerate().map(info).collect())
    }
}

impl Perform<State> for Emulator {
    fn perform(&self, request: State) -> Result<efa_model::State, String> {
        let function = self.function(request.device)?;
        Ok(function.with(|device, _, _| device.state()))
    }
}

impl Perform<Trace> for Emulator {
    fn perform(&self, request: Trace) -> Result<Recent, String> {
        self.device(request.device)?;
        Ok(self.trace.take_recent(request.device))
    }
}

impl Perform<Snapshot> for Emulator {
    fn perform(&self, request: Snapshot) -> Result<snapshot::Snapshot, String> {
        snapshot::take(self, request.device)
    }
}

impl Perform<Inject> for Emulator {
    fn perform(&self, request: Inject) -> Result<Injected, String> {
        let function = self.function(request.device)?;
        let rule = function.with(|device, _, _| device.inject(request.rule));
        Ok(Injected { rule })
    }
}

impl Perform<Release> for Emulator {
    fn perform(&self, request: Release) -> Result<Released, String> {
        let Release {
            device,
            name,
            count,
        } = request;
        let function = self.function(device)?;
        let released = function.with(|device, _, _| device.release(&name, count));
        Ok(Released { released })
    }
}

impl Perform<Set> for Emulator {
    fn perform(&self, request: Set) -> Result<Done, String> {
        let function = self.function(request.device)?;
        function.with(|device, _, _| device.set(*request.set));
        Ok(Done {})
    }
}

impl Perform<Event> for Emulator {
    fn perform(&self, request: Event) -> Result<Done, String> {
        let Event {
            device,
            group: EventGroup(group),
            syndrome,
            count,
            after_reset,
            after_commands,
        } = request;
        if after_commands.is_some() && !after_reset {
            return Err("`after_commands` needs `after_reset`".into());
        }
        self.function(device)?.with(|device, host, now| {
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
            Ok(Done {})
        })
    }
}

impl Perform<FailQp> for Emulator {
    fn perform(&self, request: FailQp) -> Result<Done, String> {
        let failed = self
            .function(request.device)?
            .with(|device, host, _| device.fail_qp(host, request.qp));
        failed.map_err(|_| format!("there is no queue pair {}", request.qp))?;
        Ok(Done {})
    }
}

impl Perform<Die> for Emulator {
    fn perform(&self, request: Die) -> Result<Done, String> {
        let death = Death {
            silent: request.silent,
            resets: request.resets,
            how: request.how,
            dma: request.dma,
        };
        self.function(request.device)?.with(|device, host, now| {
            if !device.is_plugged() {
                return Err("an unplugged device can't die: plug it in first".into());
            }
            device.die(host, now, death);
            Ok(Done {})
        })
    }
}

impl Perform<Unplug> for Emulator {
    fn perform(&self, request: Unplug) -> Result<Done, String> {
        self.function(request.device)?.unplug();
        Ok(Done {})
    }
}

impl Perform<Plug> for Emulator {
    fn perform(&self, request: Plug) -> Result<Done, String> {
        self.function(request.device)?.plug();
        Ok(Done {})
    }
}

impl Perform<Clear> for Emulator {
    fn perform(&self, request: Clear) -> Result<Done, String> {
        let function = self.function(request.device)?;
        function.with(|device, _, _| device.clear());
        Ok(Done {})
    }
}

impl Perform<Peek> for Emulator {
    fn perform(&self, request: Peek) -> Result<Bytes, String> {
        if request.length > MAX_PEEK {
            return Err(format!("at most {MAX_PEEK} bytes can be read at once"));
        }
        let mut data = vec![0; request.length];
        self.function(request.device)?
            .with(|device, host, _| device.peek(host, request.queue, request.offset, &mut data))
            .map_err(|error| error.to_string())?;
        Ok(Bytes { data })
    }
}

impl Perform<Poke> for Emulator {
    fn perform(&self, request: Poke) -> Result<Done, String> {
        self.function(request.device)?
            .with(|device, host, _| device.poke(host, request.queue, request.offset, &request.data))
            .map_err(|error| error.to_string())?;
        Ok(Done {})
    }
}

impl Perform<Notify> for Emulator {
    fn perform(&self, request: Notify) -> Result<Done, String> {
        let Notify {
            device,
            eq,
            cq,
            count,
        } = request;
        self.function(device)?.with(|device, host, _| {
            match count {
                Some(count) => device
                    .storm_of_completion_events(eq, cq, count.get())
                    .map_err(|error| error.to_string())?,
                None => device
                    .post_completion_event(host, eq, cq)
                    .map_err(|error| error.to_string())?,
            }
            Ok(Done {})
        })
    }
}

impl Perform<Counters> for Emulator {
    fn perform(&self, Counters {}: Counters) -> Result<Sample, String> {
        let counters = |device: &Device| device.function.with(|device, _, _| device.counters());
        Ok(Sample {
            devices: self.devices().iter().map(counters).collect(),
            paths: self.runtime.paths(),
        })
    }
}

impl Perform<Fabric> for Emulator {
    fn perform(&self, request: Fabric) -> Result<Network, String> {
        let runtime = &self.runtime;
        if let Some(set) = request.set {
            runtime.set(changed(&runtime.settings(), set)?);
        }
        Ok(Network {
            settings: (*runtime.settings()).clone(),
            paths: runtime.paths(),
            remote_devices: runtime.remote_devices(),
            overflows: runtime.overflows(),
        })
    }
}

/// Returns the settings with the values in `set` replaced.
fn changed(settings: &Settings, set: Map<String, Value>) -> Result<Settings, String> {
    let mut value = serde_json::to_value(settings).map_err(|error| error.to_string())?;
    if let Value::Object(object) = &mut value {
        object.extend(set);
    }
    let settings: Settings = serde_json::from_value(value).map_err(|error| error.to_string())?;
    settings.check()?;
    Ok(settings)
}
