// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A provider of an RDMA device without hardware: the minimum that a driver implements on top of
//! `rdma/`.
//!
//! It answers queries, lets programs open the device, and allocates numbered protection domains. As
//! the device is on no bus, its parent is a faux device, whose resources keep it registered.

#![deny(unsafe_code)]
#![deny(clippy::multiple_unsafe_ops_per_block)]

#[allow(dead_code, unsafe_code, reason = "as ../../efa_rs")]
mod ffi;
#[allow(dead_code, unsafe_code, unused_imports, reason = "as ../../efa_rs")]
mod rdma;
#[allow(dead_code, unsafe_code, reason = "as ../../efa_rs")]
mod sys;

use kernel::{
    faux,
    prelude::*,
    str::CString,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

use crate::{
    rdma::{
        Absent,
        Device,
        DeviceAttr,
        DriverId,
        Gid,
        NodeInfo,
        PortAttr,
        PortPhysState,
        PortSpeed,
        PortState,
        PortWidth,
        Udata, //
    },
    sys::attach::Attachment,
};

module! {
    type: NullRdma,
    name: "null_rdma",
    authors: ["The efa-rs authors"],
    description: "RDMA device without hardware",
    license: "Dual BSD/GPL",
}

/// Maximum number of protection domains.
const MAX_PD: u32 = 4;

/// GUID of the node, in network byte order.
const NODE_GUID: u64 = 0x0200_0000_0000_0001_u64.to_be();

/// Largest payload of a packet in bytes.
const MTU: u32 = 4096;

/// The module: the faux device, whose removal unregisters the RDMA device.
struct NullRdma {
    _device: faux::Registration,
}

impl kernel::Module for NullRdma {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let device = faux::Registration::new(c"null_rdma", None)?;
        let info = NodeInfo {
            node_guid: NODE_GUID,
            num_comp_vectors: 1,
            has_port_counters: false,
        };
        let parent = Attachment::of_faux(&device)?;
        let numbers = Numbers(Atomic::new(0));
        let name = c"null%d";
        #[cfg(not(in_tree))]
        let name = rdma::Home::new(name)?;
        rdma::Registration::<Null>::new(parent, name, info, Ok(numbers))?.leave();
        Ok(Self { _device: device })
    }
}

/// Bit mask of the protection domain numbers in use.
struct Numbers(Atomic<u32>);

impl Numbers {
    /// Allocates the lowest free number.
    fn take(&self) -> Option<u32> {
        let mut used = self.0.load(Relaxed);
        loop {
            let number = used.trailing_ones();
            if number >= MAX_PD {
                return None;
            }
            match self.0.cmpxchg(used, used | 1 << number, Relaxed) {
                Ok(_) => return Some(number),
                Err(now) => used = now,
            }
        }
    }

    /// Frees a number.
    fn free(&self, number: u32) {
        let mut used = self.0.load(Relaxed);
        while let Err(now) = self.0.cmpxchg(used, used & !(1 << number), Relaxed) {
            used = now;
        }
    }
}

/// The provider.
struct Null;

#[vtable]
impl rdma::Provider for Null {
    const DRIVER_ID: DriverId = DriverId::UNKNOWN;
    const UVERBS_ABI_VERSION: u32 = 1;
    const ROBUST_UDATA: bool = true;

    type Data<'a> = Numbers;
    type Ucontext<'a> = Ucontext;
    type Pd<'a> = Pd;
    type Ah<'a> = Absent;
    type Cq<'a> = Absent;
    type Qp<'a> = Absent;
    type CompCntr<'a> = Absent;
    type Mr<'a> = Absent;

    fn firmware_version<'a>(_device: &Device<Numbers>) -> Result<CString> {
        CString::try_from_fmt(fmt!("none"))
    }

    fn query_device<'a>(_device: &Device<Numbers>, udata: &Udata<'_>) -> Result<DeviceAttr> {
        udata.expect_no_io()?;
        Ok(DeviceAttr {
            max_pd: MAX_PD,
            ..DeviceAttr::default()
        })
    }

    fn query_port<'a>(_device: &Device<Numbers>, _port: u32) -> Result<PortAttr> {
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

    fn query_gid<'a>(_device: &Device<Numbers>, _port: u32, index: u32) -> Result<Gid> {
        if index != 0 {
            return Err(EINVAL);
        }
        Ok((0xfe80_u128 << 112 | 1).to_be_bytes())
    }
}

/// A context, which has no state.
struct Ucontext;

#[vtable]
impl<'a> rdma::Ucontext<'a, Null> for Ucontext {
    fn alloc(_device: &Device<Numbers>, udata: &Udata<'_>) -> impl PinInit<Self, Error> {
        udata.expect_no_io()?;
        Ok(Self)
    }
}

/// A protection domain: its number.
struct Pd(u32);

#[vtable]
impl<'a> rdma::ProtectionDomain<'a, Null> for Pd {
    fn alloc(device: &Device<Numbers>, udata: &Udata<'_>) -> impl PinInit<Self, Error> {
        udata.expect_no_input()?;
        let number = device.data().take().ok_or(ENOMEM)?;
        let response = udata.respond(&number.to_ne_bytes());
        response.inspect_err(|_| device.data().free(number))?;
        Ok(Self(number))
    }

    fn dealloc(&self, device: &Device<Numbers>) {
        device.data().free(self.0);
    }
}
