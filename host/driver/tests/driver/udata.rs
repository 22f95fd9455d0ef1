// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Driver-specific input and output of verbs, in all lengths.

use driver::{
    program::{own_gid, qp_attr, Program, UP},
    rig::name_of,
};
use ib_core::{
    ffi as ib, registry,
    umem::Memory,
    uverbs::{zeroed, Process, QpAttr},
};
use kernel::error::Result;

use crate::run_bound;

/// Verbs with input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    AllocUcontext,
    QueryDevice,
    AllocPd,
    CreateAh,
    CreateCq,
    CreateQp,
    ModifyQp,
    RegMr,
}
use Verb::*;

/// Verbs, and sizes in bytes: the minimum input, the whole input, and the output.
const VERBS: [(Verb, usize, usize, usize); 8] = [
    (AllocUcontext, 1, 8, 24),
    (QueryDevice, 0, 0, 24),
    (AllocPd, 0, 0, 8),
    (CreateAh, 0, 0, 8),
    (CreateCq, 10, 16, 40),
    (CreateQp, 16, 24, 64),
    (ModifyQp, 0, 0, 0),
    (RegMr, 0, 0, 0),
];

/// Number of bytes by which inputs and outputs exceed these sizes at most.
const MORE: usize = 9;

/// Flag of a completion queue whose entries have the sender's GID.
const WITH_SGID: u8 = 2;

/// Value of output bytes that a verb has not written.
const UNTOUCHED: u8 = 0xa5;

/// Returns an input with which the verb succeeds.
fn input(verb: Verb) -> Vec<u8> {
    let words: &[u32] = match verb {
        // Capabilities of the library.
        AllocUcontext => &[3, 0],
        // After a mask: bytes of an entry, and number of sub-queues.
        CreateCq => &[0, 32, 1, 0],
        // After a mask: bytes of the receive ring and of the send ring.
        CreateQp => &[0, 256, 2048, 0, 0, 0],
        _ => &[],
    };
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Calls a verb in a new program.
fn call(verb: Verb, input: &[u8], output: &mut [u8]) -> Result {
    if verb == AllocUcontext {
        return Process::open()?.alloc_context(input, output);
    }
    let program = Program::new()?;
    let process = &program.process;
    let qp = |input: &[u8], output: &mut [u8]| {
        let cq = program.create_cq(16, false, None)?.id;
        let mut cap: ib::ib_qp_cap = zeroed();
        (cap.max_send_wr, cap.max_recv_wr) = (32, 16);
        (cap.max_send_sge, cap.max_recv_sge) = (1, 1);
        let wanted = QpAttr {
            pd: program.alloc_pd()?,
            send_cq: cq,
            recv_cq: cq,
            kind: ib::ib_qp_type_IB_QPT_DRIVER,
            cap,
        };
        process.create_qp(wanted, input, output)
    };
    match verb {
        AllocUcontext => Ok(()),
        QueryDevice => process.query_device(input, output),
        AllocPd => process.alloc_pd(input, output).map(drop),
        CreateAh => {
            let pd = program.alloc_pd()?;
            process.create_ah(pd, &own_gid()?, input, output).map(drop)
        }
        CreateCq => process.create_cq(16, None, input, output).map(drop),
        CreateQp => qp(input, output).map(drop),
        ModifyQp => {
            let (id, _) = qp(&self::input(CreateQp), &mut [])?;
            let (mut attr, mask) = qp_attr(UP[0]);
            process.modify_qp(id, &mut attr, mask, input, output)
        }
        RegMr => {
            let memory = Memory::new(4096);
            let place = (memory.address(), 4096);
            let pd = program.alloc_pd()?;
            let access = ib::ib_access_flags_IB_ACCESS_LOCAL_WRITE;
            process.register(pd, place, access, input, output).map(drop)
        }
    }
}

/// Calls a verb on a new machine, with the same numbers each time. Returns result and output.
fn call_anew(verb: Verb, input: &[u8], room: usize) -> (String, Vec<u8>) {
    run_bound(|rig| {
        let mut output = vec![UNTOUCHED; room + 1];
        let result = call(verb, input, &mut output[..room]);
        rig.check_device();
        assert_eq!(output.pop(), Some(UNTOUCHED), "{verb:?}: behind the room");
        (name_of(result), output)
    })
}

/// A longer input must have zeroes at its end, and a shorter one is extended by zeroes.
#[test]
fn is_input_of_any_length() {
    for (verb, least, known, room) in VERBS {
        let whole = input(verb);
        assert_eq!(whole.len(), known, "{verb:?}");
        for length in 0..=known + MORE {
            let mut input = whole.clone();
            input.resize(length, 0);
            let (result, _) = call_anew(verb, &input, room);
            let wanted = match verb {
                _ if length >= least => "ok",
                // The device has limits that the library must support.
                AllocUcontext => "EOPNOTSUPP",
                _ => "EINVAL",
            };
            assert_eq!(result, wanted, "{verb:?}: {length} bytes");
            for place in known..length {
                input[place] = 0x80;
                let (result, output) = call_anew(verb, &input, room);
                assert_eq!(result, "EOPNOTSUPP", "{verb:?}: byte {place} of {length}");
                let is_untouched = output.iter().all(|byte| *byte == UNTOUCHED);
                assert!(is_untouched, "{verb:?}: byte {place} of {length}");
                input[place] = 0;
            }
        }
    }
}

/// A value that is not supported is refused, in whatever field it is.
#[test]
fn is_refused_by_field() {
    for (verb, changes, wanted) in [
        // The mask, the bytes of an entry, the number of sub-queues, and what is reserved.
        (CreateCq, [(0, 1)].as_slice(), "EOPNOTSUPP"),
        (CreateCq, &[(4, 16)], "ok"),
        (CreateCq, &[(4, 16), (10, WITH_SGID)], "EINVAL"),
        (CreateCq, &[(10, WITH_SGID)], "ok"),
        (CreateCq, &[(4, 64)], "EINVAL"),
        (CreateCq, &[(8, 2)], "EINVAL"),
        (CreateCq, &[(11, 1)], "EINVAL"),
        (CreateCq, &[(15, 1)], "EINVAL"),
        // The mask, the transport, flags of which the device has one, and what is reserved.
        (CreateQp, &[(0, 1)], "EOPNOTSUPP"),
        (CreateQp, &[(12, 1)], "EOPNOTSUPP"),
        (CreateQp, &[(16, 1)], "ok"),
        (CreateQp, &[(16, 2)], "EOPNOTSUPP"),
        (CreateQp, &[(16, 4)], "EOPNOTSUPP"),
        (CreateQp, &[(17, 1)], "EOPNOTSUPP"),
        (CreateQp, &[(19, 1)], "EINVAL"),
        (CreateQp, &[(23, 1)], "EINVAL"),
    ] {
        let mut input = input(verb);
        for (place, value) in changes {
            input[*place] = *value;
        }
        let room = if verb == CreateCq { 40 } else { 64 };
        let (result, _) = call_anew(verb, &input, room);
        assert_eq!(result, wanted, "{verb:?} {changes:?}");
    }
}

/// A shorter output is truncated. A longer one has zeroes at its end.
#[test]
fn is_output_of_any_length() {
    for (verb, _, _, known) in VERBS {
        let input = input(verb);
        let (_, mut whole) = call_anew(verb, &input, known);
        whole.resize(known + MORE, 0);
        for length in 0..=known + MORE {
            let (result, output) = call_anew(verb, &input, length);
            assert_eq!(result, "ok", "{verb:?}: {length} bytes");
            assert_eq!(output, whole[..length], "{verb:?}: {length} bytes");
        }
    }
}

#[test]
fn is_robust_for_the_core() {
    run_bound(|_| {
        let device = registry::registered().unwrap();
        // SAFETY: The device stays registered until its removal.
        assert_eq!(unsafe { (*device).ops.uverbs_robust_udata() }, 1);
    });
}
