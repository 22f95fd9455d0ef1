// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Tests that move data between the first two devices, which may be the same, and check the received data. */

#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>

#include "client.h"

#define DEPTH 16
#define SIZE 4096

/* One of two endpoints. */
struct end {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_qp *qp;
	struct ib_ah *peer;
	u32 peer_qpn;
	u8 *buffer;
	u64 dma;
	struct completion event;
};

static void on_completion(struct ib_cq *cq, void *context)
{
	struct end *end = context;

	complete(&end->event);
}

/* Creates a queue pair that uses the end's completion queue for all completions. */
static int qp_open(struct end *end, u32 max_inline)
{
	struct ib_qp_init_attr attr = {
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = {
			.max_send_wr = DEPTH,
			.max_recv_wr = DEPTH,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = max_inline,
		},
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = EFA_QPT_SRD,
	};
	struct ib_qp *qp = ib_create_qp(end->pd, &attr);

	end->qp = IS_ERR(qp) ? NULL : qp;
	return PTR_ERR_OR_ZERO(qp);
}

static void end_close(struct end *end)
{
	if (end->peer)
		rdma_destroy_ah(end->peer, RDMA_DESTROY_AH_SLEEPABLE);
	if (end->qp)
		ib_destroy_qp(end->qp);
	if (end->cq)
		ib_destroy_cq(end->cq);
	if (end->dma)
		ib_dma_unmap_single(end->dev, end->dma, SIZE, DMA_BIDIRECTIONAL);
	kfree(end->buffer);
	if (end->pd)
		ib_dealloc_pd(end->pd);
	memset(end, 0, sizeof(*end));
}

static int end_open(struct end *end, struct ib_device *dev, u32 max_inline, bool with_events)
{
	struct ib_cq_init_attr cq_attr = { .cqe = 4 * DEPTH };
	int err;

	memset(end, 0, sizeof(*end));
	init_completion(&end->event);
	end->dev = dev;
	end->pd = ib_alloc_pd(dev, 0);
	if (IS_ERR(end->pd)) {
		err = PTR_ERR(end->pd);
		end->pd = NULL;
		return err;
	}
	end->cq = ib_create_cq(dev, with_events ? on_completion : NULL, NULL, end, &cq_attr);
	if (IS_ERR(end->cq)) {
		err = PTR_ERR(end->cq);
		end->cq = NULL;
		goto close;
	}
	err = qp_open(end, max_inline);
	if (!err)
		err = to_rts(end->qp);
	if (err)
		goto close;

	err = -ENOMEM;
	end->buffer = kzalloc(SIZE, GFP_KERNEL);
	if (!end->buffer)
		goto close;
	end->dma = ib_dma_map_single(dev, end->buffer, SIZE, DMA_BIDIRECTIONAL);
	if (!ib_dma_mapping_error(dev, end->dma))
		return 0;
	end->dma = 0;
close:
	end_close(end);
	return err;
}

static int connect_to(struct end *end, struct end *peer)
{
	union ib_gid gid;
	int err;

	err = rdma_query_gid(peer->dev, 1, 0, &gid);
	if (err)
		return err;
	end->peer = ah_of(end->pd, &gid);
	if (IS_ERR(end->peer)) {
		err = PTR_ERR(end->peer);
		end->peer = NULL;
		return err;
	}
	end->peer_qpn = peer->qp->qp_num;
	return 0;
}

static int pair_open(struct end ends[2], u32 max_inline, bool with_events)
{
	int err;

	err = end_open(&ends[0], devices[0], max_inline, with_events);
	if (err)
		return err;
	err = end_open(&ends[1], devices[1] ?: devices[0], max_inline, with_events);
	if (err) {
		end_close(&ends[0]);
		return err;
	}
	err = connect_to(&ends[0], &ends[1]);
	if (!err)
		err = connect_to(&ends[1], &ends[0]);
	if (err) {
		end_close(&ends[1]);
		end_close(&ends[0]);
	}
	return err;
}

static void pair_close(struct end ends[2])
{
	end_close(&ends[1]);
	end_close(&ends[0]);
}

/* Waits for a completion by polling. */
static int await(struct end *end, struct ib_wc *wc)
{
	unsigned long until = jiffies + msecs_to_jiffies(PATIENCE_MS);
	int count;

	do {
		count = ib_poll_cq(end->cq, 1, wc);
		if (count)
			return count < 0 ? count : 0;
		usleep_range(50, 100);
	} while (time_before(jiffies, until));
	pr_err("nothing has completed\n");
	return -ETIMEDOUT;
}

static int expect(struct end *end, u64 id, enum ib_wc_status status, enum ib_wc_opcode opcode, struct ib_wc *wc)
{
	int err = await(end, wc);

	if (err) {
		pr_err("expected a completion of %llu with %s\n", id, ib_wc_status_msg(status));
		return err;
	}
	if (wc->wr_id != id || wc->status != status || wc->opcode != opcode || wc->qp != end->qp) {
		pr_err("completion of %llu, status %s (%u), opcode %d; not of %llu, %s, %d\n", wc->wr_id,
		       ib_wc_status_msg(wc->status), wc->vendor_err, wc->opcode, id, ib_wc_status_msg(status),
		       opcode);
		return -EBADMSG;
	}
	return 0;
}

static int receive(struct end *end, u64 id, u32 length)
{
	struct ib_sge sge = { .addr = end->dma, .length = length, .lkey = end->pd->local_dma_lkey };
	struct ib_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(end->qp, &wr, NULL);
}

/* A send work request with its buffer. */
struct request {
	struct ib_srd_wr srd;
	struct ib_sge sge;
};

static struct ib_send_wr *request_set(struct request *request, struct end *end, u64 id, u32 length)
{
	struct ib_send_wr *wr;

	memset(request, 0, sizeof(*request));
	request->sge = (struct ib_sge) {
		.addr = end->dma,
		.length = length,
		.lkey = end->pd->local_dma_lkey,
	};
	request->srd.ah = end->peer;
	request->srd.remote_qpn = end->peer_qpn;
	request->srd.remote_qkey = QKEY;
	wr = &request->srd.wr;
	wr->wr_id = id;
	wr->opcode = IB_WR_SEND;
	wr->sg_list = &request->sge;
	wr->num_sge = 1;
	wr->send_flags = IB_SEND_SIGNALED;
	return wr;
}

static int compare(struct end ends[2], u32 length, struct ib_wc *wc)
{
	if (wc->byte_len != length) {
		pr_err("%u bytes have arrived, not %u\n", wc->byte_len, length);
		return -EBADMSG;
	}
	ib_dma_sync_single_for_cpu(ends[1].dev, ends[1].dma, SIZE, DMA_BIDIRECTIONAL);
	if (memcmp(ends[0].buffer, ends[1].buffer, length)) {
		pr_err("wrong data has arrived\n");
		return -EBADMSG;
	}
	return 0;
}

/* Sends one message, optionally inline and with immediate data. */
static int send_one(u32 length, u32 max_inline, bool with_imm)
{
	struct request request;
	struct ib_send_wr *wr;
	struct end ends[2];
	struct ib_wc wc;
	int err;

	err = pair_open(ends, max_inline, false);
	if (err)
		return err;
	err = receive(&ends[1], 7, SIZE);
	if (err)
		goto close;

	get_random_bytes(ends[0].buffer, length);
	ib_dma_sync_single_for_device(ends[0].dev, ends[0].dma, SIZE, DMA_BIDIRECTIONAL);
	wr = request_set(&request, &ends[0], 8, length);
	if (max_inline) {
		wr->send_flags |= IB_SEND_INLINE;
		request.sge.addr = (uintptr_t)ends[0].buffer;
		request.sge.lkey = 0;
	}
	if (with_imm) {
		wr->opcode = IB_WR_SEND_WITH_IMM;
		wr->ex.imm_data = cpu_to_be32(0x01020304);
	}
	err = ib_post_send(ends[0].qp, wr, NULL);
	if (!err)
		err = expect(&ends[0], 8, IB_WC_SUCCESS, IB_WC_SEND, &wc);
	if (!err)
		err = expect(&ends[1], 7, IB_WC_SUCCESS, IB_WC_RECV, &wc);
	if (!err)
		err = compare(ends, length, &wc);
	if (!err && with_imm && (!(wc.wc_flags & IB_WC_WITH_IMM) || wc.ex.imm_data != cpu_to_be32(0x01020304))) {
		pr_err("immediate data is %#x\n", be32_to_cpu(wc.ex.imm_data));
		err = -EBADMSG;
	}
	if (!err && wc.src_qp != ends[0].qp->qp_num) {
		pr_err("the message is from %u\n", wc.src_qp);
		err = -EBADMSG;
	}
close:
	pair_close(ends);
	return err;
}

static int test_send(void)
{
	return send_one(SIZE, 0, false);
}

static int test_imm(void)
{
	return send_one(100, 0, true);
}

static int test_inline(void)
{
	return send_one(32, 32, false);
}

/* An event for each of a few messages. */
static int test_events(void)
{
	struct request request;
	struct end ends[2];
	struct ib_wc wc;
	int err, i;

	err = pair_open(ends, 0, true);
	if (err)
		return err;
	for (i = 0; i < 20 && !err; i++) {
		reinit_completion(&ends[1].event);
		err = receive(&ends[1], i, 64);
		if (!err)
			err = ib_req_notify_cq(ends[1].cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS);
		if (!err)
			err = ib_post_send(ends[0].qp, request_set(&request, &ends[0], i, 64), NULL);
		if (!err && !wait_for_completion_timeout(&ends[1].event, msecs_to_jiffies(PATIENCE_MS))) {
			pr_err("no event has arrived in round %d\n", i);
			err = -ETIMEDOUT;
		}
		if (!err)
			err = expect(&ends[1], i, IB_WC_SUCCESS, IB_WC_RECV, &wc);
		if (!err)
			err = expect(&ends[0], i, IB_WC_SUCCESS, IB_WC_SEND, &wc);
	}
	pair_close(ends);
	return err;
}

/* A work request whose completions the core polls and reports by a callback. */
struct counted {
	struct ib_cqe cqe;
	unsigned int ms;
	atomic_t ends;
	enum ib_wc_status status;
};

static void counted_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct counted *counted = container_of(wc->wr_cqe, struct counted, cqe);

	mdelay(counted->ms);
	counted->status = wc->status;
	atomic_inc(&counted->ends);
}

/* A message, and receives that all complete before ib_drain_qp() returns, with the given kind of polling. */
static int test_drain_by(enum ib_poll_context context)
{
	struct counted recv = { .cqe.done = counted_done }, send = { .cqe.done = counted_done };
	struct ib_recv_wr recv_wr = { .wr_cqe = &recv.cqe };
	struct request request;
	struct ib_send_wr *wr;
	struct end end;
	int err, i;

	err = end_open(&end, devices[0], 0, false);
	if (err)
		return err;
	ib_destroy_qp(end.qp);
	end.qp = NULL;
	ib_destroy_cq(end.cq);
	/* Slow callbacks, which must return before the drain does nevertheless. */
	recv.ms = 1;
	end.cq = ib_alloc_cq(end.dev, &end, 2 * DEPTH, 0, context);
	if (IS_ERR(end.cq)) {
		err = PTR_ERR(end.cq);
		end.cq = NULL;
		goto close;
	}
	err = qp_open(&end, 0);
	if (err)
		goto free;
	err = to_rts(end.qp);
	/* The core's drain needs room for one more receive. */
	for (i = 0; i < DEPTH - 1 && !err; i++)
		err = ib_post_recv(end.qp, &recv_wr, NULL);
	if (!err)
		err = connect_to(&end, &end);
	wr = request_set(&request, &end, 0, 0);
	wr->num_sge = 0;
	wr->wr_cqe = &send.cqe;
	if (!err)
		err = ib_post_send(end.qp, wr, NULL);
	for (i = 0; i < PATIENCE_MS && !err && atomic_read(&send.ends) + atomic_read(&recv.ends) < 2; i++) {
		if (context == IB_POLL_DIRECT)
			ib_process_cq_direct(end.cq, -1);
		usleep_range(1000, 2000);
	}
	if (!err && (atomic_read(&send.ends) != 1 || atomic_read(&recv.ends) != 1 || send.status || recv.status)) {
		pr_err("%d sends and %d receives have ended, status %d and %d\n", atomic_read(&send.ends),
		       atomic_read(&recv.ends), send.status, recv.status);
		err = -EBADMSG;
	}
	ib_drain_qp(end.qp);
	if (!err && (atomic_read(&recv.ends) != DEPTH - 1 || recv.status != IB_WC_WR_FLUSH_ERR)) {
		pr_err("%d of %d receives have ended, status %d\n", atomic_read(&recv.ends), DEPTH - 1, recv.status);
		err = -EBADMSG;
	}
	/* A drain of an empty queue pair. */
	ib_drain_qp(end.qp);
	ib_destroy_qp(end.qp);
	end.qp = NULL;
free:
	ib_free_cq(end.cq);
	end.cq = NULL;
close:
	end_close(&end);
	return err;
}

static int test_drain(void)
{
	return test_drain_by(IB_POLL_DIRECT) ?: test_drain_by(IB_POLL_SOFTIRQ) ?: test_drain_by(IB_POLL_WORKQUEUE);
}

/* Pages that are registered by a work request. */
struct region {
	struct end *end;
	struct ib_mr *mr;
	struct page *pages[4];
	struct scatterlist sg[4];
	int mapped;
};

static void region_close(struct region *region)
{
	int i;

	if (region->mr)
		ib_dereg_mr(region->mr);
	if (region->mapped)
		ib_dma_unmap_sg(region->end->dev, region->sg, ARRAY_SIZE(region->sg), DMA_BIDIRECTIONAL);
	for (i = 0; i < ARRAY_SIZE(region->pages); i++)
		if (region->pages[i])
			__free_page(region->pages[i]);
}

static int region_open(struct region *region, struct end *end)
{
	int i;

	memset(region, 0, sizeof(*region));
	region->end = end;
	sg_init_table(region->sg, ARRAY_SIZE(region->sg));
	for (i = 0; i < ARRAY_SIZE(region->pages); i++) {
		region->pages[i] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!region->pages[i])
			goto close;
		sg_set_page(&region->sg[i], region->pages[i], PAGE_SIZE, 0);
	}
	region->mapped = ib_dma_map_sg(end->dev, region->sg, ARRAY_SIZE(region->sg), DMA_BIDIRECTIONAL);
	if (!region->mapped)
		goto close;
	region->mr = ib_alloc_mr(end->pd, IB_MR_TYPE_MEM_REG, ARRAY_SIZE(region->pages));
	if (!IS_ERR(region->mr))
		return 0;
	pr_err("a region could not be allocated: %pe\n", region->mr);
	region->mr = NULL;
close:
	region_close(region);
	return -ENOMEM;
}

/* Registers the first COUNT pages, under new keys. */
static int region_register(struct region *region, int count)
{
	struct ib_reg_wr wr = {
		.wr = { .wr_id = 50, .opcode = IB_WR_REG_MR, .send_flags = IB_SEND_SIGNALED },
		.mr = region->mr,
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE,
	};
	struct ib_wc wc;
	int err;

	err = ib_map_mr_sg(region->mr, region->sg, count, NULL, PAGE_SIZE);
	if (err != count) {
		pr_err("%d of %d pages are mapped\n", err, count);
		return -EBADMSG;
	}
	efa_inc_fast_reg_key_gen(region->mr);
	wr.key = region->mr->rkey;
	err = ib_post_send(region->end->qp, &wr.wr, NULL);
	return err ?: expect(region->end, 50, IB_WC_SUCCESS, IB_WC_REG_MR, &wc);
}

static int region_invalidate(struct region *region)
{
	struct ib_send_wr wr = {
		.wr_id = 51,
		.opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED,
		.ex.invalidate_rkey = region->mr->rkey,
	};
	struct ib_wc wc;
	int err;

	err = ib_post_send(region->end->qp, &wr, NULL);
	return err ?: expect(region->end, 51, IB_WC_SUCCESS, IB_WC_LOCAL_INV, &wc);
}

/* Writes an end's buffer to a region of the other end, or reads the region. */
static int rdma(struct end *end, struct region *region, u32 rkey, u64 offset, u32 length, enum ib_wr_opcode opcode,
		enum ib_wc_status status)
{
	struct ib_sge sge = { .addr = end->dma, .length = length, .lkey = end->pd->local_dma_lkey };
	struct ib_srd_rdma_wr wr = {
		.wr = {
			.wr = {
				.wr_id = 52,
				.opcode = opcode,
				.send_flags = IB_SEND_SIGNALED,
				.sg_list = &sge,
				.num_sge = 1,
			},
			.ah = end->peer,
			.remote_qpn = end->peer_qpn,
			.remote_qkey = QKEY,
		},
		.remote_addr = region->mr->iova + offset,
		.rkey = rkey,
	};
	struct ib_wc wc;
	int err;

	err = ib_post_send(end->qp, &wr.wr.wr, NULL);
	return err ?: expect(end, 52, status, opcode == IB_WR_RDMA_READ ? IB_WC_RDMA_READ : IB_WC_RDMA_WRITE, &wc);
}

static int region_compare(struct region *region, u32 offset, const u8 *data, u32 length)
{
	u32 i;

	for (i = 0; i < ARRAY_SIZE(region->pages); i++)
		ib_dma_sync_single_for_cpu(region->end->dev, sg_dma_address(&region->sg[i]), PAGE_SIZE, DMA_BIDIRECTIONAL);
	for (i = 0; i < length; i++) {
		const u8 *page = page_address(region->pages[(offset + i) / PAGE_SIZE]);

		if (page[(offset + i) % PAGE_SIZE] != data[i]) {
			pr_err("byte %u of a region differs\n", offset + i);
			return -EBADMSG;
		}
	}
	return 0;
}

/* A region is registered, used by the peer, and invalidated, repeatedly. */
static int test_rdma(void)
{
	struct region region;
	struct end ends[2];
	int err, round;

	err = pair_open(ends, 0, false);
	if (err)
		return err;
	err = region_open(&region, &ends[1]);
	if (err)
		goto close;
	for (round = 0; round < 40 && !err; round++) {
		int count = round % ARRAY_SIZE(region.pages) + 1;
		u32 offset = (count - 1) * PAGE_SIZE / 2, length = PAGE_SIZE - round, rkey;
		u8 *copy;

		err = region_register(&region, count);
		if (err)
			break;
		rkey = region.mr->rkey;
		get_random_bytes(ends[0].buffer, length);
		ib_dma_sync_single_for_device(ends[0].dev, ends[0].dma, SIZE, DMA_BIDIRECTIONAL);
		err = rdma(&ends[0], &region, rkey, offset, length, IB_WR_RDMA_WRITE, IB_WC_SUCCESS);
		if (!err)
			err = region_compare(&region, offset, ends[0].buffer, length);
		copy = kmemdup(ends[0].buffer, length, GFP_KERNEL);
		memset(ends[0].buffer, 0, SIZE);
		ib_dma_sync_single_for_device(ends[0].dev, ends[0].dma, SIZE, DMA_BIDIRECTIONAL);
		if (!err)
			err = rdma(&ends[0], &region, rkey, offset, length, IB_WR_RDMA_READ, IB_WC_SUCCESS);
		ib_dma_sync_single_for_cpu(ends[0].dev, ends[0].dma, SIZE, DMA_BIDIRECTIONAL);
		if (!err && copy && memcmp(copy, ends[0].buffer, length)) {
			pr_err("wrong data was read in round %d\n", round);
			err = -EBADMSG;
		}
		kfree(copy);
		/* Accesses beyond the region's end, and after its invalidation. */
		if (!err)
			err = rdma(&ends[0], &region, rkey, count * PAGE_SIZE - 1, 2, IB_WR_RDMA_READ, IB_WC_REM_ACCESS_ERR);
		if (!err)
			err = region_invalidate(&region);
		if (!err)
			err = rdma(&ends[0], &region, rkey, offset, 1, IB_WR_RDMA_WRITE, IB_WC_REM_ACCESS_ERR);
	}
	region_close(&region);
close:
	pair_close(ends);
	return err;
}

/* Queue pairs that stay open, with all receives and some sends posted, until one of their devices is removed. */
static struct end held[2];
static int held_result = -ENOENT;

/* Id of the first of the sends of each kind. Completions have the kind even if they are errors. */
#define FIRST_SEND 100

static const struct {
	enum ib_wr_opcode wr;
	enum ib_wc_opcode wc;
} kinds[] = {
	{ IB_WR_SEND, IB_WC_SEND },
	{ IB_WR_RDMA_READ, IB_WC_RDMA_READ },
	{ IB_WR_RDMA_WRITE, IB_WC_RDMA_WRITE },
	{ IB_WR_LOCAL_INV, IB_WC_LOCAL_INV },
};

/* Posts these sends to a drained send queue, in which they stay. */
static int hold_sends(struct end *end)
{
	struct ib_sge sge = { .addr = end->dma, .length = 64, .lkey = end->pd->local_dma_lkey };
	int err, i;

	err = to_state(end->qp, IB_QPS_SQD);
	for (i = 0; i < ARRAY_SIZE(kinds) && !err; i++) {
		struct ib_srd_rdma_wr wr = {
			.wr = {
				.wr = {
					.wr_id = FIRST_SEND + i,
					.opcode = kinds[i].wr,
					.sg_list = &sge,
					.num_sge = 1,
				},
				.ah = end->peer,
				.remote_qpn = end->peer_qpn,
				.remote_qkey = QKEY,
			},
		};

		err = ib_post_send(end->qp, &wr.wr.wr, NULL);
	}
	return err;
}

static int test_hold(void)
{
	int err, i, j;

	err = pair_open(held, 0, true);
	if (err)
		return err;
	for (i = 0; i < 2 && !err; i++) {
		for (j = 0; j < DEPTH && !err; j++)
			err = receive(&held[i], j, 64);
		if (!err)
			err = hold_sends(&held[i]);
		if (!err)
			err = ib_req_notify_cq(held[i].cq, IB_CQ_NEXT_COMP);
	}
	if (err)
		pair_close(held);
	held_result = -EINPROGRESS;
	return err;
}

/*
 * The device has made up completions for the held queue pair. Two name posted work requests: a read, which the device
 * reports as a send, and a receive.
 */
static int test_bogus(void)
{
	struct ib_wc wc;
	int err;

	if (!held[0].dev)
		return -ENOENT;
	err = expect(&held[0], FIRST_SEND + 1, IB_WC_SUCCESS, IB_WC_RDMA_READ, &wc);
	if (!err)
		err = expect(&held[0], 3, IB_WC_SUCCESS, IB_WC_RECV, &wc);
	if (!err && wc.byte_len != 10) {
		pr_err("%u bytes have arrived\n", wc.byte_len);
		err = -EBADMSG;
	}
	if (!err && ib_poll_cq(held[0].cq, 1, &wc)) {
		pr_err("completion of %llu, which was not posted\n", wc.wr_id);
		err = -EBADMSG;
	}
	pair_close(held);
	held_result = err;
	return err;
}

/* Checks that all posted work requests of an end are flushed, as its device is removed. */
static int held_release(struct end *end)
{
	struct ib_wc wc;
	int err = 0, i;

	if (!wait_for_completion_timeout(&end->event, msecs_to_jiffies(PATIENCE_MS))) {
		pr_err("no event of the queue pair has arrived\n");
		return -ETIMEDOUT;
	}
	for (i = 0; i < ARRAY_SIZE(kinds) && !err; i++)
		err = expect(end, FIRST_SEND + i, IB_WC_WR_FLUSH_ERR, kinds[i].wc, &wc);
	for (i = 0; i < DEPTH && !err; i++)
		err = expect(end, i, IB_WC_WR_FLUSH_ERR, IB_WC_RECV, &wc);
	if (!err && ib_poll_cq(end->cq, 1, &wc)) {
		pr_err("more completions than posted work requests\n");
		err = -EBADMSG;
	}
	if (!err)
		err = receive(end, 7, 64);
	if (!err)
		err = expect(end, 7, IB_WC_WR_FLUSH_ERR, IB_WC_RECV, &wc);
	return err;
}

/*
 * Continuous messages between the two ends, until their device is removed. Threads post and poll, and a timer polls
 * in softirq context. Each posted request has a bit, which shows that it completes once.
 */
#define CROWD 3

static struct {
	struct task_struct *threads[CROWD];
	struct timer_list timer;
	DECLARE_BITMAP(sends, DEPTH);
	DECLARE_BITMAP(receives, DEPTH);
	atomic_t moved, wrong;
} busy;

static int slot_take(unsigned long *slots)
{
	int slot;

	do {
		slot = find_first_zero_bit(slots, DEPTH);
		if (slot >= DEPTH)
			return -EBUSY;
	} while (test_and_set_bit(slot, slots));
	return slot;
}

/* Posts a receive and a message, if there is room. */
static void busy_post(void)
{
	struct request request;
	int slot;

	slot = slot_take(busy.receives);
	if (slot >= 0 && receive(&held[1], slot, SIZE))
		clear_bit(slot, busy.receives);
	slot = slot_take(busy.sends);
	if (slot >= 0 && ib_post_send(held[0].qp, request_set(&request, &held[0], slot, SIZE), NULL))
		clear_bit(slot, busy.sends);
}

static void busy_poll(struct end *end, unsigned long *slots)
{
	struct ib_wc wc[4];
	int count, i;

	count = ib_poll_cq(end->cq, ARRAY_SIZE(wc), wc);
	for (i = 0; i < count; i++) {
		/* The end's device was removed, or that of the peer. */
		bool is_end = wc[i].status == IB_WC_WR_FLUSH_ERR || wc[i].status == IB_WC_RESP_TIMEOUT_ERR;

		if (wc[i].wr_id >= DEPTH || !test_and_clear_bit(wc[i].wr_id, slots) || wc[i].qp != end->qp ||
		    (wc[i].status && !is_end)) {
			pr_err("completion of %llu, %s\n", wc[i].wr_id, ib_wc_status_msg(wc[i].status));
			atomic_inc(&busy.wrong);
		}
		if (!wc[i].status)
			atomic_inc(&busy.moved);
	}
}

static int busy_run(void *unused)
{
	while (!kthread_should_stop()) {
		busy_post();
		busy_poll(&held[0], busy.sends);
		busy_poll(&held[1], busy.receives);
		cond_resched();
	}
	return 0;
}

static void busy_tick(struct timer_list *timer)
{
	busy_poll(&held[0], busy.sends);
	busy_poll(&held[1], busy.receives);
	mod_timer(timer, jiffies + 1);
}

/* Stops the test. Fails unless all work requests of END have completed, as its device is removed. */
static int busy_stop(struct end *end)
{
	unsigned long *slots = end == &held[0] ? busy.sends : busy.receives;
	int i;

	for (i = 0; i < CROWD; i++) {
		if (busy.threads[i])
			kthread_stop(busy.threads[i]);
		busy.threads[i] = NULL;
	}
	timer_delete_sync(&busy.timer);
	for (i = 0; i < DEPTH; i++)
		busy_poll(end, slots);
	if (!bitmap_empty(slots, DEPTH)) {
		pr_err("%d work requests have not completed\n", bitmap_weight(slots, DEPTH));
		return -EBADMSG;
	}
	return atomic_read(&busy.wrong) || !atomic_read(&busy.moved) ? -EBADMSG : 0;
}

static int test_busy(void)
{
	int err, i;

	err = pair_open(held, 0, false);
	if (err)
		return err;
	memset(&busy, 0, sizeof(busy));
	timer_setup(&busy.timer, busy_tick, 0);
	for (i = 0; i < CROWD; i++) {
		struct task_struct *thread = kthread_run(busy_run, NULL, "kverbs_busy%d", i);

		/* Fewer threads suffice, if there is at least one. */
		if (IS_ERR(thread))
			break;
		busy.threads[i] = thread;
	}
	if (!i) {
		pair_close(held);
		return -ENOMEM;
	}
	mod_timer(&busy.timer, jiffies + 1);
	held_result = -EINPROGRESS;
	return 0;
}

static int held_get(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%d\n", held_result);
}

static const struct kernel_param_ops held_ops = { .get = held_get };
module_param_cb(held, &held_ops, NULL, 0400);
MODULE_PARM_DESC(held, "How the test `hold` ended, as an errno");

static const struct {
	const char *name;
	int (*run)(void);
} tests[] = {
	{ "send", test_send },
	{ "imm", test_imm },
	{ "inline", test_inline },
	{ "events", test_events },
	{ "rdma", test_rdma },
	{ "drain", test_drain },
	{ "hold", test_hold },
	{ "bogus", test_bogus },
	{ "busy", test_busy },
};

int local_run(const char *name)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(tests); i++)
		if (sysfs_streq(name, tests[i].name))
			return tests[i].run();
	return -ENOENT;
}

void local_removed(struct ib_device *dev)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(held); i++) {
		if (held[i].dev == dev) {
			/* A working device flushes all work requests now. Those of a halted device are flushed already. */
			to_state(held[i].qp, IB_QPS_ERR);
			held_result = busy.threads[0] ? busy_stop(&held[i]) : held_release(&held[i]);
			pair_close(held);
		}
	}
}
