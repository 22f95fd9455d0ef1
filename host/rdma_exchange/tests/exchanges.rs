// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The sample on the EFA driver: both modules, and the layer for clients, in one machine.

use driver::rig;
use efa_model::Profile;
use ib_core::{
    ffi::{ib_cq, ib_wc},
    registry::registered,
    uverbs::zeroed,
};
use kernel::{
    debugfs,
    error::{code::*, Result},
    ffi::c_int,
    sim::Policy,
};

const RUN: &str = "rdma_exchange/run";

/// Writes a command, and returns the reply.
fn command(text: &str) -> Result<String> {
    debugfs::write(RUN, text.as_bytes()).expect("the file")?;
    Ok(debugfs::read(RUN).expect("the file"))
}

/// Returns a zeroed completion with each call.
unsafe extern "C" fn repeat(_: *mut ib_cq, _: c_int, wc: *mut ib_wc) -> c_int {
    // SAFETY: The caller has room for one completion.
    unsafe { wc.write(zeroed()) };
    1
}

// One test, as the module has statics that all threads share.
#[test]
fn data_goes_both_ways() {
    rig::run(Profile::Efa3, Policy::Sequential, |rig| {
        let module = rdma_exchange::load().unwrap();
        assert_eq!(command("open 2"), Err(ENODEV));
        rig.probe().unwrap();
        let opened = command("open 2").unwrap();
        let words: Vec<_> = opened.split(' ').collect();
        assert_eq!(words.len(), 3, "{opened}");
        // The device is its own peer: the peer of the first queue pair is the second one.
        command(&format!("meet {} {} {}", words[0], words[2], words[1])).unwrap();
        assert!(command("send 200 1000").unwrap().starts_with("calls 200 "));
        assert!(command("exchange 200 65536")
            .unwrap()
            .starts_with("calls 200 "));
        assert_eq!(command("nonsense"), Err(EINVAL));
        // SAFETY: The device is registered.
        let ops = unsafe { &mut (*registered().unwrap()).ops };
        let poll = ops.poll_cq.replace(repeat);
        assert_eq!(command("send 200 1000"), Err(EIO));
        ops.poll_cq = poll;
        command("close").unwrap();

        // The device is removed while a session is open, and then the module.
        command("open 1").unwrap();
        rig.remove();
        assert_eq!(command("close"), Err(ENODEV));
        rig.probe().unwrap();
        command("open 8").unwrap();
        drop(module);
        assert!(debugfs::read(RUN).is_none());
    });
}
