// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Work requests in flight between the first two devices, which may be the same. A line is one of these commands:
 *
 *   drain    Drains a queue pair, which the core polls in each of its contexts.
 *   hold     Leaves all receives and some sends posted, until a device is removed. The core polls.
 *   busy     Sends messages until a device is removed. Threads post and poll, and a timer polls in softirq context.
 *   held     The result is how `hold` or `busy` ended, as an errno.
 */

#include <linux/bitmap.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/timer.h>
#include <rdma/ib_cache.h>

#include "client.h"

#define SIZE 4096

/* Work requests of a kind, which the core polls. Completions have the kind even if they are errors. */
struct counted {
	struct ib_cqe cqe;
	enum ib_wc_opcode opcode;
	unsigned int ms;
	atomic_t moved, flushed, wrong;
};

static void counted_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct counted *counted = container_of(wc->wr_cqe, struct counted, cqe);
	bool is_flushed = wc->status == IB_WC_WR_FLUSH_ERR;

	mdelay(counted->ms);
	if (wc->opcode != counted->opcode || (wc->status && !is_flushed)) {
		pr_err("completion with %s, opcode %d, not %d\n", ib_wc_status_msg(wc->status), wc->opcode, counted->opcode);
		atomic_inc(&counted->wrong);
	}
	atomic_inc(is_flushed ? &counted->flushed : &counted->moved);
}

static void counted_init(struct counted *counted, enum ib_wc_opcode opcode)
{
	*counted = (struct counted) { .cqe.done = counted_done, .opcode = opcode };
}

static u64 id_of(struct counted *counted)
{
	return (uintptr_t)&counted->cqe;
}

/* Fails unless these numbers of work requests have completed, each once. */
static int expect(const struct counted *counted, int moved, int flushed)
{
	if (atomic_read(&counted->moved) == moved && atomic_read(&counted->flushed) == flushed && !atomic_read(&counted->wrong))
		return 0;
	pr_err("opcode %d: %d have succeeded and %d are flushed, not %d and %d\n", counted->opcode, atomic_read(&counted->moved),
	       atomic_read(&counted->flushed), moved, flushed);
	return -EBADMSG;
}

/* Waits until this number of work requests has completed. */
static void await(struct ib_cq *cq, const struct counted *counted, int count)
{
	int i;

	for (i = 0; i < PATIENCE_MS && atomic_read(&counted->moved) + atomic_read(&counted->flushed) < count; i++) {
		if (cq->poll_ctx == IB_POLL_DIRECT)
			ib_process_cq_direct(cq, -1);
		usleep_range(1000, 2000);
	}
}

static int meet(struct end *end, struct end *peer)
{
	union ib_gid gid;

	return rdma_query_gid(peer->dev, 1, 0, &gid) ?: end_meet(end, &gid, peer->qp->qp_num);
}

/* A message, and receives that all complete before ib_drain_qp() returns, as do their callbacks, which are slow. */
static int drain_by(enum ib_poll_context context)
{
	struct counted recv, send;
	struct end end;
	int err, i;

	err = end_open(&end, devices[0], SIZE, context, NULL);
	if (err)
		return err;
	counted_init(&recv, IB_WC_RECV);
	counted_init(&send, IB_WC_SEND);
	recv.ms = 1;
	/* The core's drain needs room for one more receive. */
	for (i = 0; i < DEPTH - 1 && !err; i++)
		err = end_receive(&end, id_of(&recv), 0, SIZE);
	err = err ?: meet(&end, &end);
	err = err ?: end_send(&end, id_of(&send), IB_WR_SEND, 0, 0);
	if (!err) {
		await(end.cq, &send, 1);
		await(end.cq, &recv, 1);
		err = expect(&send, 1, 0) ?: expect(&recv, 1, 0);
	}
	ib_drain_qp(end.qp);
	err = err ?: expect(&recv, 1, DEPTH - 2);
	/* A drain of an empty queue pair. */
	ib_drain_qp(end.qp);
	end_close(&end);
	return err;
}

static int drain(void)
{
	return drain_by(IB_POLL_DIRECT) ?: drain_by(IB_POLL_SOFTIRQ) ?: drain_by(IB_POLL_WORKQUEUE);
}

/* Two queue pairs that stay open until one of their devices is removed. */
static struct end ends[2];
static int result = -ENOENT;

static void pair_close(void)
{
	end_close(&ends[1]);
	end_close(&ends[0]);
}

static int pair_open(int context)
{
	int err;

	if (ends[0].dev)
		return -EBUSY;
	err = end_open(&ends[0], devices[0], SIZE, context, NULL);
	err = err ?: end_open(&ends[1], devices[1] ?: devices[0], SIZE, context, NULL);
	err = err ?: meet(&ends[0], &ends[1]);
	err = err ?: meet(&ends[1], &ends[0]);
	if (err)
		pair_close();
	return err;
}

static const struct {
	enum ib_wr_opcode wr;
	enum ib_wc_opcode wc;
} kinds[] = {
	{ IB_WR_SEND, IB_WC_SEND },
	{ IB_WR_RDMA_READ, IB_WC_RDMA_READ },
	{ IB_WR_RDMA_WRITE, IB_WC_RDMA_WRITE },
	{ IB_WR_LOCAL_INV, IB_WC_LOCAL_INV },
};

/* What is posted to each end: receives, and a send of each kind, which stays in the drained send queue. */
static struct {
	struct counted receives, sends[ARRAY_SIZE(kinds)];
} posted[2];

static int hold(void)
{
	int err, i, j;

	err = pair_open(IB_POLL_WORKQUEUE);
	for (i = 0; i < 2 && !err; i++) {
		counted_init(&posted[i].receives, IB_WC_RECV);
		for (j = 0; j < DEPTH && !err; j++)
			err = end_receive(&ends[i], id_of(&posted[i].receives), 0, SIZE);
		err = err ?: to_state(ends[i].qp, IB_QPS_SQD);
		for (j = 0; j < ARRAY_SIZE(kinds) && !err; j++) {
			counted_init(&posted[i].sends[j], kinds[j].wc);
			err = end_send(&ends[i], id_of(&posted[i].sends[j]), kinds[j].wr, ends[i].area.dma, SIZE);
		}
	}
	if (err && err != -EBUSY)
		pair_close();
	return err;
}

/* As Lustre's efalnd, waits until all work requests have completed, and posts one more. */
static int hold_end(struct end *end, int i)
{
	int err = 0, j;

	await(end->cq, &posted[i].receives, DEPTH);
	for (j = 0; j < ARRAY_SIZE(kinds); j++) {
		await(end->cq, &posted[i].sends[j], 1);
		err = err ?: expect(&posted[i].sends[j], 0, 1);
	}
	err = err ?: expect(&posted[i].receives, 0, DEPTH);
	err = err ?: end_receive(end, id_of(&posted[i].receives), 0, SIZE);
	await(end->cq, &posted[i].receives, DEPTH + 1);
	return err ?: expect(&posted[i].receives, 0, DEPTH + 1);
}

/* Each request has a bit, which shows that it completes once. */
#define CROWD 3

static struct {
	struct task_struct *threads[CROWD];
	struct timer_list timer;
	DECLARE_BITMAP(sends, DEPTH);
	DECLARE_BITMAP(receives, DEPTH);
	atomic_t moved, wrong;
} traffic;

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
static void traffic_post(void)
{
	int slot;

	slot = slot_take(traffic.receives);
	if (slot >= 0 && end_receive(&ends[1], slot, 0, SIZE))
		clear_bit(slot, traffic.receives);
	slot = slot_take(traffic.sends);
	if (slot >= 0 && end_send(&ends[0], slot, IB_WR_SEND, ends[0].area.dma, SIZE))
		clear_bit(slot, traffic.sends);
}

static void traffic_poll(struct end *end, unsigned long *slots)
{
	struct ib_wc wc[4];
	int count, i;

	count = ib_poll_cq(end->cq, ARRAY_SIZE(wc), wc);
	for (i = 0; i < count; i++) {
		/* The end's device is removed, or that of the peer, which does not answer or was reset. */
		bool is_end = wc[i].status == IB_WC_WR_FLUSH_ERR || wc[i].status == IB_WC_RESP_TIMEOUT_ERR ||
			      wc[i].status == IB_WC_REM_INV_RD_REQ_ERR;

		if (wc[i].wr_id >= DEPTH || !test_and_clear_bit(wc[i].wr_id, slots) || wc[i].qp != end->qp ||
		    (wc[i].status && !is_end)) {
			pr_err("completion of %llu, %s\n", wc[i].wr_id, ib_wc_status_msg(wc[i].status));
			atomic_inc(&traffic.wrong);
		}
		if (!wc[i].status)
			atomic_inc(&traffic.moved);
	}
}

static void traffic_poll_both(void)
{
	traffic_poll(&ends[0], traffic.sends);
	traffic_poll(&ends[1], traffic.receives);
}

static int traffic_run(void *unused)
{
	while (!kthread_should_stop()) {
		traffic_post();
		traffic_poll_both();
		cond_resched();
	}
	return 0;
}

static void traffic_tick(struct timer_list *timer)
{
	traffic_poll_both();
	mod_timer(timer, jiffies + 1);
}

static int busy(void)
{
	int err, i;

	err = pair_open(POLLS_ITSELF);
	if (err)
		return err;
	memset(&traffic, 0, sizeof(traffic));
	timer_setup(&traffic.timer, traffic_tick, 0);
	for (i = 0; i < CROWD && !err; i++)
		err = KEEP(traffic.threads[i], kthread_run(traffic_run, NULL, "kverbs_busy%d", i));
	mod_timer(&traffic.timer, jiffies + 1);
	/* Fewer threads suffice, if there is at least one. */
	if (traffic.threads[0])
		return 0;
	timer_delete_sync(&traffic.timer);
	pair_close();
	return err;
}

/* Fails unless all work requests complete. */
static int busy_end(void)
{
	int i;

	for (i = 0; i < CROWD; i++) {
		if (traffic.threads[i])
			kthread_stop(traffic.threads[i]);
		traffic.threads[i] = NULL;
	}
	timer_delete_sync(&traffic.timer);
	for (i = 0; i < PATIENCE_MS; i++) {
		traffic_poll_both();
		if (bitmap_empty(traffic.sends, DEPTH) && bitmap_empty(traffic.receives, DEPTH))
			return atomic_read(&traffic.wrong) || !atomic_read(&traffic.moved) ? -EBADMSG : 0;
		usleep_range(1000, 2000);
	}
	pr_err("%d sends and %d receives have not completed\n", bitmap_weight(traffic.sends, DEPTH),
	       bitmap_weight(traffic.receives, DEPTH));
	return -EBADMSG;
}

int local_run(const char *name)
{
	int err;

	if (!strcmp(name, "drain"))
		return drain();
	if (!strcmp(name, "held")) {
		snprintf(answer, sizeof(answer), "%d\n", result);
		return 0;
	}
	err = !strcmp(name, "hold") ? hold() : !strcmp(name, "busy") ? busy() : -EINVAL;
	result = err ?: -EINPROGRESS;
	return err;
}

/* Ends a command. A working device flushes all work requests, and those of a halted device are flushed already. */
void local_removed(struct ib_device *dev)
{
	if (!dev || (ends[0].dev != dev && ends[1].dev != dev))
		return;
	to_state(ends[0].qp, IB_QPS_ERR);
	to_state(ends[1].qp, IB_QPS_ERR);
	result = traffic.threads[0] ? busy_end() : hold_end(&ends[0], 0) ?: hold_end(&ends[1], 1);
	pair_close();
}
