// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* A queue pair with a completion queue, memory and a peer. */

#include <linux/completion.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>

#include "client.h"

int area_open(struct area *area, struct ib_device *dev, size_t size)
{
	area->size = size;
	area->data = dma_alloc_coherent(dev->dma_device, size, &area->dma, GFP_KERNEL);
	return area->data ? 0 : -ENOMEM;
}

void area_close(struct area *area, struct ib_device *dev)
{
	if (area->data)
		dma_free_coherent(dev->dma_device, area->size, area->data, area->dma);
	area->data = NULL;
}

static void on_completion(struct ib_cq *cq, void *event)
{
	complete(event);
}

/* Creates all objects with SIZE bytes of memory. CONTEXT is that in which the core polls, or POLLS_ITSELF with an optional EVENT. */
int end_open(struct end *end, struct ib_device *dev, size_t size, int context, struct completion *event)
{
	struct ib_cq_init_attr cq_attr = { .cqe = 4 * DEPTH };
	struct ib_qp_init_attr attr = {
		.cap = {
			.max_send_wr = DEPTH,
			.max_recv_wr = DEPTH,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = INLINE,
		},
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = EFA_QPT_SRD,
	};
	int err;

	*end = (struct end) { .dev = dev, .is_polled = context != POLLS_ITSELF };
	err = KEEP(end->pd, ib_alloc_pd(dev, 0));
	if (!err && end->is_polled)
		err = KEEP(end->cq, ib_alloc_cq(dev, end, cq_attr.cqe, 0, context));
	else if (!err)
		err = KEEP(end->cq, ib_create_cq(dev, event ? on_completion : NULL, NULL, event, &cq_attr));
	attr.send_cq = end->cq;
	attr.recv_cq = end->cq;
	err = err ?: KEEP(end->qp, ib_create_qp(end->pd, &attr));
	err = err ?: to_rts(end->qp);
	err = err ?: area_open(&end->area, dev, size);
	if (err)
		end_close(end);
	return err;
}

int end_meet(struct end *end, const union ib_gid *gid, u32 qpn)
{
	end->peer_qpn = qpn;
	return KEEP(end->peer, ah_of(end->pd, gid));
}

/* Destroys the queue pair, which uses the memory, before it frees that. */
void end_close(struct end *end)
{
	if (end->peer)
		rdma_destroy_ah(end->peer, RDMA_DESTROY_AH_SLEEPABLE);
	if (end->qp)
		ib_destroy_qp(end->qp);
	if (end->cq && end->is_polled)
		ib_free_cq(end->cq);
	else if (end->cq)
		ib_destroy_cq(end->cq);
	area_close(&end->area, end->dev);
	if (end->pd)
		ib_dealloc_pd(end->pd);
	memset(end, 0, sizeof(*end));
}

/* Posts a receive into the end's own memory. ID is the address of a `struct ib_cqe` if the core polls. */
int end_receive(struct end *end, u64 id, u64 offset, u32 length)
{
	struct ib_sge sge = { .addr = end->area.dma + offset, .length = length, .lkey = end->pd->local_dma_lkey };
	struct ib_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(end->qp, &wr, NULL);
}

/* Posts a work request to the peer. Without a local key, SGE is inline data. EX is immediate data or the key to invalidate. */
int end_post(struct end *end, u64 id, enum ib_wr_opcode opcode, struct ib_sge sge, u64 remote_addr, u32 rkey, u32 ex)
{
	struct ib_srd_rdma_wr wr = {
		.wr = {
			.wr = {
				.wr_id = id,
				.opcode = opcode,
				.send_flags = IB_SEND_SIGNALED | (sge.length && !sge.lkey ? IB_SEND_INLINE : 0),
				.sg_list = &sge,
				.num_sge = !!sge.length,
			},
			.ah = end->peer,
			.remote_qpn = end->peer_qpn,
			.remote_qkey = QKEY,
		},
		.remote_addr = remote_addr,
		.rkey = rkey,
	};

	if (opcode == IB_WR_LOCAL_INV)
		wr.wr.wr.ex.invalidate_rkey = ex;
	else
		wr.wr.wr.ex.imm_data = cpu_to_be32(ex);
	return ib_post_send(end->qp, &wr.wr.wr, NULL);
}

/* As `end_post`, by LENGTH bytes of memory for the device, without remote memory. */
int end_send(struct end *end, u64 id, enum ib_wr_opcode opcode, u64 addr, u32 length)
{
	return end_post(end, id, opcode, (struct ib_sge) { addr, length, end->pd->local_dma_lkey }, 0, 0, 0);
}
