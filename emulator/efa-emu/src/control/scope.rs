// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The scope of a control socket: the requests that its clients may send.

use std::{path::PathBuf, str::FromStr};

use serde_json::Value;

/// Requests that change nothing. Without `set`, `fabric` changes nothing either. `trace` takes the lines that it returns.
const READ_ONLY_COMMANDS: [&str; 5] = ["devices", "state", "snapshot", "counters", "hello"];

/// Requests that concern all devices.
const COMMANDS_OF_ALL_DEVICES: [&str; 3] = ["devices", "counters", "fabric"];

/// Requests that access queues in guest memory.
const DEBUG_COMMANDS: [&str; 3] = ["peek", "poke", "notify"];

/// A control socket as the command line describes it: `PATH[,device=N][,read-only][,no-debugging]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) path: PathBuf,
    /// The only device that clients may access; all if absent.
    device: Option<usize>,
    read_only: bool,
    no_debugging: bool,
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, options) = text.split_once(',').unwrap_or((text, ""));
        let mut scope = Self {
            path: path.into(),
            ..Self::default()
        };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("device", index)) => {
                    let index = index.parse();
                    scope.device =
                        Some(index.map_err(|_| format!("`{option}` has no valid device index"))?);
                }
                None if option == "read-only" => scope.read_only = true,
                None if option == "no-debugging" => scope.no_debugging = true,
                _ => {
                    return Err(format!(
                        "`{option}` is not a scope, expected device=N, read-only or no-debugging"
                    ));
                }
            }
        }
        Ok(scope)
    }
}

impl Scope {
    /// Whether clients may send any request.
    pub(crate) fn is_all(&self) -> bool {
        self.device.is_none() && !self.read_only && !self.no_debugging
    }

    /// Checks a request, and adds the only device if the request names none.
    ///
    /// # Errors
    ///
    /// One sentence about why clients may not send this request.
    pub(crate) fn admit(&self, request: &mut Value) -> Result<(), String> {
        let Value::Object(fields) = request else {
            return Err("a request must be a JSON object".into());
        };
        let command = fields.get("command").and_then(Value::as_str);
        let command = command.unwrap_or_default().to_owned();
        let refused = |why: &str| Err(format!("this control socket is {why}: use another one"));
        let is_read_only = READ_ONLY_COMMANDS.contains(&&*command);
        if self.read_only && !is_read_only && (command != "fabric" || fields.contains_key("set")) {
            return refused("read-only");
        }
        if self.no_debugging && DEBUG_COMMANDS.contains(&&*command) {
            return refused("not for debugging");
        }
        let Some(index) = self.device.filter(|_| command != "hello") else {
            return Ok(());
        };
        let device = fields.entry("device").or_insert_with(|| index.into());
        if COMMANDS_OF_ALL_DEVICES.contains(&&*command) || *device != index {
            return refused(&format!("for device {index} only"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::control::protocol::COMMANDS;

    /// The commands that a socket refuses.
    fn refused(scope: &str) -> Vec<&'static str> {
        let scope: Scope = scope.parse().unwrap();
        let refuses = |command: &&&str| scope.admit(&mut json!({ "command": command })).is_err();
        COMMANDS.iter().filter(refuses).copied().collect()
    }

    #[test]
    fn each_scope_refuses_some_commands() {
        assert_eq!(refused("a"), [""; 0]);
        assert_eq!(refused("a,no-debugging"), DEBUG_COMMANDS);
        assert_eq!(refused("a,device=3"), COMMANDS_OF_ALL_DEVICES);
        let changes = COMMANDS
            .iter()
            .filter(|command| !READ_ONLY_COMMANDS.contains(command));
        let changes: Vec<_> = changes.copied().filter(|name| *name != "fabric").collect();
        assert_eq!(refused("a,read-only"), changes);
        assert!(changes.contains(&"trace"));
        let scope: Scope = "a,read-only".parse().unwrap();
        assert!(
            scope
                .admit(&mut json!({"command": "fabric", "set": {}}))
                .is_err()
        );
    }

    #[test]
    fn requests_use_the_device_of_the_socket() {
        let scope: Scope = "a,device=3".parse().unwrap();
        for device in [json!({}), json!({"device": 3})] {
            let mut request = device;
            request["command"] = "state".into();
            scope.admit(&mut request).unwrap();
            assert_eq!(request["device"], 3);
        }
        for device in [json!(0), json!("3"), json!(null), json!(3.0)] {
            let mut request = json!({"command": "state", "device": device});
            let error = scope.admit(&mut request).unwrap_err();
            assert!(error.contains("for device 3 only"), "{error}");
        }
        assert!(scope.admit(&mut json!([])).is_err());
        for text in ["a,device=x", "a,device", "a,readonly", "a,read-only=1"] {
            assert!(text.parse::<Scope>().is_err(), "{text}");
        }
    }
}
