// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attributes that objects may have.

use super::*;

impl Set {
    /// Returns a valid command.
    fn good(&mut self, opcode: Opcode) -> AqRequest {
        let counter = CreateEventCounter { uar: self.uar, paddr: self.ring };
        let handle = |set: &mut Self| {
            let made = set.driver.execute(&counter);
            made.map_or(1, |made| made.cntr_handle)
        };
        match opcode {
            Opcode::CreateEq => create_eq(self.ring).to_request(),
            Opcode::CreateCq => self.create_cq().to_request(),
            Opcode::CreateQp => self.create_qp().to_request(),
            Opcode::AllocMr => AllocMr { pd: self.pd, max_pages: 1 }.to_request(),
            Opcode::RegMr => {
                let mut command = reg_mr(self.pd, PAGE, PAGE);
                command.set_page_list(PageList::Inline([PAGE, 0, 0, 0]));
                command.to_request()
            }
            Opcode::GetStats => GetStats::default().to_request(),
            Opcode::GetFeature => GetFeature::default().to_request(),
            Opcode::SetFeature => SetFeature::default().to_request(),
            Opcode::CreateEventCounter => counter.to_request(),
            Opcode::ModifyEventCounter => {
                ModifyEventCounter { cntr_handle: handle(self), ..Default::default() }.to_request()
            }
            Opcode::DestroyEventCounter => {
                let cntr_handle = handle(self);
                DestroyEventCounter { cntr_handle }.to_request()
            }
            _ => {
                let create = self.create_qp();
                let qp = self.execute(&create).qp_handle;
                let request = attachment(handle(self), qp, 0).to_request();
                let opcode = opcode.into();
                AqRequest { opcode, ..request }
            }
        }
    }
}

/// Commands that a device refuses change nothing, and are no protocol errors.
#[test]
fn refusals() {
    let mut set = Set::new(Profile::Efa0);
    let lines = include_str!("refusals.txt").lines();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("device ") {
            set = Set::new(profile(name));
            continue;
        }
        if let Some(overrides) = line.strip_prefix("set ") {
            set.driver.set(overrides);
            continue;
        }
        let (command, status) = line.rsplit_once(": ").expect(line);
        let (name, changes) = command.split_once(' ').unwrap_or((command, ""));
        let good = set.good(named(Opcode::ALL, name));
        for request in commands(&good, changes) {
            let before = set.driver.counts();
            let (found, _) = set.driver.execute_request(&request);
            let found = Status::try_from(found).unwrap();
            assert_eq!(found.to_string(), status, "{line}: {request:?}");
            assert!(found == Status::Success || set.driver.counts() == before);
            assert_eq!(set.driver.errors(), 0, "{line}");
        }
    }
}

#[test]
fn only_a_completion_queue_with_events_has_a_doorbell() {
    let mut set = Set::new(Profile::Efa2);
    for (command, db_valid) in [(set.create_cq(), false), (set.create_cq_with_events(), true)] {
        let response = set.execute(&command);
        assert_eq!(response.flags.db_valid, db_valid);
        assert_eq!(response.sub_cq_actual_depth, 64);
    }
}

#[test]
fn modification_of_attributes() {
    let mut set = Set::new(Profile::Efa2);
    let create = set.create_qp();
    let qp_handle = set.execute(&create).qp_handle;
    let query = |set: &mut Set| {
        let query = set.execute(&QueryQp { qp_handle });
        let state = QpState::try_from(query.qp_state).unwrap();
        (state, query.qkey, query.sq_psn, query.rnr_retry)
    };
    set.execute(&to_state(qp_handle, QpState::Init));
    set.execute(&to_state(qp_handle, QpState::Rtr));
    let mut command = to_state(qp_handle, QpState::Rts);
    // All except `sq_drained_async_notify`.
    command.modify_mask = ModifyQpMask::from_raw(0b10_1111);
    (command.qkey, command.sq_psn, command.rnr_retry) = (0x1111_2222, 0x00ab_cdef, 5);
    command.cur_qp_state = QpState::Rtr.into();

    // A fault in one attribute leaves the others unchanged.
    let faults: [fn(&mut ModifyQp); 5] = [
        |it| it.cur_qp_state = QpState::Init.into(),
        |it| it.cur_qp_state = 99,
        |it| it.qp_state = 7,
        |it| it.rnr_retry = 8,
        |it| it.sq_psn = 1 << 24,
    ];
    for fault in faults {
        set.refuses(command, fault);
        assert_eq!(query(&mut set), (QpState::Rtr, 0, 0, 7));
    }
    set.execute(&command);
    assert_eq!(query(&mut set), (QpState::Rts, 0x1111_2222, 0x00ab_cdef, 5));
    // A driver also sends commands that modify nothing.
    set.execute(&ModifyQp { qp_handle, ..ModifyQp::default() });
    let mut notify = to_state(qp_handle, QpState::Sqd);
    notify.modify_mask.sq_drained_async_notify = true;
    notify.sq_drained_async_notify = true;
    set.execute(&notify);
    set.refuses(notify, |it| it.qp_state = QpState::Rts.into());
    set.execute(&to_state(qp_handle, QpState::Reset));
    assert_eq!(query(&mut set), (QpState::Reset, 0, 0, 7));

    // Retries are for reliable queue pairs, and not for all devices.
    let mut datagrams = create;
    datagrams.qp_type = QpType::Ud.into();
    let mut retries = ModifyQp::default();
    retries.modify_mask.rnr_retry = true;
    retries.qp_handle = set.execute(&datagrams).qp_handle;
    set.driver.fails(&retries, ILLEGAL);
    retries.qp_handle = qp_handle;
    set.execute(&retries);
    set.driver.set(r#"{"rnr_retry":false}"#);
    set.driver.fails(&retries, Status::UnsupportedOpcode);
}
