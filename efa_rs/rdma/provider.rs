// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The trait that a driver implements for its devices.

use kernel::{
    error::from_result,
    ffi::{
        c_char,
        c_int,
        c_void, //
    },
    fmt,
    prelude::*,
    str::CString, //
};

use super::{
    ah::AddressHandle,
    attr::{
        DeviceAttr,
        Gid,
        LinkLayer,
        PortAttr, //
    },
    comp_cntr::CompletionCounter,
    context::Ucontext,
    counters::CounterDesc,
    cq::CompletionQueue,
    device::Device,
    mr::{
        MemoryRegion,
        SharedOf, //
    },
    ops::Ops,
    pd::ProtectionDomain,
    qp::QueuePair,
    udata::Udata, //
};
use crate::ffi;

/// Number by which userspace finds the provider library of a driver: one of
/// `enum rdma_driver_id`.
#[derive(Clone, Copy)]
pub(crate) struct DriverId(ffi::rdma_driver_id);

impl DriverId {
    /// The driver has no provider library.
    #[allow(
        dead_code,
        reason = "for providers that have no number yet, see samples/"
    )]
    pub(crate) const UNKNOWN: Self = Self(ffi::rdma_driver_id_RDMA_DRIVER_UNKNOWN);

    /// Makes an id of its number.
    #[allow(dead_code, reason = "for providers that have a number")]
    pub(crate) const fn new(number: ffi::rdma_driver_id) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub(super) const fn as_raw(self) -> ffi::rdma_driver_id {
        self.0
    }
}

/// A driver of RDMA devices.
///
/// The core calls verbs from several tasks at once, in process context unless documented otherwise,
/// between the registration of a device and its end. `'a` is the lifetime of the registration's
/// data.
///
/// # Examples
///
/// A device that has no objects, and answers queries:
///
/// ```
/// use kernel::rdma::{self, *};
///
/// struct Null;
///
/// #[vtable]
/// impl Provider for Null {
///     const DRIVER_ID: DriverId = DriverId::UNKNOWN;
///     const UVERBS_ABI_VERSION: u32 = 1;
///     const ROBUST_UDATA: bool = true;
///
///     type Data<'a> = ();
///     type Ucontext<'a> = Absent;
///     type Pd<'a> = Absent;
///     type Ah<'a> = Absent;
///     type Cq<'a> = Absent;
///     type Qp<'a> = Absent;
///     type CompCntr<'a> = Absent;
///     type Mr<'a> = Absent;
///
///     fn query_device<'a>(_: &rdma::Device<()>, udata: &Udata<'_>) -> Result<DeviceAttr> {
///         udata.expect_no_io()?;
///         Ok(DeviceAttr::default())
///     }
///
///     fn query_port<'a>(_: &rdma::Device<()>, _port: u32) -> Result<PortAttr> {
///         Err(ENODEV)
///     }
/// }
///
/// assert!(!Null::HAS_QUERY_GID);
/// assert_eq!(Null::PORTS, 1);
/// ```
#[vtable]
pub(crate) trait Provider: Sized + 'static {
    /// The userspace provider library of the device.
    const DRIVER_ID: DriverId;

    /// Version of the interface between driver and userspace library.
    const UVERBS_ABI_VERSION: u32;

    /// Whether each verb checks its whole input and fills its whole output, by [`Udata`].
    ///
    /// The core reports this to programs. Verbs that destroy objects are exempt: to undo a
    /// creation, the core passes them the input and output of the creation.
    const ROBUST_UDATA: bool = false;

    /// Driver-specific methods of the core's objects. They read what memory regions share with them.
    const UAPI: Option<ffi::UapiDefinitions<SharedOf<'static, Self>>> = None;

    /// Number of ports of a device, which are counted from 1.
    const PORTS: u32 = 1;

    /// Counters of the device.
    const DEVICE_COUNTERS: &'static [CounterDesc] = &[];

    /// Counters of each port.
    const PORT_COUNTERS: &'static [CounterDesc] = &[];

    /// Data of a device, owned by its registration.
    type Data<'a>: Send + Sync + 'a;

    /// Contexts of processes.
    type Ucontext<'a>: Ucontext<'a, Self>;

    /// Protection domains.
    type Pd<'a>: ProtectionDomain<'a, Self>;

    /// Address handles.
    type Ah<'a>: AddressHandle<'a, Self>;

    /// Completion queues.
    type Cq<'a>: CompletionQueue<'a, Self>;

    /// Queue pairs.
    type Qp<'a>: QueuePair<'a, Self>;

    /// Completion counters.
    type CompCntr<'a>: CompletionCounter<'a, Self>;

    /// Memory regions.
    type Mr<'a>: MemoryRegion<'a, Self>;

    /// Called when programs can use the device: after its registration, and after it was moved to another
    /// network namespace. `log` logs a message with the name of the device.
    fn enabled<'a>(_device: &Device<Self::Data<'a>>, _log: &dyn Fn(fmt::Arguments<'_>)) {}

    /// Returns whether a device that is about to be unregistered has failed. Clients in the kernel get
    /// the event of a fatal device error then.
    fn has_failed<'a>(_device: &Device<Self::Data<'a>>) -> bool {
        false
    }

    /// Returns the attributes of the device.
    fn query_device<'a>(device: &Device<Self::Data<'a>>, udata: &Udata<'_>) -> Result<DeviceAttr>;

    /// Returns the attributes of a port.
    fn query_port<'a>(device: &Device<Self::Data<'a>>, port: u32) -> Result<PortAttr>;

    /// Returns the link layer below the transport at a port.
    fn link_layer<'a>(_device: &Device<Self::Data<'a>>, _port: u32) -> LinkLayer {
        LinkLayer::Unspecified
    }

    /// Returns the version of the firmware as text.
    fn firmware_version<'a>(_device: &Device<Self::Data<'a>>) -> Result<CString> {
        Err(EOPNOTSUPP)
    }

    /// Returns the speed of a port in units of 100 Mbit/s.
    fn query_port_speed<'a>(_device: &Device<Self::Data<'a>>, _port: u32) -> Result<u64> {
        Err(EOPNOTSUPP)
    }

    /// Returns an entry of a port's GID table.
    fn query_gid<'a>(_device: &Device<Self::Data<'a>>, _port: u32, _index: u32) -> Result<Gid> {
        Err(EOPNOTSUPP)
    }

    /// Returns an entry of a port's partition table.
    fn query_pkey<'a>(_device: &Device<Self::Data<'a>>, _port: u32, _index: u16) -> Result<u16> {
        Err(EOPNOTSUPP)
    }

    /// Called when a process could not map memory.
    fn mmap_failed<'a>(_device: &Device<Self::Data<'a>>) {}

    /// Reads the counters of the device, in the order of [`Self::DEVICE_COUNTERS`].
    fn read_device_counters<'a>(_device: &Device<Self::Data<'a>>, _values: &mut [u64]) -> Result {
        Err(EOPNOTSUPP)
    }

    /// Reads the counters of a port, in the order of [`Self::PORT_COUNTERS`].
    fn read_port_counters<'a>(
        _device: &Device<Self::Data<'a>>,
        _port: u32,
        _values: &mut [u64],
    ) -> Result {
        Err(EOPNOTSUPP)
    }
}

/// A kind of object that a provider does not have.
#[allow(dead_code, reason = "for providers that lack a kind of object")]
pub(crate) enum Absent {}

/// Adds the callbacks of devices and ports to the table of a provider.
pub(super) const fn add_ops<P: Provider>(ops: &mut ffi::ib_device_ops) {
    ops.driver_id = P::DRIVER_ID.as_raw();
    ops.uverbs_abi_ver = P::UVERBS_ABI_VERSION;
    ops.enable_driver = Some(Ops::<P>::enable_driver);
    ops.query_device = Some(Ops::<P>::query_device);
    ops.query_port = Some(Ops::<P>::query_port);
    ops.get_port_immutable = Some(Ops::<P>::get_port_immutable);
    ops.get_link_layer = Some(Ops::<P>::get_link_layer);
    if P::HAS_FIRMWARE_VERSION {
        ops.get_dev_fw_str = Some(Ops::<P>::get_dev_fw_str);
    }
    if P::HAS_QUERY_PORT_SPEED {
        ops.query_port_speed = Some(Ops::<P>::query_port_speed);
    }
    if P::HAS_QUERY_GID {
        ops.query_gid = Some(Ops::<P>::query_gid);
    }
    if P::HAS_QUERY_PKEY {
        ops.query_pkey = Some(Ops::<P>::query_pkey);
    }
}

#[allow(clippy::missing_safety_doc, reason = "that of `Ops`")]
impl<P: Provider> Ops<P> {
    /// Calls the provider when programs can use a device.
    ///
    /// # Safety
    ///
    /// The core holds the lock under which it renames devices, and does not
    /// move the device.
    unsafe extern "C" fn enable_driver(raw: *mut ffi::ib_device) -> c_int {
        // SAFETY: By the contract, the device is registered.
        let device = unsafe { Self::device(raw) };
        // SAFETY: By the requirement of this function, the core does not move the device.
        unsafe { device.home().note_net(raw) };
        P::enabled(device, &|message| {
            let message: *const c_void = core::ptr::from_ref(&message).cast();
            // SAFETY: `%pA` takes a pointer to formatted arguments. The device is valid. By the requirement of this
            // function, the core does not rename it, which would free its name.
            unsafe { ffi::ibdev_info(raw, c"%pA".as_char_ptr(), message) }
        });
        0
    }

    /// Writes the version of the firmware, with a zero byte at its end.
    ///
    /// # Safety
    ///
    /// `text` has room for `IB_FW_VERSION_NAME_MAX` bytes.
    unsafe extern "C" fn get_dev_fw_str(device: *mut ffi::ib_device, text: *mut c_char) {
        const ROOM: usize = ffi::IB_FW_VERSION_NAME_MAX as usize;

        // SAFETY: By the contract, the device is registered.
        let version = P::firmware_version(unsafe { Self::device(device) });
        let version = version
            .as_ref()
            .map_or(&[][..], |version| version.to_bytes());
        let mut all = [0; ROOM];
        for (to, from) in all[..ROOM - 1].iter_mut().zip(version) {
            *to = *from;
        }
        // SAFETY: By the requirement of this function, there is room for `ROOM` bytes.
        unsafe { text.cast::<[u8; ROOM]>().write(all) };
    }

    /// Returns the attributes of a device.
    ///
    /// `udata` may be null.
    unsafe extern "C" fn query_device(
        device: *mut ffi::ib_device,
        attr: *mut ffi::ib_device_attr,
        udata: *mut ffi::ib_udata,
    ) -> c_int {
        // SAFETY: By the contract, the device is registered, or being registered.
        let device = unsafe { Self::device(device) };
        // SAFETY: By the contract, `udata` is null or valid during the call.
        let udata = unsafe { Udata::from_raw(udata) };
        from_result(|| {
            let found = P::query_device(device, &udata)?.to_raw();
            // SAFETY: By the contract, there is room for the attributes.
            unsafe { attr.write(found) };
            Ok(0)
        })
    }

    /// Returns the attributes of a port.
    unsafe extern "C" fn query_port(
        device: *mut ffi::ib_device,
        port: u32,
        attr: *mut ffi::ib_port_attr,
    ) -> c_int {
        // SAFETY: By the contract, the device is registered, or being registered.
        let device = unsafe { Self::device(device) };
        // SAFETY: By the contract, the core passes a structure to be filled.
        let attr = unsafe { &mut *attr };
        from_result(|| {
            P::query_port(device, port)?.fill(attr);
            Ok(0)
        })
    }

    /// Returns the speed of a port in units of 100 Mbit/s.
    unsafe extern "C" fn query_port_speed(
        device: *mut ffi::ib_device,
        port: u32,
        speed: *mut u64,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, the device is registered.
            let found = P::query_port_speed(unsafe { Self::device(device) }, port)?;
            // SAFETY: By the contract, there is room for the speed.
            unsafe { speed.write(found) };
            Ok(0)
        })
    }

    /// Returns the attributes of a port that do not change.
    unsafe extern "C" fn get_port_immutable(
        device: *mut ffi::ib_device,
        port: u32,
        immutable: *mut ffi::ib_port_immutable,
    ) -> c_int {
        // SAFETY: By the contract, the device is being registered.
        let device = unsafe { Self::device(device) };
        // SAFETY: By the contract, the core passes a structure to be filled.
        let immutable = unsafe { &mut *immutable };
        from_result(|| {
            let attr = P::query_port(device, port)?;
            immutable.gid_tbl_len = attr.gid_tbl_len.into();
            immutable.pkey_tbl_len = attr.pkey_tbl_len.into();
            Ok(0)
        })
    }

    /// Returns the link layer of a port.
    unsafe extern "C" fn get_link_layer(
        device: *mut ffi::ib_device,
        port: u32,
    ) -> ffi::rdma_link_layer {
        // SAFETY: By the contract, the device is registered, or being registered.
        P::link_layer(unsafe { Self::device(device) }, port) as ffi::rdma_link_layer
    }

    /// Returns an entry of the GID table of a port.
    unsafe extern "C" fn query_gid(
        device: *mut ffi::ib_device,
        port: u32,
        index: c_int,
        gid: *mut ffi::ib_gid,
    ) -> c_int {
        // SAFETY: By the contract, the device is registered, or being registered.
        let device = unsafe { Self::device(device) };
        from_result(|| {
            let found = P::query_gid(device, port, index.try_into()?)?;
            // SAFETY: By the contract, there is room for a GID, which is 16 bytes.
            unsafe { gid.cast::<Gid>().write(found) };
            Ok(0)
        })
    }

    /// Returns an entry of the partition table of a port.
    unsafe extern "C" fn query_pkey(
        device: *mut ffi::ib_device,
        port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract, the device is registered, or being registered.
            let found = P::query_pkey(unsafe { Self::device(device) }, port, index)?;
            // SAFETY: By the contract, there is room for the key.
            unsafe { pkey.write(found) };
            Ok(0)
        })
    }
}
