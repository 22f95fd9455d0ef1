// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Data between two machines, in both directions at once: messages and calls. In a call, the peer reads a
 * region of the caller, checks it and writes its answer there. A region is registered for one call.
 *
 * A line written to debugfs, kverbs_client/run, starts each side; a read returns the result:
 *
 *   open QPS                  Creates QPS queue pairs. The result is their GID and their numbers.
 *   meet GID QPN...           Sets the GID and the queue pairs of the peer.
 *   exchange COUNT SIZE       Makes and serves COUNT calls of SIZE bytes. The result is the duration.
 *   send COUNT SIZE           Sends and receives COUNT messages of SIZE bytes. The result is the duration.
 *   close                     Destroys the queue pairs.
 */

#include <linux/bitmap.h>
#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/dma-mapping.h>
#include <linux/hex.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <rdma/ib_cache.h>

#include "client.h"

#define MAX_QPS 8
#define DEPTH 32
#define RECEIVES 16
#define RECEIVE_SIZE 8192
/* Number of concurrent calls of a queue pair. The peer makes as many. */
#define SLOTS 8
#define MAX_SIZE 65536
#define PAGES (MAX_SIZE / PAGE_SIZE)

enum kind { DATA, CALL, ANSWER };

/* Header of each message. */
struct message {
	__le32 kind;
	__le32 slot;
	/* The number of a message, or of a call. */
	__le64 seed;
	/* The caller's region. */
	__le64 addr;
	__le32 rkey;
	__le32 length;
};

/* Memory that the device reads and writes. */
struct area {
	void *data;
	u64 dma;
	size_t size;
};

/* A call of this side. */
struct call {
	struct ib_mr *mr;
	u8 *region;
	struct scatterlist sg[PAGES];
	int mapped;
	struct area message;
	u64 seed;
	ktime_t begin;
	/* Whether the device may still read the message, the answer has arrived, and the key is invalidated. */
	bool sending, answered, invalid;
};

/* A call of the peer, or a message of this side. */
struct answer {
	struct message call;
	struct area data, message;
};

struct queue {
	struct ib_qp *qp;
	u32 peer_qpn;
	struct area receives;
	struct call calls[SLOTS];
	struct answer answers[SLOTS];
};

static struct exchange {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_ah *peer;
	struct completion event;
	union ib_gid gid;
	int qps;
	struct queue queues[MAX_QPS];
	/* The current run: number and size of calls or messages, and the set of received messages. */
	u64 count, size;
	unsigned long *seen;
	/* Calls or messages that have begun, have ended and were served for the peer; requests in flight on send queues. */
	u64 begun, ended, served, posted;
	u64 latency_ns;
} exchange;

static char answer[512];

/* Purpose of a work request, in its id. */
enum work { WORK_RECEIVE, WORK_REGISTER, WORK_SEND_CALL, WORK_INVALIDATE, WORK_READ, WORK_WRITE, WORK_SEND_ANSWER, WORK_SEND_DATA };

static u64 id_of(enum work work, int queue, int slot)
{
	return (u64)work << 32 | queue << 16 | slot;
}

static u8 pattern(u64 seed, u64 i)
{
	return seed * 31 + (seed >> 8) + i + (i >> 8);
}

static void pattern_fill(u8 *data, u64 seed, size_t length)
{
	size_t i;

	for (i = 0; i < length; i++)
		data[i] = pattern(seed, i);
}

static int pattern_check(const u8 *data, u64 seed, size_t length)
{
	size_t i;

	for (i = 0; i < length; i++) {
		if (data[i] != pattern(seed, i)) {
			pr_err("byte %zu of %zu of number %llu is %#x, not %#x\n", i, length, seed, data[i], pattern(seed, i));
			return -EBADMSG;
		}
	}
	return 0;
}

static void area_close(struct area *area)
{
	if (area->data)
		ib_dma_unmap_single(exchange.dev, area->dma, area->size, DMA_BIDIRECTIONAL);
	kfree(area->data);
	area->data = NULL;
}

static int area_open(struct area *area, size_t size)
{
	area->size = size;
	area->data = kzalloc(size, GFP_KERNEL);
	if (!area->data)
		return -ENOMEM;
	area->dma = ib_dma_map_single(exchange.dev, area->data, size, DMA_BIDIRECTIONAL);
	if (!ib_dma_mapping_error(exchange.dev, area->dma))
		return 0;
	kfree(area->data);
	area->data = NULL;
	return -ENOMEM;
}

static void area_to_device(struct area *area)
{
	ib_dma_sync_single_for_device(exchange.dev, area->dma, area->size, DMA_BIDIRECTIONAL);
}

static void area_to_cpu(struct area *area)
{
	ib_dma_sync_single_for_cpu(exchange.dev, area->dma, area->size, DMA_BIDIRECTIONAL);
}

static void call_close(struct call *call)
{
	if (call->mr)
		ib_dereg_mr(call->mr);
	if (call->mapped)
		ib_dma_unmap_sg(exchange.dev, call->sg, PAGES, DMA_BIDIRECTIONAL);
	vfree(call->region);
	area_close(&call->message);
}

static int call_open(struct call *call)
{
	int i;

	/* Scattered pages. */
	call->region = vmalloc(MAX_SIZE);
	if (!call->region)
		return -ENOMEM;
	sg_init_table(call->sg, PAGES);
	for (i = 0; i < PAGES; i++)
		sg_set_page(&call->sg[i], vmalloc_to_page(call->region + i * PAGE_SIZE), PAGE_SIZE, 0);
	call->mapped = ib_dma_map_sg(exchange.dev, call->sg, PAGES, DMA_BIDIRECTIONAL);
	if (!call->mapped)
		return -ENOMEM;
	call->mr = ib_alloc_mr(exchange.pd, IB_MR_TYPE_MEM_REG, PAGES);
	if (IS_ERR(call->mr)) {
		int err = PTR_ERR(call->mr);

		call->mr = NULL;
		return err;
	}
	return area_open(&call->message, sizeof(struct message));
}

static int receive(int number, int index)
{
	struct queue *queue = &exchange.queues[number];
	struct ib_sge sge = {
		.addr = queue->receives.dma + index * RECEIVE_SIZE,
		.length = RECEIVE_SIZE,
		.lkey = exchange.pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_id = id_of(WORK_RECEIVE, number, index), .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(queue->qp, &wr, NULL);
}

static void on_completion(struct ib_cq *cq, void *context)
{
	complete(&exchange.event);
}

static int queue_open(int number)
{
	struct queue *queue = &exchange.queues[number];
	struct ib_qp_init_attr attr = {
		.send_cq = exchange.cq,
		.recv_cq = exchange.cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_ALL_WR,
		.qp_type = EFA_QPT_SRD,
	};
	struct ib_qp *qp = ib_create_qp(exchange.pd, &attr);
	int err, i;

	if (IS_ERR(qp))
		return PTR_ERR(qp);
	queue->qp = qp;
	err = to_rts(qp);
	if (!err)
		err = area_open(&queue->receives, RECEIVES * RECEIVE_SIZE);
	for (i = 0; i < RECEIVES && !err; i++)
		err = receive(number, i);
	for (i = 0; i < SLOTS && !err; i++) {
		err = call_open(&queue->calls[i]);
		if (!err)
			err = area_open(&queue->answers[i].data, MAX_SIZE);
		if (!err)
			err = area_open(&queue->answers[i].message, sizeof(struct message));
	}
	return err;
}

static void queue_close(struct queue *queue)
{
	int i;

	/* The queue pair uses the memory, so it is destroyed first. */
	if (queue->qp)
		ib_destroy_qp(queue->qp);
	for (i = 0; i < SLOTS; i++) {
		call_close(&queue->calls[i]);
		area_close(&queue->answers[i].data);
		area_close(&queue->answers[i].message);
	}
	area_close(&queue->receives);
}

static void exchange_close(void)
{
	int i;

	for (i = 0; i < exchange.qps; i++)
		queue_close(&exchange.queues[i]);
	if (exchange.peer)
		rdma_destroy_ah(exchange.peer, RDMA_DESTROY_AH_SLEEPABLE);
	if (exchange.cq)
		ib_destroy_cq(exchange.cq);
	if (exchange.pd)
		ib_dealloc_pd(exchange.pd);
	memset(&exchange, 0, sizeof(exchange));
}

static int exchange_open(int qps)
{
	struct ib_cq_init_attr cq_attr = { .cqe = 4 * DEPTH * qps };
	struct ib_pd *pd;
	struct ib_cq *cq;
	int err, i, length;

	if (qps < 1 || qps > MAX_QPS)
		return -EINVAL;
	exchange_close();
	exchange.dev = devices[0];
	init_completion(&exchange.event);
	pd = ib_alloc_pd(exchange.dev, 0);
	if (IS_ERR(pd)) {
		err = PTR_ERR(pd);
		goto close;
	}
	exchange.pd = pd;
	cq = ib_create_cq(exchange.dev, on_completion, NULL, NULL, &cq_attr);
	if (IS_ERR(cq)) {
		err = PTR_ERR(cq);
		goto close;
	}
	exchange.cq = cq;
	exchange.qps = qps;
	for (i = 0; i < qps; i++) {
		err = queue_open(i);
		if (err)
			goto close;
	}
	err = rdma_query_gid(exchange.dev, 1, 0, &exchange.gid);
	if (err)
		goto close;

	length = scnprintf(answer, sizeof(answer), "%*phN", 16, exchange.gid.raw);
	for (i = 0; i < qps; i++)
		length += scnprintf(answer + length, sizeof(answer) - length, " %u", exchange.queues[i].qp->qp_num);
	return 0;
close:
	exchange_close();
	return err;
}

/* Parses the peer's answer to `open`. */
static int exchange_meet(char *line)
{
	char *word = strsep(&line, " ");
	union ib_gid gid;
	struct ib_ah *ah;
	int err, i;

	if (exchange.peer || !word || strlen(word) != 32 || hex2bin(gid.raw, word, sizeof(gid.raw)))
		return -EINVAL;
	for (i = 0; i < exchange.qps; i++) {
		word = strsep(&line, " ");
		err = word ? kstrtou32(word, 10, &exchange.queues[i].peer_qpn) : -EINVAL;
		if (err)
			return err;
	}
	ah = ah_of(exchange.pd, &gid);
	if (IS_ERR(ah))
		return PTR_ERR(ah);
	exchange.peer = ah;
	return 0;
}

/* Posts to the peer's queue pair of the same index: a message, or an access to the region of a call. */
static int post(int number, u64 id, enum ib_wr_opcode opcode, struct area *area, u32 length, const struct message *call)
{
	struct queue *queue = &exchange.queues[number];
	struct ib_sge sge = { .addr = area->dma, .length = length, .lkey = exchange.pd->local_dma_lkey };
	struct ib_srd_rdma_wr wr = {
		.wr = {
			.wr = {
				.wr_id = id,
				.opcode = opcode,
				.send_flags = IB_SEND_SIGNALED,
				.sg_list = &sge,
				.num_sge = 1,
			},
			.ah = exchange.peer,
			.remote_qpn = queue->peer_qpn,
			.remote_qkey = QKEY,
		},
	};
	int err;

	if (call) {
		wr.remote_addr = le64_to_cpu(call->addr);
		wr.rkey = le32_to_cpu(call->rkey);
		wr.wr.wr.ex.imm_data = cpu_to_be32(le32_to_cpu(call->slot));
	}
	area_to_device(area);
	err = ib_post_send(queue->qp, &wr.wr.wr, NULL);
	if (!err)
		exchange.posted++;
	return err;
}

/* Begins a call with the registration of its region. */
static int call_begin(int number, int slot)
{
	struct queue *queue = &exchange.queues[number];
	struct call *call = &queue->calls[slot];
	struct ib_reg_wr wr = {
		.wr = {
			.wr_id = id_of(WORK_REGISTER, number, slot),
			.opcode = IB_WR_REG_MR,
			.send_flags = IB_SEND_SIGNALED,
		},
		.mr = call->mr,
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE,
	};
	int pages = DIV_ROUND_UP(exchange.size, PAGE_SIZE), err;

	call->begin = ktime_get();
	call->seed = exchange.begun++;
	call->answered = false;
	call->invalid = false;
	pattern_fill(call->region, call->seed, exchange.size);
	dma_sync_sg_for_device(exchange.dev->dma_device, call->sg, PAGES, DMA_BIDIRECTIONAL);

	err = ib_map_mr_sg(call->mr, call->sg, pages, NULL, PAGE_SIZE);
	if (err != pages)
		return err < 0 ? err : -EBADMSG;
	efa_inc_fast_reg_key_gen(call->mr);
	wr.key = call->mr->rkey;
	err = ib_post_send(queue->qp, &wr.wr, NULL);
	if (!err)
		exchange.posted++;
	return err;
}

static int message_send(int number, u64 id, struct area *area, const struct message *message)
{
	memcpy(area->data, message, sizeof(*message));
	return post(number, id, IB_WR_SEND, area, sizeof(*message), NULL);
}

/* Sends the call to the peer, as its region is registered. */
static int call_registered(int number, int slot)
{
	struct call *call = &exchange.queues[number].calls[slot];
	struct message message = {
		.kind = cpu_to_le32(CALL),
		.slot = cpu_to_le32(slot),
		.seed = cpu_to_le64(call->seed),
		.addr = cpu_to_le64(call->mr->iova),
		.rkey = cpu_to_le32(call->mr->rkey),
		.length = cpu_to_le32(exchange.size),
	};

	call->sending = true;
	return message_send(number, id_of(WORK_SEND_CALL, number, slot), &call->message, &message);
}

/* Ends a call once its key is invalidated and its message is sent, and begins the next call. */
static int call_end(int number, int slot)
{
	struct call *call = &exchange.queues[number].calls[slot];

	if (call->sending || !call->invalid)
		return 0;
	call->invalid = false;
	exchange.ended++;
	return exchange.begun < exchange.count ? call_begin(number, slot) : 0;
}

/* Checks the answer, which has arrived in the region, and invalidates the region. */
static int call_answered(int number, int slot)
{
	struct queue *queue = &exchange.queues[number];
	struct call *call = &queue->calls[slot];
	struct ib_send_wr wr = {
		.wr_id = id_of(WORK_INVALIDATE, number, slot),
		.opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED,
		.ex.invalidate_rkey = call->mr->rkey,
	};
	int err;

	if (call->answered) {
		pr_err("call %llu is answered twice\n", call->seed);
		return -EBADMSG;
	}
	call->answered = true;
	exchange.latency_ns += ktime_to_ns(ktime_sub(ktime_get(), call->begin));
	dma_sync_sg_for_cpu(exchange.dev->dma_device, call->sg, PAGES, DMA_BIDIRECTIONAL);
	err = pattern_check(call->region, ~call->seed, exchange.size);
	if (!err)
		err = ib_post_send(queue->qp, &wr, NULL);
	if (!err)
		exchange.posted++;
	return err;
}

/* Serves a call of the peer: reads its region. */
static int serve_call(int number, const struct message *call)
{
	u32 slot = le32_to_cpu(call->slot), length = le32_to_cpu(call->length);
	struct answer *answer;

	if (slot >= SLOTS || length > MAX_SIZE)
		return -EBADMSG;
	answer = &exchange.queues[number].answers[slot];
	answer->call = *call;
	return post(number, id_of(WORK_READ, number, slot), IB_WR_RDMA_READ, &answer->data, length, call);
}

/* Writes the answer. In every other slot, immediate data announces it; in the others, a message follows. */
static int serve_write(int number, int slot)
{
	struct answer *answer = &exchange.queues[number].answers[slot];
	u64 seed = le64_to_cpu(answer->call.seed);
	u32 length = le32_to_cpu(answer->call.length);
	int err;

	area_to_cpu(&answer->data);
	err = pattern_check(answer->data.data, seed, length);
	if (err)
		return err;
	pattern_fill(answer->data.data, ~seed, length);
	return post(number, id_of(WORK_WRITE, number, slot), slot % 2 ? IB_WR_RDMA_WRITE : IB_WR_RDMA_WRITE_WITH_IMM, &answer->data,
		    length, &answer->call);
}

static int serve_answer(int number, int slot)
{
	struct answer *answer = &exchange.queues[number].answers[slot];
	struct message message = answer->call;

	if (slot % 2 == 0) {
		exchange.served++;
		return 0;
	}
	message.kind = cpu_to_le32(ANSWER);
	return message_send(number, id_of(WORK_SEND_ANSWER, number, slot), &answer->message, &message);
}

/* Sends a message whose contents follow from its number. */
static int data_begin(int number, int slot)
{
	struct area *area = &exchange.queues[number].answers[slot].data;
	struct message message = {
		.kind = cpu_to_le32(DATA),
		.slot = cpu_to_le32(slot),
		.seed = cpu_to_le64(exchange.begun),
		.length = cpu_to_le32(exchange.size - sizeof(message)),
	};

	memcpy(area->data, &message, sizeof(message));
	pattern_fill(area->data + sizeof(message), exchange.begun++, exchange.size - sizeof(message));
	return post(number, id_of(WORK_SEND_DATA, number, slot), IB_WR_SEND, area, exchange.size, NULL);
}

static int data_received(const struct message *message, u32 length)
{
	u64 seed = le64_to_cpu(message->seed);
	/* Checked first, as a wrong bit in the number makes the contents wrong, too. */
	int err = pattern_check((const u8 *)(message + 1), seed, length - sizeof(*message));

	if (err)
		return err;
	if (!exchange.seen || seed >= exchange.count || length != exchange.size || test_and_set_bit(seed, exchange.seen)) {
		pr_err("unexpected message %llu of %u bytes\n", seed, length);
		return -EBADMSG;
	}
	exchange.served++;
	return 0;
}

static int received(int number, int index, const struct ib_wc *wc)
{
	struct queue *queue = &exchange.queues[number];
	const struct message *message = queue->receives.data + index * RECEIVE_SIZE;
	u32 slot;
	int err;

	if (wc->opcode == IB_WC_RECV_RDMA_WITH_IMM) {
		slot = be32_to_cpu(wc->ex.imm_data);
		err = slot < SLOTS ? call_answered(number, slot) : -EBADMSG;
		return err ?: receive(number, index);
	}
	if (wc->opcode != IB_WC_RECV || wc->byte_len < sizeof(*message))
		return -EBADMSG;
	area_to_cpu(&queue->receives);
	switch (le32_to_cpu(message->kind)) {
	case DATA:
		err = data_received(message, wc->byte_len);
		break;
	case CALL:
		err = serve_call(number, message);
		break;
	case ANSWER:
		slot = le32_to_cpu(message->slot);
		err = slot < SLOTS ? call_answered(number, slot) : -EBADMSG;
		break;
	default:
		pr_err("message of unknown kind %#x\n", le32_to_cpu(message->kind));
		err = -EBADMSG;
	}
	return err ?: receive(number, index);
}

static int completed(const struct ib_wc *wc)
{
	enum work work = wc->wr_id >> 32;
	int number = wc->wr_id >> 16 & 0xffff, slot = wc->wr_id & 0xffff;
	struct call *call = &exchange.queues[number].calls[slot % SLOTS];

	if (wc->status) {
		/* The device of this side was removed. */
		if (wc->status == IB_WC_WR_FLUSH_ERR)
			return -EIO;
		pr_err("work request %llx ended with %s (%u)\n", wc->wr_id, ib_wc_status_msg(wc->status), wc->vendor_err);
		return -EBADMSG;
	}
	if (work == WORK_RECEIVE)
		return received(number, slot, wc);

	exchange.posted--;
	switch (work) {
	case WORK_REGISTER:
		return call_registered(number, slot);
	case WORK_SEND_CALL:
		call->sending = false;
		return call_end(number, slot);
	case WORK_INVALIDATE:
		call->invalid = true;
		return call_end(number, slot);
	case WORK_READ:
		return serve_write(number, slot);
	case WORK_WRITE:
		return serve_answer(number, slot);
	case WORK_SEND_ANSWER:
		exchange.served++;
		return 0;
	case WORK_SEND_DATA:
		exchange.ended++;
		return exchange.begun < exchange.count ? data_begin(number, slot) : 0;
	default:
		return -EBADMSG;
	}
}

static bool is_done(void)
{
	return exchange.ended == exchange.count && exchange.served == exchange.count && !exchange.posted;
}

/* Processes completions until the run is complete. Sleeps while there are none. */
static int work(void)
{
	struct ib_wc wc[16];
	int count, err = 0, i;
	long left;

	while (!is_done() && !err) {
		count = ib_poll_cq(exchange.cq, ARRAY_SIZE(wc), wc);
		for (i = 0; i < count && !err; i++)
			err = completed(&wc[i]);
		cond_resched();
		if (count || err)
			continue;
		err = ib_req_notify_cq(exchange.cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS);
		if (err > 0) {
			err = 0;
			continue;
		}
		if (err)
			break;
		/* A killed process does not wait for a peer that has failed. */
		left = wait_for_completion_killable_timeout(&exchange.event, msecs_to_jiffies(PATIENCE_MS));
		if (left < 0)
			err = left;
		if (!left) {
			pr_err("no completions: %llu of %llu have ended, %llu of the peer's\n", exchange.ended, exchange.count,
			       exchange.served);
			err = -ETIMEDOUT;
		}
	}
	return err;
}

static int run(int (*begin)(int number, int slot), u64 directions)
{
	ktime_t start = ktime_get();
	int err = 0, i;
	u64 ns;

	exchange.begun = 0;
	exchange.ended = 0;
	exchange.served = 0;
	exchange.latency_ns = 0;
	/* The first call of each queue pair, then the second of each. */
	for (i = 0; i < exchange.qps * SLOTS && exchange.begun < exchange.count && !err; i++)
		err = begin(i % exchange.qps, i / exchange.qps);
	if (!err)
		err = work();
	ns = ktime_to_ns(ktime_sub(ktime_get(), start));
	scnprintf(answer, sizeof(answer), "calls %llu bytes %llu ns %llu latency_ns %llu", exchange.count,
		  exchange.count * exchange.size * directions, ns, div64_u64(exchange.latency_ns, exchange.count));
	return err;
}

static int exchange_run(char *line, bool with_calls)
{
	int err;

	if (!exchange.peer || sscanf(line, "%llu %llu", &exchange.count, &exchange.size) != 2 || !exchange.count)
		return -EINVAL;
	if (with_calls)
		return exchange.size && exchange.size <= MAX_SIZE ? run(call_begin, 2) : -EINVAL;

	if (exchange.size < sizeof(struct message) || exchange.size > RECEIVE_SIZE)
		return -EINVAL;
	exchange.seen = bitmap_zalloc(exchange.count, GFP_KERNEL);
	if (!exchange.seen)
		return -ENOMEM;
	err = run(data_begin, 1);
	bitmap_free(exchange.seen);
	exchange.seen = NULL;
	return err;
}

static int command(char *line)
{
	char *word = strsep(&line, " ");
	int number;

	answer[0] = 0;
	if (!devices[0])
		return -ENODEV;
	if (!strcmp(word, "close")) {
		exchange_close();
		return 0;
	}
	if (!line)
		return -EINVAL;
	if (!strcmp(word, "open"))
		return kstrtoint(line, 10, &number) ?: exchange_open(number);
	if (!strcmp(word, "meet"))
		return exchange_meet(line);
	if (!strcmp(word, "exchange"))
		return exchange_run(line, true);
	if (!strcmp(word, "send"))
		return exchange_run(line, false);
	return -EINVAL;
}

static ssize_t run_write(struct file *file, const char __user *buffer, size_t count, loff_t *offset)
{
	char *line = memdup_user_nul(buffer, count);
	int err;

	if (IS_ERR(line))
		return PTR_ERR(line);
	mutex_lock(&devices_lock);
	err = command(strim(line));
	mutex_unlock(&devices_lock);
	kfree(line);
	return err ?: count;
}

static ssize_t run_read(struct file *file, char __user *buffer, size_t count, loff_t *offset)
{
	ssize_t length;

	mutex_lock(&devices_lock);
	length = simple_read_from_buffer(buffer, count, offset, answer, strlen(answer));
	mutex_unlock(&devices_lock);
	return length;
}

static const struct file_operations run_operations = {
	.owner = THIS_MODULE,
	.write = run_write,
	.read = run_read,
};

static struct dentry *folder;

void exchange_init(void)
{
	folder = debugfs_create_dir("kverbs_client", NULL);
	debugfs_create_file("run", 0600, folder, NULL, &run_operations);
}

void exchange_exit(void)
{
	debugfs_remove(folder);
}

void exchange_removed(struct ib_device *dev)
{
	if (exchange.dev == dev)
		exchange_close();
}
