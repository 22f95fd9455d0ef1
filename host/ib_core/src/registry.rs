// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! State of the core: devices, clients and network namespaces.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
};

use kernel::{
    bindings::net,
    error::{to_result, Result},
    sim::{self, RawLock, Rw, TaskId},
};

use crate::{
    client::Known,
    cq, ffi, mmap, udata, umem,
    uverbs::{self, zeroed, Kind},
};

/// Kind of an object, and its number of readers.
type Tracked = (Kind, Rc<Cell<u32>>);

/// Function that a client has registered for events of a device.
type EventHandler = Rc<dyn Fn(ffi::ib_event_type)>;

/// State of a device in the core.
pub(crate) struct State {
    pub(crate) raw: *mut ffi::ib_device,
    pub(crate) size: usize,
    pub(crate) references: Cell<u32>,
    pub(crate) unregistration: RawLock,
    pub(crate) client_data_rwsem: Rw,
    /// By the number of each client: its data, and whether it has been added.
    pub(crate) client_data: RefCell<BTreeMap<u32, (usize, bool)>>,
    pub(crate) stats: RefCell<Vec<*mut ffi::rdma_hw_stats>>,
    /// The completion counters of each queue pair.
    pub(crate) attached: RefCell<BTreeMap<usize, Vec<*mut ffi::ib_comp_cntr>>>,
    /// Number of tasks that read counters.
    pub(crate) readers: Cell<u32>,
    /// Objects that `rdma resource show` may print at any time, with the number of readers of each.
    pub(crate) tracked: RefCell<BTreeMap<usize, Tracked>>,
    /// Number of objects of each kind.
    pub(crate) objects: RefCell<BTreeMap<&'static str, i32>>,
    pub(crate) attr: Cell<(u32, u32)>,
    /// Data of each port, counted from 1.
    pub(crate) ports: RefCell<Vec<ffi::ib_port_data>>,
    /// Functions that clients have registered for events of the device.
    pub(crate) events: RefCell<Vec<EventHandler>>,
    /// Tasks that call clients for an event.
    pub(crate) dispatching: RefCell<Vec<TaskId>>,
}

impl State {
    /// Counts objects, as `restrack` does.
    pub(crate) fn count(&self, kind: &'static str, by: i32) {
        *self.objects.borrow_mut().entry(kind).or_default() += by;
    }

    /// As `rdma_restrack_add` does.
    pub(crate) fn track<T>(&self, kind: Kind, object: *mut T) {
        self.tracked
            .borrow_mut()
            .insert(object as usize, (kind, Rc::default()));
    }

    /// As `rdma_restrack_begin_del`, which waits for readers.
    pub(crate) fn untrack<T>(&self, object: *mut T) {
        let found = self.tracked.borrow_mut().remove(&(object as usize));
        if let Some((_, readers)) = found {
            while readers.get() != 0 {
                sim::wait_for(Rc::as_ptr(&readers) as usize);
            }
        }
    }

    pub(crate) fn put(&self) {
        self.references.set(self.references.get() - 1);
        sim::signal(std::ptr::from_ref(self) as usize);
    }

    /// As `ib_device_try_get` does.
    pub(crate) fn try_get(&self) -> bool {
        let references = self.references.get();
        if references != 0 {
            self.references.set(references + 1);
        }
        references != 0
    }
}

/// The state of the core.
pub(crate) struct Core {
    pub(crate) devices_rwsem: Rw,
    pub(crate) clients_rwsem: Rw,
    /// Devices with a name.
    pub(crate) devices: RefCell<Vec<*mut ffi::ib_device>>,
    pub(crate) registered: RefCell<Vec<*mut ffi::ib_device>>,
    pub(crate) clients: RefCell<Vec<Known>>,
    pub(crate) next_client: Cell<u32>,
    pub(crate) states: RefCell<BTreeMap<usize, Rc<State>>>,
    pub(crate) nets: Vec<net>,
    /// Number of successful registrations of devices.
    pub(crate) registrations: Cell<u32>,
    pub(crate) refuses: Cell<bool>,
    /// Called before the next registration fails, if it does.
    fails: RefCell<Option<Box<dyn FnOnce()>>>,
}

thread_local! {
    static CORE: Cell<Option<&'static Core>> = const { Cell::new(None) };
}

/// Returns the core of this machine.
pub(crate) fn core() -> &'static Core {
    CORE.get().expect("a core")
}

/// Lets the next registration of a device fail after it is visible. Calls `before` then.
pub fn fail_late(before: impl FnOnce() + 'static) {
    core().fails.replace(Some(Box::new(before)));
}

/// Returns the function of [`fail_late`].
pub(crate) fn take_failure() -> Option<Box<dyn FnOnce()>> {
    core().fails.take()
}

/// Starts the core of a machine, with `ib_uverbs` as its only client. Discards the previous core.
pub fn start() {
    let nets = (1..3).map(|net_cookie| net {
        net_cookie,
        references: Cell::new(1),
    });
    let new = Core {
        devices_rwsem: Rw::new(),
        clients_rwsem: Rw::new(),
        devices: RefCell::default(),
        registered: RefCell::default(),
        clients: RefCell::default(),
        next_client: Cell::new(0),
        states: RefCell::default(),
        nets: nets.collect(),
        registrations: Cell::new(0),
        refuses: Cell::new(false),
        fails: RefCell::default(),
    };
    if let Some(old) = CORE.replace(None) {
        // SAFETY: The box is that of an earlier `start`, and no task of its machine, which has ended, uses it.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(old).cast_mut()) });
    }
    CORE.set(Some(Box::leak(Box::new(new))));
    uverbs::start();
    umem::start();
    udata::start();
    cq::start();
    mmap::start();
}

/// Returns the state of a device.
pub(crate) fn state(device: *mut ffi::ib_device) -> Rc<State> {
    core()
        .states
        .borrow()
        .get(&(device as usize))
        .expect("a device")
        .clone()
}

/// Returns the device that was registered last, if there is one.
pub fn registered() -> Option<*mut ffi::ib_device> {
    core().registered.borrow().last().copied()
}

/// Returns the name of a device.
pub fn name(device: *mut ffi::ib_device) -> String {
    // SAFETY: The device is allocated, and its name ends with zero, as `assign_name` leaves room for that.
    unsafe { std::ffi::CStr::from_ptr((&raw const (*device).name).cast()) }
        .to_string_lossy()
        .into_owned()
}

/// Renames a device, as `ib_device_rename` does.
///
/// # Panics
///
/// If the name is too long.
pub fn rename(device: *mut ffi::ib_device, name: &str) {
    // SAFETY: The device is allocated, and nothing else uses its name.
    let place = unsafe { &mut (*device).name };
    assert!(name.len() < place.len());
    let bytes = name.bytes().chain(std::iter::repeat(0));
    for (place, byte) in place.iter_mut().zip(bytes) {
        *place = byte as _;
    }
}

pub(crate) fn coredev(device: *mut ffi::ib_device) -> &'static mut ffi::ib_core_device {
    // SAFETY: The device is allocated until `release` ends, and no caller keeps the reference.
    unsafe { (*device).__bindgen_anon_1.coredev.as_mut() }
}

/// Calls `handler` for each event of a device, as `ib_register_event_handler` does.
pub fn on_event(device: *mut ffi::ib_device, handler: impl Fn(ffi::ib_event_type) + 'static) {
    state(device).events.borrow_mut().push(Rc::new(handler));
}

/// Moves a device to the network namespace with a cookie, as `rdma_dev_change_netns` does.
///
/// # Panics
///
/// If the driver fails.
pub fn move_to(device: *mut ffi::ib_device, cookie: u64) {
    let net = get_net(cookie);
    coredev(device).rdma_net.net = net;
    // The device does not hold a reference.
    // SAFETY: The namespaces exist as long as the core. The device is registered.
    unsafe {
        (*net).references.set((*net).references.get() - 1);
        let enable = (*device).ops.enable_driver.expect("a function");
        assert_eq!(enable(device), 0);
    }
}

/// Returns the network namespace of a device.
pub fn net_of(device: *mut ffi::ib_device) -> *mut net {
    coredev(device).rdma_net.net
}

/// Returns a reference to the network namespace with a cookie, or to the first one.
pub fn get_net(cookie: u64) -> *mut net {
    let nets = &core().nets;
    let net = nets
        .iter()
        .find(|net| net.net_cookie == cookie)
        .unwrap_or(&nets[0]);
    net.references.set(net.references.get() + 1);
    std::ptr::from_ref(net).cast_mut()
}

/// Returns the first GID of a device.
///
/// # Errors
///
/// Errors of the driver.
pub fn gid(device: *mut ffi::ib_device) -> Result<[u8; 16]> {
    let mut gid: ffi::ib_gid = zeroed();
    // SAFETY: The device is registered, so that the core has set its table in `ib_set_device_ops`.
    unsafe {
        let query = (*device).ops.query_gid.expect("a function");
        to_result(query(device, 1, 0, &raw mut gid))?;
        Ok(*gid.raw.as_ref())
    }
}

/// A reference of a client to a registered device, as `ib_device_try_get` takes it.
pub struct Reference(Rc<State>);

impl Reference {
    /// Takes a reference, if a device is registered.
    pub fn new() -> Option<Self> {
        let state = state(registered()?);
        state.try_get().then(|| Self(state.clone()))
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        self.0.put();
    }
}

/// Returns the number of successful registrations of devices.
pub fn registrations() -> u32 {
    core().registrations.get()
}

/// Sets whether registrations of devices fail from now on.
pub fn set_refuses(on: bool) {
    core().refuses.set(on);
}

/// Returns the number of clients, of which `ib_uverbs` is one.
pub fn clients() -> usize {
    core().clients.borrow().len()
}
