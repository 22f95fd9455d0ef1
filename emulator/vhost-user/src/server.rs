// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Serves a function to kernels, one after the other.

use std::{
    io,
    os::unix::net::UnixListener,
    sync::{Arc, RwLock},
};

use efa_vfio::{Function, Persistence};
use vhost::vhost_user::Listener;
use vhost_user_backend::VhostUserDaemon;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use crate::pci::Pci;

/// Serves one function to kernels, of which one at a time has it.
pub struct Server {
    listener: UnixListener,
    function: Arc<Function>,
}

impl Server {
    /// A server of `function` that takes connections from `listener`.
    pub fn new(listener: UnixListener, function: Arc<Function>) -> Self {
        Self { listener, function }
    }

    /// Serves kernels. Each gets the function as after power on.
    ///
    /// It needs a thread of its own, and starts two for each kernel.
    pub fn run(self) -> ! {
        let mut persistence = Persistence::new("cannot serve User-Mode Linux");
        loop {
            let _ = persistence.attempt(|| self.serve());
        }
    }

    /// Serves the next kernel to its end.
    fn serve(&self) -> io::Result<()> {
        let mut listener = Listener::from(self.listener.try_clone()?);
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let pci = Pci::new(&self.function, memory.clone())?;
        let signals = pci.signals();
        let backend = Arc::new(RwLock::new(pci));
        let mut daemon =
            VhostUserDaemon::new("vhost-user".into(), backend, memory).map_err(other)?;
        for handler in daemon.get_epoll_handlers() {
            for (fd, number) in &signals {
                handler.register_listener(*fd, EventSet::IN, *number)?;
            }
        }
        daemon.start(&mut listener).map_err(other)?;
        match daemon.wait() {
            Ok(()) => tracing::info!("the kernel has disconnected"),
            Err(error) => tracing::info!(%error, "the connection to the kernel has ended"),
        }
        for handler in daemon.get_epoll_handlers() {
            handler.send_exit_event();
        }
        Ok(())
    }
}

fn other(error: vhost_user_backend::Error) -> io::Error {
    io::Error::other(error.to_string())
}
