// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A module that leaks its objects of `rdma/`. It exists for the host only.

#![deny(unsafe_code)]

#[allow(dead_code, unsafe_code, reason = "as ../../../efa_rs")]
mod ffi;
mod hasty;
pub mod hoarder;
pub mod late;
#[allow(dead_code, unsafe_code, unused_imports, reason = "as ../../../efa_rs")]
mod rdma;
#[allow(dead_code, unsafe_code, unused_imports, reason = "as ../../../efa_rs")]
mod sys;

/// Code that must not compile, see the tests.
#[cfg(refused)]
mod refused {
    include!(env!("MISUSE_REFUSED"));
}

use std::cell::Cell;

use kernel::{
    driver,
    faux,
    prelude::*,
    str::CString,
    sync::Arc,
    InPlaceModule, //
};

use crate::{
    rdma::{
        Absent,
        Access,
        Device,
        DeviceAttr,
        DriverId,
        Gid,
        Hold,
        Home,
        MrInitAttr,
        MrKeys,
        NewMr,
        NodeInfo,
        PortAttr,
        PortPhysState,
        PortSpeed,
        PortState,
        PortWidth,
        Udata, //
    },
    sys::{
        attach::Attachment,
        dma::UserBuffer, //
    },
};

module! {
    type: Misuse,
    name: "misuse",
    authors: ["The efa-rs authors"],
    description: "Provider that leaks",
    license: "Dual BSD/GPL",
}

std::thread_local! {
    /// Number of regions that were revoked.
    static REVOKED: Cell<u32> = const { Cell::new(0) };
    /// Error of a DMA buffer for a device without DMA.
    static BUFFER: Cell<Option<Error>> = const { Cell::new(None) };
}

/// Returns the number of regions that were revoked since the last call.
pub fn take_revoked() -> u32 {
    REVOKED.take()
}

/// Returns whether devices may be named by a pattern.
pub fn may_name(pattern: &'static CStr) -> bool {
    Home::new(pattern).is_ok()
}

/// Returns the error of a DMA buffer for a device without DMA.
pub fn take_buffer_error() -> Option<Error> {
    BUFFER.take()
}

/// A device that is registered repeatedly.
pub struct Repeated {
    device: faux::Registration,
    home: Arc<Home>,
}

impl Repeated {
    /// Creates a device that was never registered.
    ///
    /// # Errors
    ///
    /// - [`ENOMEM`] if there is no memory.
    pub fn new() -> Result<Self> {
        Ok(Self {
            device: faux::Registration::new(c"repeated", None)?,
            home: Home::new(c"repeated%d")?,
        })
    }

    /// Calls `f` while the device is registered.
    ///
    /// # Errors
    ///
    /// Those of the registration.
    pub fn during<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        let info = NodeInfo {
            node_guid: 1,
            num_comp_vectors: 1,
            has_port_counters: false,
        };
        let parent = Attachment::of_faux(&self.device)?;
        let home = self.home.clone();
        let registration = rdma::Registration::<Careless>::new(parent, home, info, Ok(()))?;
        let result = f();
        drop(registration);
        Ok(result)
    }
}

#[pin_data]
struct Misuse {
    #[pin]
    _driver: driver::Registration<sys::pci_driver::Adapter<late::Late>>,
    _device: faux::Registration,
}

impl Misuse {
    /// Registers an RDMA device, and leaks the registration.
    fn register() -> Result<faux::Registration> {
        let device = faux::Registration::new(c"misuse", None)?;
        let info = NodeInfo {
            node_guid: 1,
            num_comp_vectors: 0,
            has_port_counters: false,
        };
        let parent = Attachment::of_faux(&device)?;
        BUFFER.set(UserBuffer::zeroed(parent.dev(), 1).err());
        let home = Home::new(c"misuse%d")?;
        let registration = rdma::Registration::<Careless>::new(parent, home, info, Ok(()))?;
        core::mem::forget(registration);
        Ok(device)
    }
}

impl InPlaceModule for Misuse {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _device: Self::register()?,
            _driver <- driver::Registration::new(c"misuse", module),
        })
    }
}

/// Size of the largest packet in bytes.
const MTU: u32 = 4096;

/// The provider.
struct Careless;

#[vtable]
impl rdma::Provider for Careless {
    const DRIVER_ID: DriverId = DriverId::UNKNOWN;
    const UVERBS_ABI_VERSION: u32 = 1;

    type Data<'a> = ();
    type Ucontext<'a> = Object;
    type Pd<'a> = Object;
    type Ah<'a> = Absent;
    type Cq<'a> = Object;
    type Qp<'a> = hasty::Pair;
    type CompCntr<'a> = Absent;
    type Mr<'a> = Object;

    fn firmware_version<'a>(_device: &Device<()>) -> Result<CString> {
        CString::try_from_fmt(fmt!("none"))
    }

    fn query_device<'a>(_device: &Device<()>, _udata: &Udata<'_>) -> Result<DeviceAttr> {
        Ok(DeviceAttr::default())
    }

    fn query_port<'a>(_device: &Device<()>, _port: u32) -> Result<PortAttr> {
        Ok(PortAttr {
            state: PortState::Active,
            phys_state: PortPhysState::LinkUp,
            max_mtu: MTU,
            active_mtu: MTU,
            max_msg_sz: MTU,
            gid_tbl_len: 1,
            pkey_tbl_len: 0,
            lmc: 0,
            max_vl_num: 1,
            active_width: PortWidth::X1,
            active_speed: PortSpeed::Sdr,
        })
    }

    fn query_gid<'a>(_device: &Device<()>, _port: u32, _index: u32) -> Result<Gid> {
        Ok([0; 16])
    }
}

/// An object of any kind.
struct Object;

#[vtable]
impl<'a> rdma::Ucontext<'a, Careless> for Object {
    fn alloc(_device: &Device<()>, _udata: &Udata<'_>) -> impl PinInit<Self, Error> {
        Ok(Self)
    }
}

#[vtable]
impl<'a> rdma::ProtectionDomain<'a, Careless> for Object {
    fn alloc(_device: &Device<()>, _udata: &Udata<'_>) -> impl PinInit<Self, Error> {
        Ok(Self)
    }
}

#[vtable]
impl<'a> rdma::MemoryRegion<'a, Careless> for Object {
    type Shared = ();

    fn register_dma(_device: &Device<()>, _pd: &Self, _access: Access) -> Result<NewMr<Self, ()>> {
        Ok(NEW)
    }

    fn register_user(
        _device: &Device<()>,
        _pd: &Self,
        attr: &MrInitAttr<'a>,
        _udata: &Udata<'_>,
    ) -> Result<NewMr<Self, ()>> {
        let memory = attr.pin(|| Region)?;
        core::mem::forget(memory);
        Ok(NEW)
    }
}

/// A new region.
const NEW: NewMr<Object, ()> = NewMr {
    region: Object,
    keys: MrKeys { lkey: 0, rkey: 0 },
    shared: (),
};

/// The part of a region that belongs to the device.
struct Region;

impl Hold for Region {
    fn revoke(&mut self) {
        REVOKED.set(REVOKED.get() + 1);
    }
}
