// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A provider without hardware: a second driver on the same kernel crate and RDMA core.

use ib_core::{registry, uverbs::Process};
use kernel::{
    error::code::*,
    sim::{self, Policy},
};

const EOPNOTSUPP: i32 = -95;

#[test]
fn programs_have_its_protection_domains() {
    sim::run(Policy::Sequential, || {
        registry::start();
        let module = null_rdma::load().unwrap();
        assert_eq!(registry::name(registry::registered().unwrap()), "null0");
        let process = Process::open().unwrap();
        let mut nothing = [1; 3];
        let error = process.alloc_context(&[0, 1], &mut nothing).unwrap_err();
        assert_eq!((error.to_errno(), nothing), (EOPNOTSUPP, [1; 3]));
        process.alloc_context(&[0, 0], &mut nothing).unwrap();
        assert_eq!(nothing, [0; 3]);
        let mut number = [0; 4];
        let domains: Vec<_> = (0..4)
            .map(|_| process.alloc_pd(&[], &mut number).unwrap())
            .collect();
        assert_eq!(u32::from_ne_bytes(number), 3);
        assert_eq!(process.alloc_pd(&[], &mut number), Err(ENOMEM));
        process.destroy(domains[1]).unwrap();
        process.alloc_pd(&[], &mut number).unwrap();
        assert_eq!(u32::from_ne_bytes(number), 1);

        // The module is unloaded while the program has the device open.
        drop(module);
        assert_eq!(process.alloc_pd(&[], &mut number), Err(EIO));
        drop(process);
        assert_eq!(kernel::take_warnings(), [""; 0]);
        assert_eq!(sim::live(), 0);
    });
}

#[test]
fn each_allocation_fails_once() {
    let mut number = 0;
    loop {
        let failed = sim::run(Policy::Sequential, || {
            registry::start();
            sim::fail_allocation(Some(number));
            let loaded = null_rdma::load();
            let failed = sim::take_failed();
            sim::fail_allocation(None);
            assert!(failed || loaded.is_ok());
            drop(loaded);
            failed
        });
        assert_eq!(kernel::take_warnings(), [""; 0], "allocation {number}");
        assert_eq!(sim::live(), 0, "allocation {number}");
        if !failed {
            break;
        }
        number += 1;
    }
    assert!(number > 3);
}
