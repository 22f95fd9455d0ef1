// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Setup of a queue pair until it can send. bench/client has a link to this file. */

#include "setup.h"

int to_state(struct ib_qp *qp, enum ib_qp_state state)
{
	struct ib_qp_attr attr = { .qp_state = state, .port_num = 1, .qkey = QKEY, .rnr_retry = 7 };
	int mask = IB_QP_STATE;

	if (state == IB_QPS_INIT)
		mask |= IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY;
	if (state == IB_QPS_RTS)
		mask |= IB_QP_SQ_PSN | (qp->qp_type == EFA_QPT_SRD ? IB_QP_RNR_RETRY : 0);
	return ib_modify_qp(qp, &attr, mask);
}

int to_rts(struct ib_qp *qp)
{
	int err = 0, state;

	for (state = IB_QPS_INIT; state <= IB_QPS_RTS && !err; state++)
		err = to_state(qp, state);
	return err;
}

/* Returns a handle of the peer at GID, or an error pointer. */
struct ib_ah *ah_of(struct ib_pd *pd, const union ib_gid *gid)
{
	struct rdma_ah_attr attr = { .type = rdma_ah_find_type(pd->device, 1) };
	union ib_gid dgid = *gid;

	rdma_ah_set_port_num(&attr, 1);
	rdma_ah_set_grh(&attr, &dgid, 0, 0, 1, 0);
	return rdma_create_ah(pd, &attr, RDMA_CREATE_AH_SLEEPABLE);
}
