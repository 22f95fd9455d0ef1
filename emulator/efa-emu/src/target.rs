// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Emulators to join, by address or by name.
//!
//! To look a name up, libc opens files and sockets, and loads libraries, which this program keeps itself from. So a process of its
//! own does that, which knows nothing but the name. It is started before, and ends with this one.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, ToSocketAddrs},
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

/// The subcommand that looks a name up.
const LOOK_UP: &str = "look-up";

/// Most bytes of an answer.
const MAX_ANSWER: u64 = 4096;

/// An emulator to join.
#[derive(Debug)]
pub(crate) struct Target {
    text: String,
    port: u16,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Address(SocketAddr),
    Name(Lookup),
}

/// The process that looks a name up.
#[derive(Debug)]
struct Lookup {
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Target {
    /// # Errors
    ///
    /// The text is not of the form `ADDRESS:PORT`, or no process can be started for the name in it.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let (port, place) = match text.parse::<SocketAddr>() {
            Ok(address) => (address.port(), Place::Address(address)),
            Err(_) => {
                let port = text.rsplit_once(':').map(|(_, port)| port.parse());
                let Some(Ok(port)) = port else {
                    return Err(format!("cannot join {text}: it has no port"));
                };
                let lookup = Lookup::start(text)
                    .map_err(|error| format!("cannot look {text} up: {error}"))?;
                (port, Place::Name(lookup))
            }
        };
        Ok(Self {
            text: text.into(),
            port,
            place,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where the emulator is now.
    ///
    /// # Errors
    ///
    /// Its name is not known.
    pub(crate) fn addresses(&mut self) -> io::Result<Vec<SocketAddr>> {
        match &mut self.place {
            Place::Address(address) => Ok(vec![*address]),
            Place::Name(lookup) => lookup.ask(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Lookup {
    fn start(name: &str) -> io::Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .args([LOOK_UP, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(questions), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Self {
            questions,
            answers: BufReader::new(answers),
        })
    }

    fn ask(&mut self) -> io::Result<Vec<SocketAddr>> {
        self.questions.write_all(b"\n")?;
        let mut answer = String::new();
        (&mut self.answers)
            .take(MAX_ANSWER)
            .read_line(&mut answer)?;
        let addresses: Vec<_> = answer
            .split_whitespace()
            .map_while(|address| address.parse().ok())
            .collect();
        if addresses.is_empty() {
            return Err(io::Error::other("its name is not known"));
        }
        Ok(addresses)
    }
}

/// Is the process that looks a name up: answers each line with a line of addresses.
///
/// # Errors
///
/// The input or the output is gone.
pub(crate) fn look_up(name: &str) -> io::Result<()> {
    for question in io::stdin().lines() {
        question?;
        let found = name.to_socket_addrs().into_iter().flatten();
        // Few enough for an answer.
        let found: Vec<_> = found.take(32).map(|address| address.to_string()).collect();
        writeln!(io::stdout(), "{}", found.join(" "))?;
    }
    Ok(())
}
