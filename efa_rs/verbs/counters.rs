// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters of device and port.
//!
//! Monitoring tools look for these names, so they are those of Linux's C driver, and for kernel
//! verbs those of Amazon's. Neither driver has counters of resets.

use kernel::prelude::*;

use super::Efa;
use crate::{
    com::Cause,
    hw::stats::{
        BasicStats,
        MessagesStats,
        NetworkStats,
        RdmaReadStats,
        RdmaWriteStats,
        Stats,
        StatsType, //
    },
    rdma::CounterDesc, //
};

/// Counters of the device, in the order of [`read_device`].
pub(super) const DEVICE: &[CounterDesc] = &[
    CounterDesc::new(c"submitted_cmds"),
    CounterDesc::new(c"completed_cmds"),
    CounterDesc::new(c"cmds_err"),
    CounterDesc::new(c"no_completion_cmds"),
    CounterDesc::new(c"keep_alive_rcvd"),
    CounterDesc::new(c"alloc_pd_err"),
    CounterDesc::new(c"create_qp_err"),
    CounterDesc::new(c"create_cq_err"),
    CounterDesc::new(c"reg_mr_err"),
    CounterDesc::new(c"alloc_ucontext_err"),
    CounterDesc::new(c"create_ah_err"),
    CounterDesc::new(c"mmap_err"),
    CounterDesc::new(c"alloc_mr_err"),
    CounterDesc::new(c"get_dma_mr_err"),
    CounterDesc::new(c"resets"),
    CounterDesc::new(c"resets_fatal_error"),
    CounterDesc::new(c"resets_command_timeout"),
    CounterDesc::new(c"resets_keep_alive"),
    CounterDesc::new(c"resets_register_timeout"),
    CounterDesc::new(c"resets_requested"),
    CounterDesc::new(c"resets_memory_held"),
];

/// Counters of the port, in the order of [`read_port`].
pub(super) const PORT: &[CounterDesc] = &[
    CounterDesc::new(c"tx_bytes"),
    CounterDesc::new(c"tx_pkts"),
    CounterDesc::new(c"rx_bytes"),
    CounterDesc::new(c"rx_pkts"),
    CounterDesc::new(c"rx_drops"),
    CounterDesc::new(c"send_bytes"),
    CounterDesc::new(c"send_wrs"),
    CounterDesc::new(c"recv_bytes"),
    CounterDesc::new(c"recv_wrs"),
    CounterDesc::new(c"rdma_read_wrs"),
    CounterDesc::new(c"rdma_read_bytes"),
    CounterDesc::new(c"rdma_read_wr_err"),
    CounterDesc::new(c"rdma_read_resp_bytes"),
    CounterDesc::new(c"rdma_write_wrs"),
    CounterDesc::new(c"rdma_write_bytes"),
    CounterDesc::new(c"rdma_write_wr_err"),
    CounterDesc::new(c"rdma_write_recv_bytes"),
    CounterDesc::new(c"retrans_bytes"),
    CounterDesc::new(c"retrans_pkts"),
    CounterDesc::new(c"retrans_timeout_events"),
    CounterDesc::new(c"unresponsive_remote_events"),
    CounterDesc::new(c"impaired_remote_conn_events"),
];

/// Reads the counters of the device, which the driver keeps itself.
pub(super) fn read_device(efa: &Efa<'_>, values: &mut [u64]) -> Result {
    let statistics = &efa.session.device().statistics;
    let errors = &efa.errors;

    let values: &mut [u64; DEVICE.len()] = values.first_chunk_mut().ok_or(EINVAL)?;
    *values = [
        statistics.submitted_cmds.get(),
        statistics.completed_cmds.get(),
        statistics.cmds_err.get(),
        statistics.no_completion_cmds.get(),
        statistics.keep_alive_rcvd.get(),
        errors.alloc_pd_err.get(),
        errors.create_qp_err.get(),
        errors.create_cq_err.get(),
        errors.reg_mr_err.get(),
        errors.alloc_ucontext_err.get(),
        errors.create_ah_err.get(),
        errors.mmap_err.get(),
        errors.alloc_mr_err.get(),
        errors.get_dma_mr_err.get(),
        statistics.all_resets(),
        statistics.resets(Cause::FatalError),
        statistics.resets(Cause::CommandTimeout),
        statistics.resets(Cause::KeepAlive),
        statistics.resets(Cause::RegisterTimeout),
        statistics.resets(Cause::Requested),
        statistics.resets(Cause::MemoryHeld),
    ];
    Ok(())
}

/// Returns whether the device has the counters of the port.
///
/// # Errors
///
/// Those of [`read_port`] except `EOPNOTSUPP`, which means that there are none.
pub(super) fn has_port(efa: &Efa<'_>) -> Result<bool> {
    match read_port(efa, &mut [0; PORT.len()]) {
        Ok(()) => Ok(true),
        Err(error) if error == EOPNOTSUPP => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads the counters of the port from the device. Those of RDMA write are zero without RDMA write.
///
/// # Errors
///
/// Those of the admin command.
pub(super) fn read_port(efa: &Efa<'_>, values: &mut [u64]) -> Result {
    let values: &mut [u64; PORT.len()] = values.first_chunk_mut().ok_or(EINVAL)?;
    // Counters that the device lacks stay zero.
    *values = [0; PORT.len()];
    // Stores values from the counter with this index on.
    let mut store = |first: usize, from: &[u64]| {
        let places = values.iter_mut().skip(first);
        places.zip(from).for_each(|(place, value)| *place = *value);
    };

    let sets = if efa.attributes().device.device_caps.rdma_write {
        StatsType::ALL
    } else {
        &[
            StatsType::Basic,
            StatsType::Messages,
            StatsType::RdmaRead,
            StatsType::Network,
        ]
    };
    efa.admin().get_stats(sets, |set, response| match set {
        StatsType::Basic => {
            let it = BasicStats::from_response(response);
            store(0, &[it.tx_bytes, it.tx_pkts]);
            store(2, &[it.rx_bytes, it.rx_pkts, it.rx_drops]);
        }
        StatsType::Messages => {
            let it = MessagesStats::from_response(response);
            store(5, &[it.send_bytes, it.send_wrs, it.recv_bytes, it.recv_wrs]);
        }
        StatsType::RdmaRead => {
            let it = RdmaReadStats::from_response(response);
            store(9, &[it.read_wrs, it.read_bytes]);
            store(11, &[it.read_wr_err, it.read_resp_bytes]);
        }
        StatsType::RdmaWrite => {
            let it = RdmaWriteStats::from_response(response);
            store(13, &[it.write_wrs, it.write_bytes]);
            store(15, &[it.write_wr_err, it.write_recv_bytes]);
        }
        StatsType::Network => {
            let it = NetworkStats::from_response(response);
            store(17, &[it.retrans_bytes, it.retrans_pkts]);
            store(19, &[it.retrans_timeout_events]);
            store(20, &[it.unresponsive_remote_events]);
            store(21, &[it.impaired_remote_conn_events]);
        }
    })?;
    Ok(())
}
