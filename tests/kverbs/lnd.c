// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A client that uses its queue pairs like Lustre's efalnd. The core polls, and the send queues are always full. A message whose
 * post fails waits. After ENOMEM it waits for the next completion; after any other error, for a timeout that delays a removal.
 *
 * Its parameter `lnd` sets the use of each device: `idle`, `busy`, or `starved`, which is busy without receives. `end` removes
 * the client from the devices. Reading the parameter returns its counters.
 */

#include <linux/cleanup.h>
#include <linux/completion.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/refcount.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include <rdma/ib_cache.h>

#include "client.h"

#define QPS 4
#define DEPTH 16
/* More than a send queue has room for, which is at least 32 on any device. A third of them are sends. */
#define MESSAGES 40
/* Number of entries of a completion queue, which must not overflow. */
#define ENTRIES (QPS * 2 * MESSAGES)
#define LENGTH 64
/* Time for which efalnd keeps a message whose post has failed. */
#define KEPT_MS 50000

static const enum ib_wr_opcode kinds[] = { IB_WR_SEND, IB_WR_RDMA_WRITE, IB_WR_RDMA_READ };

static const char *const modes[] = { "idle", "busy", "starved" };
enum mode { IDLE, BUSY, STARVED };

struct lnd_qp;

struct lnd_message {
	struct ib_cqe cqe;
	struct list_head entry;
	struct delayed_work kept;
	struct lnd_qp *queue;
	enum ib_wr_opcode kind;
};

struct lnd_qp {
	struct lnd *lnd;
	struct ib_qp *qp;
	struct lnd_qp *peer;
	struct ib_cqe receive;
	struct work_struct work;
	/* Protects the following fields, and all posts. */
	spinlock_t lock;
	struct list_head queued;
	bool is_stopped;
	struct lnd_message messages[MESSAGES];
};

/* The client's state for a device. */
struct lnd {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_cq *send_cq, *recv_cq;
	struct ib_ah *ah;
	struct ib_mr *mr;
	struct page *page;
	struct scatterlist sg;
	int mapped;
	struct ib_cqe registration;
	enum ib_wc_status registration_status;
	struct completion registered;
	/* References: one for the client, one for each work request in flight, one for each message that is kept. */
	refcount_t users;
	struct completion unused;
	struct lnd_qp queues[QPS];
};

static DEFINE_MUTEX(lnd_lock);
static bool is_on;
static enum mode mode;

/* Number of successful posts, of posts to a full queue, and of posts that failed otherwise, with the last errno. */
static atomic_t posted, full, failed, last_errno;
/* Number of completions by status, and of sends in flight. */
static atomic_t moved, flushed, others, sending;
/* Stage of the last removal. */
static const char *stage = "";

/* The test sets a kprobe here. */
noinline __noclone void lnd_mark(const char *device, const char *what);

noinline __noclone void lnd_mark(const char *device, const char *what)
{
	/* Prevents the compiler from removing the call or its arguments. */
	asm volatile("" : : "r"(device), "r"(what) : "memory");
}

static void lnd_put(struct lnd *lnd)
{
	if (refcount_dec_and_test(&lnd->users))
		complete(&lnd->unused);
}

/* Counts a post by its result. */
static int noted(struct lnd *lnd, int err)
{
	if (!err) {
		atomic_inc(&posted);
	} else {
		lnd_put(lnd);
		if (err == -ENOMEM) {
			atomic_inc(&full);
		} else {
			atomic_inc(&failed);
			atomic_set(&last_errno, -err);
			pr_err_once("lnd: a post has failed: %d\n", err);
		}
	}
	return err;
}

static void completed(const struct ib_wc *wc)
{
	if (wc->status == IB_WC_SUCCESS)
		atomic_inc(&moved);
	else if (wc->status == IB_WC_WR_FLUSH_ERR)
		atomic_inc(&flushed);
	else
		atomic_inc(&others);
}

static void message_kept_end(struct work_struct *work)
{
	struct lnd_message *message = container_of(work, struct lnd_message, kept.work);

	lnd_put(message->queue->lnd);
}

/* Posts a message. The caller holds the queue's lock. */
static int message_post(struct lnd_message *message)
{
	struct lnd_qp *queue = message->queue;
	struct lnd *lnd = queue->lnd;
	struct ib_sge sge = { .addr = sg_dma_address(&lnd->sg), .length = LENGTH, .lkey = lnd->pd->local_dma_lkey };
	struct ib_srd_rdma_wr wr = {
		.wr = {
			.wr = {
				.wr_cqe = &message->cqe,
				.opcode = message->kind,
				.send_flags = IB_SEND_SIGNALED,
				.sg_list = &sge,
				.num_sge = 1,
			},
			.ah = lnd->ah,
			.remote_qpn = queue->peer->qp->qp_num,
			.remote_qkey = QKEY,
		},
		.remote_addr = lnd->mr->iova,
		.rkey = lnd->mr->rkey,
	};
	bool is_send = message->kind == IB_WR_SEND;
	int err;

	refcount_inc(&lnd->users);
	if (is_send)
		atomic_inc(&sending);
	err = noted(lnd, ib_post_send(queue->qp, &wr.wr.wr, NULL));
	if (err && is_send)
		atomic_dec(&sending);
	return err;
}

/* Posts queued messages while there is room. */
static void queue_run(struct work_struct *work)
{
	struct lnd_qp *queue = container_of(work, struct lnd_qp, work);
	struct lnd_message *message, *next;

	guard(spinlock)(&queue->lock);
	list_for_each_entry_safe(message, next, &queue->queued, entry) {
		int err;

		if (queue->is_stopped)
			return;
		err = message_post(message);
		if (err == -ENOMEM)
			return;
		list_del(&message->entry);
		if (err) {
			refcount_inc(&queue->lnd->users);
			schedule_delayed_work(&message->kept, msecs_to_jiffies(KEPT_MS));
		}
	}
}

static void message_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct lnd_message *message = container_of(wc->wr_cqe, struct lnd_message, cqe);
	struct lnd_qp *queue = message->queue;

	completed(wc);
	if (message->kind == IB_WR_SEND)
		atomic_dec(&sending);
	scoped_guard(spinlock, &queue->lock) {
		list_add_tail(&message->entry, &queue->queued);
		if (!queue->is_stopped)
			schedule_work(&queue->work);
	}
	lnd_put(queue->lnd);
}

/* Posts a receive, for which there is room. */
static void receive_post(struct lnd_qp *queue)
{
	struct lnd *lnd = queue->lnd;
	struct ib_sge sge = { .addr = sg_dma_address(&lnd->sg), .length = LENGTH, .lkey = lnd->pd->local_dma_lkey };
	struct ib_recv_wr wr = { .wr_cqe = &queue->receive, .sg_list = &sge, .num_sge = 1 };

	guard(spinlock)(&queue->lock);
	if (!queue->is_stopped) {
		refcount_inc(&lnd->users);
		noted(lnd, ib_post_recv(queue->qp, &wr, NULL));
	}
}

static void receive_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct lnd_qp *queue = container_of(wc->wr_cqe, struct lnd_qp, receive);

	completed(wc);
	receive_post(queue);
	lnd_put(queue->lnd);
}

static void registration_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct lnd *lnd = container_of(wc->wr_cqe, struct lnd, registration);

	lnd->registration_status = wc->status;
	complete(&lnd->registered);
	lnd_put(lnd);
}

/* Registers the page for peers. */
static int region_open(struct lnd *lnd)
{
	struct ib_reg_wr wr = {
		.wr = {
			.wr_cqe = &lnd->registration,
			.opcode = IB_WR_REG_MR,
			.send_flags = IB_SEND_SIGNALED,
		},
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE,
	};
	struct ib_mr *mr = ib_alloc_mr(lnd->pd, IB_MR_TYPE_MEM_REG, 1);
	int err;

	if (IS_ERR(mr))
		return PTR_ERR(mr);
	lnd->mr = mr;
	if (ib_map_mr_sg(mr, &lnd->sg, 1, NULL, PAGE_SIZE) != 1)
		return -EINVAL;
	efa_inc_fast_reg_key_gen(mr);
	wr.mr = mr;
	wr.key = mr->rkey;
	refcount_inc(&lnd->users);
	err = noted(lnd, ib_post_send(lnd->queues[0].qp, &wr.wr, NULL));
	if (err)
		return err;
	if (!wait_for_completion_timeout(&lnd->registered, msecs_to_jiffies(PATIENCE_MS)))
		return -ETIMEDOUT;
	return lnd->registration_status ? -EIO : 0;
}

static int queue_open(struct lnd_qp *queue)
{
	struct lnd *lnd = queue->lnd;
	struct ib_qp_init_attr attr = {
		.send_cq = lnd->send_cq,
		.recv_cq = lnd->recv_cq,
		.cap = {
			.max_send_wr = DEPTH,
			.max_recv_wr = DEPTH,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = EFA_QPT_SRD,
	};
	struct ib_qp *qp = ib_create_qp(lnd->pd, &attr);

	if (IS_ERR(qp))
		return PTR_ERR(qp);
	queue->qp = qp;
	return to_rts(qp);
}

/* Waits until all work requests have completed and no message is kept, and frees all objects. */
static void lnd_close(struct lnd *lnd)
{
	int i;

	stage = "stops";
	for (i = 0; i < QPS; i++) {
		scoped_guard(spinlock, &lnd->queues[i].lock)
			lnd->queues[i].is_stopped = true;
		cancel_work_sync(&lnd->queues[i].work);
	}
	stage = "modifies";
	for (i = 0; i < QPS; i++)
		if (lnd->queues[i].qp)
			to_state(lnd->queues[i].qp, IB_QPS_ERR);
	stage = "waits";
	lnd_put(lnd);
	if (!wait_for_completion_timeout(&lnd->unused, msecs_to_jiffies(PATIENCE_MS))) {
		/* The work requests may complete later, so nothing is freed. */
		pr_err("lnd: %u work requests have not completed\n", refcount_read(&lnd->users));
		return;
	}
	stage = "destroys";
	for (i = 0; i < QPS; i++)
		if (lnd->queues[i].qp)
			ib_destroy_qp(lnd->queues[i].qp);
	if (lnd->mr)
		ib_dereg_mr(lnd->mr);
	if (lnd->ah)
		rdma_destroy_ah(lnd->ah, RDMA_DESTROY_AH_SLEEPABLE);
	if (lnd->recv_cq)
		ib_free_cq(lnd->recv_cq);
	if (lnd->send_cq)
		ib_free_cq(lnd->send_cq);
	if (lnd->mapped)
		ib_dma_unmap_sg(lnd->dev, &lnd->sg, 1, DMA_BIDIRECTIONAL);
	if (lnd->page)
		__free_page(lnd->page);
	if (lnd->pd)
		ib_dealloc_pd(lnd->pd);
	kfree(lnd);
	stage = "";
}

static struct ib_cq *cq_open(struct lnd *lnd)
{
	struct ib_cq *cq = ib_alloc_cq(lnd->dev, lnd, ENTRIES, 0, IB_POLL_WORKQUEUE);

	return IS_ERR(cq) ? NULL : cq;
}

static int lnd_open(struct lnd *lnd)
{
	union ib_gid gid;
	struct ib_pd *pd = ib_alloc_pd(lnd->dev, 0);
	struct ib_ah *ah;
	int err, i;

	if (IS_ERR(pd))
		return PTR_ERR(pd);
	lnd->pd = pd;
	lnd->page = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!lnd->page)
		return -ENOMEM;
	sg_init_table(&lnd->sg, 1);
	sg_set_page(&lnd->sg, lnd->page, PAGE_SIZE, 0);
	lnd->mapped = ib_dma_map_sg(lnd->dev, &lnd->sg, 1, DMA_BIDIRECTIONAL);
	lnd->send_cq = cq_open(lnd);
	lnd->recv_cq = cq_open(lnd);
	if (!lnd->mapped || !lnd->send_cq || !lnd->recv_cq)
		return -ENOMEM;
	err = rdma_query_gid(lnd->dev, 1, 0, &gid);
	if (err)
		return err;
	ah = ah_of(lnd->pd, &gid);
	if (IS_ERR(ah))
		return PTR_ERR(ah);
	lnd->ah = ah;
	for (i = 0; i < QPS && !err; i++)
		err = queue_open(&lnd->queues[i]);
	return err ?: region_open(lnd);
}

static void queue_init(struct lnd *lnd, int index)
{
	struct lnd_qp *queue = &lnd->queues[index];
	int i;

	queue->lnd = lnd;
	queue->peer = &lnd->queues[(index + 1) % QPS];
	queue->receive.done = receive_done;
	INIT_WORK(&queue->work, queue_run);
	spin_lock_init(&queue->lock);
	INIT_LIST_HEAD(&queue->queued);
	for (i = 0; i < MESSAGES; i++) {
		struct lnd_message *message = &queue->messages[i];

		message->cqe.done = message_done;
		message->queue = queue;
		message->kind = kinds[i % ARRAY_SIZE(kinds)];
		INIT_DELAYED_WORK(&message->kept, message_kept_end);
		list_add_tail(&message->entry, &queue->queued);
	}
}

static struct ib_client lnd_client;

static int lnd_add(struct ib_device *dev)
{
	struct lnd *lnd = kzalloc(sizeof(*lnd), GFP_KERNEL);
	int err, i, j;

	if (!lnd)
		return -ENOMEM;
	lnd->dev = dev;
	lnd->registration.done = registration_done;
	init_completion(&lnd->registered);
	refcount_set(&lnd->users, 1);
	init_completion(&lnd->unused);
	for (i = 0; i < QPS; i++)
		queue_init(lnd, i);
	err = lnd_open(lnd);
	if (err) {
		pr_err("lnd: %s could not be opened: %d\n", dev_name(dev->dev.parent), err);
		lnd_close(lnd);
		return err;
	}
	ib_set_client_data(dev, &lnd_client, lnd);
	for (i = 0; i < QPS; i++) {
		for (j = 0; j < DEPTH && mode != STARVED; j++)
			receive_post(&lnd->queues[i]);
		if (mode != IDLE)
			schedule_work(&lnd->queues[i].work);
	}
	return 0;
}

static void lnd_remove(struct ib_device *dev, void *data)
{
	const char *name = dev_name(dev->dev.parent);

	lnd_mark(name, "removing");
	lnd_close(data);
	lnd_mark(name, "removed");
}

static struct ib_client lnd_client = {
	.name = "kverbs_lnd",
	.add = lnd_add,
	.remove = lnd_remove,
};

void lnd_exit(void)
{
	guard(mutex)(&lnd_lock);
	if (is_on)
		ib_unregister_client(&lnd_client);
	is_on = false;
}

static int lnd_set(const char *value, const struct kernel_param *param)
{
	atomic_t *counters[] = { &posted, &full, &failed, &last_errno, &moved, &flushed, &others };
	int err, i;

	lnd_exit();
	if (sysfs_streq(value, "end"))
		return 0;
	err = sysfs_match_string(modes, value);
	if (err < 0)
		return err;

	guard(mutex)(&lnd_lock);
	mode = err;
	for (i = 0; i < ARRAY_SIZE(counters); i++)
		atomic_set(counters[i], 0);
	err = ib_register_client(&lnd_client);
	is_on = !err;
	return err;
}

static int lnd_get(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "posted %d full %d failed %d errno %d moved %d flushed %d others %d sending %d stage %s\n",
			  atomic_read(&posted), atomic_read(&full), atomic_read(&failed), atomic_read(&last_errno),
			  atomic_read(&moved), atomic_read(&flushed), atomic_read(&others), atomic_read(&sending), stage);
}

static const struct kernel_param_ops lnd_ops = { .set = lnd_set, .get = lnd_get };
module_param_cb(lnd, &lnd_ops, NULL, 0600);
MODULE_PARM_DESC(lnd, "How a client as Lustre's uses each device: idle, busy, starved, or end");
