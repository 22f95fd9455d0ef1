// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Sends messages from the first device to itself, and marks one call of each round for count.rs. Depends
 * on rdma/ib_verbs.h and efa_verbs.h only, so that it works with each driver that has kernel verbs.
 *
 * Writing `CALL KIND COUNT` to its parameter `round` runs a round of COUNT messages of that kind, in which
 * CALL is marked. The write fails with EAGAIN if a marked poll finds fewer than COUNT completions.
 */

#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

#include "setup.h"

/* Depth of each queue, and maximum number of messages in a round. */
#define DEPTH 64
#define MOST 16
#define SIZE 64
#define INLINE_SIZE 32
#define PATIENCE_MS 20000

#define START 1
#define END 2

/* Executes a mark for count.rs: a no-op with a displacement that no compiler would use. */
static __always_inline void mark(const u32 what)
{
	asm volatile("nopl %c0(%%rax)" : : "i"(0x6fa00000 | what) : "memory");
}

/* Makes a call, marked or not. A marked call runs with interrupts disabled, so that none is counted. */
#define CALL(is_marked, call)				\
({							\
	unsigned long flags;				\
	int ret;					\
							\
	if (is_marked) {				\
		local_irq_save(flags);			\
		mark(START);				\
		ret = call;				\
		mark(END);				\
		local_irq_restore(flags);		\
	} else {					\
		ret = call;				\
	}						\
	ret;						\
})

static DEFINE_MUTEX(lock);
static struct ib_device *device;

static struct ib_pd *pd;
static struct ib_cq *send_cq, *recv_cq;
static struct ib_qp *qp;
static struct ib_ah *ah;
static struct ib_mr *mr;
static struct page *page;
static struct scatterlist sg;
static struct ib_wc wcs[MOST];

static struct ib_sge sges[MOST];
static struct ib_recv_wr recvs[MOST];
static struct ib_srd_rdma_wr sends[MOST];

/* Polls COUNT completions, and fails unless all are successes. */
static int take_all(struct ib_cq *cq, int count)
{
	unsigned long until = jiffies + msecs_to_jiffies(PATIENCE_MS);
	int got;

	while (count) {
		got = ib_poll_cq(cq, 1, wcs);
		if (got < 0)
			return got;
		if (!got) {
			if (time_after(jiffies, until))
				return -ETIMEDOUT;
			usleep_range(50, 100);
			continue;
		}
		if (wcs[0].status) {
			pr_err("completion: %s\n", ib_wc_status_msg(wcs[0].status));
			return -EIO;
		}
		count--;
	}
	return 0;
}

/* Registers the page in the memory region, for writes of peers. */
static int register_region(bool is_marked)
{
	struct ib_reg_wr wr = {
		.wr = { .opcode = IB_WR_REG_MR, .send_flags = IB_SEND_SIGNALED },
		.mr = mr,
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE,
	};
	int err;

	if (ib_map_mr_sg(mr, &sg, 1, NULL, PAGE_SIZE) != 1)
		return -EINVAL;
	efa_inc_fast_reg_key_gen(mr);
	wr.key = mr->rkey;
	err = CALL(is_marked, ib_post_send(qp, &wr.wr, NULL));
	return err ?: take_all(send_cq, 1);
}

static int invalidate_region(bool is_marked)
{
	struct ib_send_wr wr = {
		.opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED,
		.ex.invalidate_rkey = mr->rkey,
	};
	int err = CALL(is_marked, ib_post_send(qp, &wr, NULL));

	return err ?: take_all(send_cq, 1);
}

static void tear_down(void)
{
	if (mr)
		ib_dereg_mr(mr);
	if (ah)
		rdma_destroy_ah(ah, RDMA_DESTROY_AH_SLEEPABLE);
	if (qp)
		ib_destroy_qp(qp);
	if (recv_cq)
		ib_destroy_cq(recv_cq);
	if (send_cq)
		ib_destroy_cq(send_cq);
	if (sg_dma_len(&sg))
		ib_dma_unmap_sg(device, &sg, 1, DMA_BIDIRECTIONAL);
	if (page)
		__free_page(page);
	if (pd)
		ib_dealloc_pd(pd);
}

static int make_queues(void)
{
	struct ib_cq_init_attr cq_attr = { .cqe = DEPTH };
	struct ib_qp_init_attr attr = {
		.cap = {
			.max_send_wr = DEPTH,
			.max_recv_wr = DEPTH,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = INLINE_SIZE,
		},
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = EFA_QPT_SRD,
	};
	int err;

	err = KEEP(pd, ib_alloc_pd(device, 0));
	err = err ?: KEEP(send_cq, ib_create_cq(device, NULL, NULL, NULL, &cq_attr));
	err = err ?: KEEP(recv_cq, ib_create_cq(device, NULL, NULL, NULL, &cq_attr));
	attr.send_cq = send_cq;
	attr.recv_cq = recv_cq;
	err = err ?: KEEP(qp, ib_create_qp(pd, &attr));
	return err ?: to_rts(qp);
}

static int make_memory(void)
{
	union ib_gid gid;
	int err;

	err = rdma_query_gid(device, 1, 0, &gid);
	if (err)
		return err;
	err = KEEP(ah, ah_of(pd, &gid));
	if (err)
		return err;

	page = alloc_page(GFP_KERNEL);
	if (!page)
		return -ENOMEM;
	sg_init_table(&sg, 1);
	sg_set_page(&sg, page, PAGE_SIZE, 0);
	if (ib_dma_map_sg(device, &sg, 1, DMA_BIDIRECTIONAL) != 1)
		return -ENOMEM;
	err = KEEP(mr, ib_alloc_mr(pd, IB_MR_TYPE_MEM_REG, 1));
	return err ?: register_region(false);
}

static void prepare(enum ib_wr_opcode opcode, bool is_inline, int count)
{
	int i;

	for (i = 0; i < count; i++) {
		bool is_last = i + 1 == count;

		sges[i] = (struct ib_sge) {
			.addr = is_inline ? (uintptr_t)page_address(page) : sg_dma_address(&sg),
			.length = is_inline ? INLINE_SIZE : SIZE,
			.lkey = pd->local_dma_lkey,
		};
		sends[i] = (struct ib_srd_rdma_wr) {
			.wr = {
				.wr = {
					.wr_id = i,
					.opcode = opcode,
					.send_flags = IB_SEND_SIGNALED | (is_inline ? IB_SEND_INLINE : 0),
					.sg_list = &sges[i],
					.num_sge = 1,
					.next = is_last ? NULL : &sends[i + 1].wr.wr,
				},
				.ah = ah,
				.remote_qpn = qp->qp_num,
				.remote_qkey = QKEY,
			},
			.remote_addr = mr->iova,
			.rkey = mr->rkey,
		};
	}
}

static void prepare_recvs(struct ib_sge *sge, int count)
{
	int i;

	*sge = (struct ib_sge) { .addr = sg_dma_address(&sg), .length = SIZE, .lkey = pd->local_dma_lkey };
	for (i = 0; i < count; i++) {
		recvs[i] = (struct ib_recv_wr) {
			.wr_id = i,
			.sg_list = sge,
			.num_sge = 1,
			.next = i + 1 == count ? NULL : &recvs[i + 1],
		};
	}
}

/* Polls COUNT completions by one marked call. */
static int poll_marked(struct ib_cq *cq, int count)
{
	int got, err;

	/* Leaves time for the completions that follow those polled before. */
	msleep(20);
	got = CALL(true, ib_poll_cq(cq, count, wcs));
	if (got < 0)
		return got;
	if (got == count)
		return 0;
	err = take_all(cq, count - got);
	return err ?: -EAGAIN;
}

static int messages(const char *call, const char *kind, int count)
{
	bool is_write = !strcmp(kind, "write"), is_inline = !strcmp(kind, "inline");
	int err = 0, recv_count = is_write ? 0 : count;
	struct ib_sge sge;

	prepare(is_write ? IB_WR_RDMA_WRITE : IB_WR_SEND, is_inline, count);
	prepare_recvs(&sge, count);
	if (!is_write)
		err = CALL(!strcmp(call, "post_recv"), ib_post_recv(qp, recvs, NULL));
	err = err ?: CALL(!strcmp(call, "post_send"), ib_post_send(qp, &sends[0].wr.wr, NULL));
	if (err)
		return err;

	if (!strcmp(call, "poll_send"))
		return take_all(recv_cq, recv_count) ?: poll_marked(send_cq, count);
	err = take_all(send_cq, count);
	if (!err && !strcmp(call, "poll_recv"))
		return poll_marked(recv_cq, recv_count);
	err = err ?: take_all(recv_cq, recv_count);
	if (!err && !strcmp(call, "poll_empty"))
		err = CALL(true, ib_poll_cq(send_cq, MOST, wcs));
	return err;
}

static int run(const char *call, const char *kind, int count)
{
	if (!qp || !mr)
		return -ENODEV;
	if (count < 1 || count > MOST)
		return -EINVAL;
	if (!strcmp(kind, "region"))
		return invalidate_region(!strcmp(call, "invalidate")) ?: register_region(!strcmp(call, "register"));
	return messages(call, kind, count);
}

static int round_set(const char *value, const struct kernel_param *param)
{
	char call[16], kind[16];
	int count, err;

	if (sscanf(value, "%15s %15s %d", call, kind, &count) != 3)
		return -EINVAL;
	mutex_lock(&lock);
	err = run(call, kind, count);
	mutex_unlock(&lock);
	return err;
}

static const struct kernel_param_ops round_ops = { .set = round_set };
module_param_cb(round, &round_ops, NULL, 0200);
MODULE_PARM_DESC(round, "Runs a round: the marked call, the kind of its work requests, their number");

static int add_one(struct ib_device *dev)
{
	int err;

	/* One device is enough. */
	if (device)
		return 0;
	mutex_lock(&lock);
	device = dev;
	err = make_queues() ?: make_memory();
	if (err)
		pr_err("no queues: %d\n", err);
	mutex_unlock(&lock);
	return 0;
}

static void remove_one(struct ib_device *dev, void *data)
{
	mutex_lock(&lock);
	if (device == dev)
		tear_down();
	mutex_unlock(&lock);
}

static struct ib_client client = {
	.name = "bench_client",
	.add = add_one,
	.remove = remove_one,
};

static int __init bench_init(void)
{
	return ib_register_client(&client);
}

static void __exit bench_exit(void)
{
	ib_unregister_client(&client);
}

module_init(bench_init);
module_exit(bench_exit);
MODULE_DESCRIPTION("Client of kernel verbs, of which calls are counted");
MODULE_LICENSE("Dual BSD/GPL");
