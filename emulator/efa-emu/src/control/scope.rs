// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The scope of a control socket: the requests that its clients may send.

use std::{path::PathBuf, str::FromStr};

use crate::control::protocol::{Command, Request};

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
        let mut scope = Self { path: path.into(), ..Self::default() };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("device", index)) => {
                    let index = index.parse();
                    scope.device = Some(index.map_err(|_| format!("`{option}` has no valid device index"))?);
                }
                None if option == "read-only" => scope.read_only = true,
                None if option == "no-debugging" => scope.no_debugging = true,
                _ => {
                    return Err(format!("`{option}` is not a scope, expected device=N, read-only or no-debugging"));
                }
            }
        }
        Ok(scope)
    }
}

impl Scope {
    /// Checks a request, and adds the only device if the request names none.
    ///
    /// # Errors
    ///
    /// One sentence about why clients may not send this request.
    pub(crate) fn admit(&self, mut request: Request) -> Result<Request, String> {
        use Command::{Counters, Devices, Fabric, Hello, Notify, Peek, Poke, Snapshot, State};
        let command = &request.command;
        let refused = |why: &str| Err(format!("this control socket is {why}: use another one"));
        // `trace` takes the lines that it returns from others.
        let changes_nothing =
            matches!(command, Hello { .. } | Devices {} | State {} | Snapshot {} | Counters {} | Fabric { set: None });
        if self.read_only && !changes_nothing {
            return refused("read-only");
        }
        if self.no_debugging && matches!(command, Peek { .. } | Poke { .. } | Notify { .. }) {
            return refused("not for debugging");
        }
        match self.device {
            Some(own) if !matches!(command, Hello { .. }) => {
                let device = *request.device.get_or_insert(own);
                if device != own || matches!(command, Fabric { .. }) {
                    return refused(&format!("for device {own} only"));
                }
                Ok(request)
            }
            _ => Ok(request),
        }
    }
}
