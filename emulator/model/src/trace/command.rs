// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Arguments and results of admin commands.

use std::{
    fmt::{self, Display, Formatter},
    net::Ipv6Addr,
};

use efa_hw::{
    admin::{
        AcqEntry, AqRequest, Command, Opcode, ah, cq, eq,
        event_counter::{self, AttachType, ModifyOp},
        mr, pd, qp, uar,
    },
    features::{
        AenqConfig, DeviceAttr, EventQueueAttr, Feature, FeatureId, GetFeature, GetFeatureResponse,
        HwHints, NetworkAttr, QueueAttr1, QueueAttr2, SetFeature,
    },
    stats::{GetStats, StatsScope, StatsType},
};

use super::flag::flag;

/// The name of a numbered value, or the number if it has no name.
struct Code<T, N>(Result<T, N>, u32);

impl<T: Display, N> Display for Code<T, N> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(name) => name.fmt(f),
            Err(_) => self.1.fmt(f),
        }
    }
}

fn qp_state(state: u32) -> impl Display {
    Code(qp::QpState::try_from(state), state)
}

fn feature(id: u8) -> impl Display {
    Code(FeatureId::try_from(id), id.into())
}

/// Writes the arguments of a command.
pub(super) fn arguments(f: &mut Formatter<'_>, opcode: Opcode, request: &AqRequest) -> fmt::Result {
    match opcode {
        Opcode::CreateQp => {
            let command = qp::CreateQp::from_request(request);
            let kind = Code(
                qp::QpType::try_from(command.qp_type),
                command.qp_type.into(),
            );
            write!(
                f,
                "{kind}, pd={}, uar={}, send_cq={}, recv_cq={}, sq={}/{}B, rq={}/{}B, \
                 rq_ba={:#x}, sl={}{}{}{}{}",
                command.pd,
                command.uar,
                command.send_cq_idx,
                command.recv_cq_idx,
                command.send_queue_depth,
                command.send_queue_ring_size,
                command.recv_queue_depth,
                command.recv_queue_ring_size,
                command.rq_base_addr,
                command.sl,
                flag(", sq_virt", command.flags.sq_virt),
                flag(", rq_virt", command.flags.rq_virt),
                flag(
                    ", unsolicited_write_recv",
                    command.flags.unsolicited_write_recv
                ),
                flag(", req_id=64", command.flags.sq_64_bit_req_id),
            )
        }
        Opcode::ModifyQp => {
            let command = qp::ModifyQp::from_request(request);
            let mask = command.modify_mask;
            write!(f, "qp={}", command.qp_handle)?;
            if mask.cur_qp_state {
                write!(f, ", from={}", qp_state(command.cur_qp_state))?;
            }
            if mask.qp_state {
                write!(f, ", to={}", qp_state(command.qp_state))?;
            }
            if mask.qkey {
                write!(f, ", qkey={:#x}", command.qkey)?;
            }
            if mask.sq_psn {
                write!(f, ", sq_psn={:#x}", command.sq_psn)?;
            }
            if mask.sq_drained_async_notify {
                write!(f, ", notify={}", command.sq_drained_async_notify)?;
            }
            if mask.rnr_retry {
                write!(f, ", rnr_retry={}", command.rnr_retry)?;
            }
            Ok(())
        }
        Opcode::QueryQp => write!(f, "qp={}", qp::QueryQp::from_request(request).qp_handle),
        Opcode::DestroyQp => write!(f, "qp={}", qp::DestroyQp::from_request(request).qp_handle),
        Opcode::CreateAh => {
            let command = ah::CreateAh::from_request(request);
            let peer = Ipv6Addr::from(command.dest_addr);
            write!(f, "pd={}, dest={peer}", command.pd)
        }
        Opcode::DestroyAh => {
            let command = ah::DestroyAh::from_request(request);
            write!(f, "pd={}, ah={}", command.pd, command.ah)
        }
        Opcode::RegMr => {
            let command = mr::RegMr::from_request(request);
            write!(
                f,
                "pd={}, iova={:#x}, length={}, page_shift={}, page_num={}",
                command.pd,
                command.iova,
                command.mr_length,
                command.flags.phys_page_size_shift,
                command.page_num,
            )?;
            match command.page_list() {
                Some(mr::PageList::Inline(pages)) => write!(f, ", pages={pages:x?}")?,
                Some(mr::PageList::Direct(buffer)) => {
                    write!(f, ", direct={:#x}/{}B", buffer.address, buffer.length)?;
                }
                Some(mr::PageList::Indirect(chunk)) => {
                    write!(f, ", indirect={:#x}/{}B", chunk.address, chunk.length)?;
                }
                None => f.write_str(", indirect without control buffer")?,
            }
            write!(
                f,
                "{}{}{}{}{}",
                flag(", physical", command.flags.mem_addr_phy_mode_en),
                flag(", local_write", command.permissions.local_write_enable),
                flag(", remote_write", command.permissions.remote_write_enable),
                flag(", remote_read", command.permissions.remote_read_enable),
                flag(", relaxed_ordering", command.permissions.relaxed_ordering),
            )
        }
        Opcode::DeregMr => write!(f, "lkey={:#x}", mr::DeregMr::from_request(request).l_key),
        Opcode::CreateCq => {
            let command = cq::CreateCq::from_request(request);
            write!(
                f,
                "uar={}, depth={}, entry={}B, sub_cqs={}, ba={:#x}",
                command.uar,
                command.sub_cq_depth,
                u32::from(command.caps_2.cq_entry_size_words) * 4,
                command.num_sub_cqs,
                command.base_address,
            )?;
            if command.caps_1.interrupt_mode_enabled {
                write!(f, ", eq={}", command.eqn)?;
            }
            write!(
                f,
                "{}{}{}",
                flag(", src_addr", command.caps_2.set_src_addr),
                flag(", req_id=64", command.caps_2.sq_comp_64_bit_req_id),
                flag(", virt", command.caps_1.virt),
            )
        }
        Opcode::DestroyCq => write!(f, "cq={}", cq::DestroyCq::from_request(request).cq_idx),
        Opcode::GetFeature => write!(
            f,
            "{}",
            feature(GetFeature::from_request(request).feature_id)
        ),
        Opcode::SetFeature => {
            let command = SetFeature::from_request(request);
            write!(f, "{}", feature(command.feature_id))?;
            if command.control.ctrl_data {
                let buffer = command.control_buffer;
                write!(f, ", buffer={:#x}/{}B", buffer.address, buffer.length)?;
            }
            if command.feature_id == u8::from(FeatureId::AenqConfig) {
                let config = AenqConfig::from_setting(&command.data);
                write!(f, ", enabled={:#x}", config.enabled_groups)?;
            }
            Ok(())
        }
        Opcode::GetStats => {
            let command = GetStats::from_request(request);
            let (kind, scope) = (command.stats_type, command.scope);
            let kind = Code(StatsType::try_from(kind), kind.into());
            write!(f, "{kind}")?;
            if scope != u8::from(StatsScope::All) {
                let scope = Code(StatsScope::try_from(scope), scope.into());
                write!(f, ", scope={scope}/{}", command.scope_modifier)?;
            }
            Ok(())
        }
        Opcode::AllocPd | Opcode::AllocUar | Opcode::Service => Ok(()),
        Opcode::DeallocPd => write!(f, "pd={}", pd::DeallocPd::from_request(request).pd),
        Opcode::DeallocUar => write!(f, "uar={}", uar::DeallocUar::from_request(request).uar),
        Opcode::CreateEq => {
            let command = eq::CreateEq::from_request(request);
            write!(
                f,
                "depth={}, entry={}B, vector={}, ba={:#x}{}",
                command.depth,
                u32::from(command.caps.entry_size_words) * 4,
                command.msix_vector,
                command.base_address,
                flag(", completions", command.events.completion),
            )
        }
        Opcode::DestroyEq => write!(f, "eq={}", eq::DestroyEq::from_request(request).eqn),
        Opcode::AllocMr => {
            let command = mr::AllocMr::from_request(request);
            write!(f, "pd={}, max_pages={}", command.pd, command.max_pages)
        }
        Opcode::CreateEventCounter => {
            let command = event_counter::CreateEventCounter::from_request(request);
            write!(f, "uar={}, pa={:#x}", command.uar, command.paddr)
        }
        Opcode::DestroyEventCounter => {
            let command = event_counter::DestroyEventCounter::from_request(request);
            write!(f, "counter={}", command.cntr_handle)
        }
        // The layouts are the same.
        Opcode::AttachEventCounter | Opcode::DetachEventCounter => {
            let command = event_counter::AttachEventCounter::from_request(request);
            let (counter, qp) = (command.cntr_handle, command.qp_handle);
            let events = command.events.into_raw();
            write!(f, "counter={counter}, qp={qp}, events={events:#x}")?;
            if command.attach_type != u8::from(AttachType::QpEvents) {
                write!(f, ", type={}", command.attach_type)?;
            }
            Ok(())
        }
        Opcode::ModifyEventCounter => {
            let command = event_counter::ModifyEventCounter::from_request(request);
            let (counter, value) = (command.cntr_handle, command.value);
            let operation = command.operation;
            let operation = Code(ModifyOp::try_from(operation), operation.into());
            write!(f, "counter={counter}, {operation}, value={value}")
        }
    }
}

/// Writes the results of a successful command, if any, after a space.
pub(super) fn results(
    f: &mut Formatter<'_>,
    opcode: Opcode,
    request: &AqRequest,
    entry: &AcqEntry,
) -> fmt::Result {
    match opcode {
        Opcode::CreateQp => {
            let result = qp::CreateQpResponse::decode(entry);
            write!(
                f,
                " qp={}, qpn={}, sq_db={:#x}, rq_db={:#x}, llq={:#x}",
                result.qp_handle,
                result.qp_num,
                result.sq_db_offset,
                result.rq_db_offset,
                result.llq_descriptors_offset,
            )
        }
        Opcode::QueryQp => {
            let result = qp::QueryQpResponse::decode(entry);
            write!(
                f,
                " {}, qkey={:#x}, sq_psn={:#x}, rnr_retry={}",
                qp_state(result.qp_state),
                result.qkey,
                result.sq_psn,
                result.rnr_retry,
            )
        }
        Opcode::CreateAh => write!(f, " ah={}", ah::CreateAhResponse::decode(entry).ah),
        Opcode::RegMr => {
            let result = mr::RegMrResponse::decode(entry);
            write!(f, " lkey={:#x}, rkey={:#x}", result.l_key, result.r_key)
        }
        Opcode::AllocMr => {
            let result = mr::AllocMrResponse::decode(entry);
            write!(f, " lkey={:#x}, rkey={:#x}", result.l_key, result.r_key)
        }
        Opcode::CreateCq => {
            let result = cq::CreateCqResponse::decode(entry);
            write!(
                f,
                " cq={}, depth={}",
                result.cq_idx, result.sub_cq_actual_depth
            )?;
            if result.flags.db_valid {
                write!(f, ", db={:#x}", result.db_offset)?;
            }
            Ok(())
        }
        Opcode::AllocPd => write!(f, " pd={}", pd::AllocPdResponse::decode(entry).pd),
        Opcode::AllocUar => write!(f, " uar={}", uar::AllocUarResponse::decode(entry).uar),
        Opcode::CreateEq => write!(f, " eq={}", eq::CreateEqResponse::decode(entry).eqn),
        Opcode::CreateEventCounter => {
            let result = event_counter::CreateEventCounterResponse::decode(entry);
            write!(f, " counter={}", result.cntr_handle)
        }
        Opcode::GetFeature => attributes(
            f,
            GetFeature::from_request(request).feature_id,
            &GetFeatureResponse::decode(entry),
        ),
        Opcode::ModifyQp
        | Opcode::DestroyQp
        | Opcode::DestroyAh
        | Opcode::DeregMr
        | Opcode::DestroyCq
        | Opcode::SetFeature
        | Opcode::GetStats
        | Opcode::DeallocPd
        | Opcode::DeallocUar
        | Opcode::DestroyEq
        | Opcode::Service
        | Opcode::DestroyEventCounter
        | Opcode::AttachEventCounter
        | Opcode::ModifyEventCounter
        | Opcode::DetachEventCounter => Ok(()),
    }
}

/// Writes the attributes that a driver read.
fn attributes(f: &mut Formatter<'_>, id: u8, response: &GetFeatureResponse) -> fmt::Result {
    match FeatureId::try_from(id) {
        Ok(FeatureId::DeviceAttr) => {
            let device = DeviceAttr::from_response(response);
            write!(
                f,
                " features={:#x}, caps={:#x}, guid={:#x}, db_bar={}, link={}Gbps",
                device.supported_features,
                device.device_caps.into_raw(),
                device.guid.swap_bytes(),
                device.db_bar,
                device.max_link_speed_gbps,
            )
        }
        Ok(FeatureId::AenqConfig) => {
            let config = AenqConfig::from_response(response);
            write!(
                f,
                " supported={:#x}, enabled={:#x}",
                config.supported_groups, config.enabled_groups
            )
        }
        Ok(FeatureId::NetworkAttr) => {
            let network = NetworkAttr::from_response(response);
            let address = Ipv6Addr::from(network.addr);
            write!(f, " address={address}, mtu={}", network.mtu)
        }
        Ok(FeatureId::QueueAttr1) => {
            let queues = QueueAttr1::from_response(response);
            write!(
                f,
                " qp={}, cq={}, mr={}, pd={}, ah={}, sq={}, rq={}, cqe={}",
                queues.max_qp,
                queues.max_cq,
                queues.max_mr,
                queues.max_pd,
                queues.max_ah,
                queues.max_sq_depth,
                queues.max_rq_depth,
                queues.max_cq_depth,
            )
        }
        Ok(FeatureId::QueueAttr2) => {
            let queues = QueueAttr2::from_response(response);
            write!(f, " inline={}B", queues.inline_buf_size_ex)?;
            let counters = queues.max_event_counters;
            let most = queues.event_counter_max_val;
            let events = queues.supported_event_counter_qp_events.into_raw();
            if (counters, most, events) != (0, 0, 0) {
                write!(
                    f,
                    ", counters={counters}, max_val={most:#x}, events={events:#x}"
                )?;
            }
            Ok(())
        }
        Ok(FeatureId::EventQueueAttr) => {
            let queues = EventQueueAttr::from_response(response);
            write!(f, " eq={}, eqe={}", queues.max_eq, queues.max_eq_depth)
        }
        Ok(FeatureId::HwHints) => {
            let hints = HwHints::from_response(response);
            write!(
                f,
                " mmio={}ms, watchdog={}ms, admin={}ms, poll={}ms",
                hints.mmio_read_timeout,
                hints.driver_watchdog_timeout,
                hints.admin_completion_timeout,
                hints.poll_interval,
            )
        }
        Ok(FeatureId::HostInfo) | Err(_) => Ok(()),
    }
}
