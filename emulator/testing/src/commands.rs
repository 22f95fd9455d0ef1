// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Valid commands for any device, which tests vary.

use efa_hw::{
    admin::{
        cq::{CqCaps1, CqCaps2, CreateCq},
        eq::{CreateEq, CreateEqCaps},
        event_counter::{AttachEventCounter, DetachEventCounter, QpEvents},
        mr::{RegMr, RegMrFlags},
        qp::{CreateQp, ModifyQp, ModifyQpMask, QpState, QpType},
    },
    features::EqEvents,
    io::{Cdesc, RxDesc},
};

/// A change of a command, of a work request, or of what a test has.
pub type Change<T> = fn(&mut T);

/// Entries of each queue.
pub const DEPTH: u16 = 64;

/// Returns a command that creates an event queue for completions, with vector 1.
pub fn create_eq(base_address: u64) -> CreateEq {
    CreateEq {
        depth: DEPTH,
        msix_vector: 1,
        caps: CreateEqCaps { entry_size_words: 4 },
        base_address,
        events: EqEvents { completion: true },
    }
}

/// Returns a command that creates a completion queue without events.
pub fn create_cq(uar: u16, base_address: u64) -> CreateCq {
    CreateCq {
        caps_1: CqCaps1::default(),
        caps_2: CqCaps2 {
            // CAST: of a small constant.
            cq_entry_size_words: (Cdesc::SIZE / 4) as u8,
            set_src_addr: true,
            ..CqCaps2::default()
        },
        sub_cq_depth: DEPTH,
        eqn: 0,
        base_address,
        l_key: 0,
        num_sub_cqs: 1,
        uar,
    }
}

/// Returns a command that creates an SRD queue pair with send work requests of 64 bytes and one completion queue.
pub fn create_qp(pd: u16, uar: u16, cq_idx: u16, rq_base_addr: u64) -> CreateQp {
    CreateQp {
        pd,
        qp_type: QpType::Srd.into(),
        rq_base_addr,
        send_cq_idx: cq_idx.into(),
        recv_cq_idx: cq_idx.into(),
        send_queue_ring_size: u32::from(DEPTH) * 64,
        send_queue_depth: DEPTH.into(),
        recv_queue_ring_size: u32::from(DEPTH) * RxDesc::SIZE as u32,
        recv_queue_depth: DEPTH.into(),
        uar,
        ..CreateQp::default()
    }
}

/// Returns a command that moves a queue pair to a state.
pub fn to_state(qp_handle: u32, state: QpState) -> ModifyQp {
    ModifyQp {
        modify_mask: ModifyQpMask { qp_state: true, ..ModifyQpMask::default() },
        qp_handle,
        qp_state: state.into(),
        ..ModifyQp::default()
    }
}

/// Returns a command that registers read-only memory in pages of 4 KiB. The caller adds the page list.
pub fn reg_mr(pd: u16, iova: u64, mr_length: u64) -> RegMr {
    RegMr {
        pd,
        mr_length,
        flags: RegMrFlags { phys_page_size_shift: 12, mem_addr_phy_mode_en: false },
        iova,
        ..RegMr::default()
    }
}

/// Returns a command that attaches an event counter to events of a queue pair.
pub fn attachment(cntr_handle: u32, qp_handle: u32, events: u32) -> AttachEventCounter {
    AttachEventCounter { cntr_handle, qp_handle, events: QpEvents::from_raw(events), ..Default::default() }
}

/// Returns a command that detaches an event counter from events of a queue pair.
pub fn detachment(cntr_handle: u32, qp_handle: u32, events: u32) -> DetachEventCounter {
    DetachEventCounter { cntr_handle, qp_handle, events: QpEvents::from_raw(events), ..Default::default() }
}
