// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Data between two machines, in both directions at once: messages and calls. In a call, the peer reads a
 * region of the caller, checks it and writes its answer there. A region is registered for one call.
 * A machine can be its own peer. A line is one of these commands:
 *
 *   open QPS                  Creates QPS queue pairs. The result is their GID and their numbers.
 *   meet GID QPN...           Sets the GID and the queue pairs of the peer.
 *   exchange COUNT SIZE       Makes and serves COUNT calls of SIZE bytes. The result is their number and size.
 *   send COUNT SIZE           Sends and receives COUNT messages of SIZE bytes. The result is their number and size.
 *   close                     Destroys the queue pairs.
 */

#include <linux/bitmap.h>
#include <linux/completion.h>
#include <linux/dma-mapping.h>
#include <linux/hex.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/vmalloc.h>
#include <rdma/ib_cache.h>

#include "client.h"

#define MAX_QPS 8
#define RECEIVES 16
#define RECEIVE_SIZE 8192
/* Number of concurrent calls of a queue pair. The peer makes as many. */
#define SLOTS 8
#define MAX_SIZE 65536
#define PAGES (MAX_SIZE / PAGE_SIZE)

enum kind { DATA, CALL, ANSWER };

/* Header of each message. Alone, it is sent as inline data. */
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

static_assert(sizeof(struct message) == INLINE);

/* A call of this side. */
struct call {
	struct ib_mr *mr;
	u8 *region;
	struct scatterlist sg[PAGES];
	int mapped;
	u64 seed;
	/* Whether the call is still being sent, its answer has arrived, and the key is invalidated. */
	bool sending, answered, invalid;
};

/* A call of the peer, or a message of this side. */
struct served {
	struct message call;
	struct area data;
};

/* Its end has the memory of the receives. */
struct queue {
	struct end end;
	struct call calls[SLOTS];
	struct served served[SLOTS];
};

static struct exchange {
	struct completion event;
	int qps;
	bool has_met;
	struct queue queues[MAX_QPS];
	/* The current run: number and size of calls or messages, and the set of received messages. */
	u64 count, size;
	unsigned long *seen;
	/* Calls or messages that have begun, have ended and were served for the peer; requests in flight on send queues. */
	u64 begun, ended, served, posted;
} exchange;

/* Purpose of a work request, in its id. */
enum work { WORK_RECEIVE, WORK_REGISTER, WORK_SEND_CALL, WORK_INVALIDATE, WORK_READ, WORK_WRITE, WORK_SEND_ANSWER, WORK_SEND_DATA };

static u64 id_of(enum work work, int slot)
{
	return (u64)work << 32 | slot;
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

static int call_open(struct call *call, struct end *end)
{
	int i;

	/* Scattered pages. */
	call->region = vmalloc(MAX_SIZE);
	if (!call->region)
		return -ENOMEM;
	sg_init_table(call->sg, PAGES);
	for (i = 0; i < PAGES; i++)
		sg_set_page(&call->sg[i], vmalloc_to_page(call->region + i * PAGE_SIZE), PAGE_SIZE, 0);
	call->mapped = ib_dma_map_sg(end->dev, call->sg, PAGES, DMA_BIDIRECTIONAL);
	return call->mapped ? KEEP(call->mr, ib_alloc_mr(end->pd, IB_MR_TYPE_MEM_REG, PAGES)) : -ENOMEM;
}

static int receive(struct queue *queue, int index)
{
	return end_receive(&queue->end, id_of(WORK_RECEIVE, index), index * RECEIVE_SIZE, RECEIVE_SIZE);
}

static int queue_open(struct queue *queue)
{
	struct end *end = &queue->end;
	int err, i;

	err = end_open(end, devices[0], RECEIVES * RECEIVE_SIZE, POLLS_ITSELF, &exchange.event);
	for (i = 0; i < RECEIVES && !err; i++)
		err = receive(queue, i);
	for (i = 0; i < SLOTS && !err; i++)
		err = call_open(&queue->calls[i], end) ?: area_open(&queue->served[i].data, end->dev, MAX_SIZE);
	return err;
}

static void queue_close(struct queue *queue)
{
	struct end *end = &queue->end;
	int i;

	/* The queue pair uses the memory, so it is destroyed first. */
	if (end->qp)
		ib_destroy_qp(end->qp);
	end->qp = NULL;
	for (i = 0; i < SLOTS; i++) {
		struct call *call = &queue->calls[i];

		if (call->mr)
			ib_dereg_mr(call->mr);
		if (call->mapped)
			ib_dma_unmap_sg(end->dev, call->sg, PAGES, DMA_BIDIRECTIONAL);
		vfree(call->region);
		area_close(&queue->served[i].data, end->dev);
	}
	end_close(end);
}

static void exchange_close(void)
{
	int i;

	for (i = 0; i < exchange.qps; i++)
		queue_close(&exchange.queues[i]);
	memset(&exchange, 0, sizeof(exchange));
}

static int exchange_open(int qps)
{
	union ib_gid gid = {};
	int err, length;

	if (qps < 1 || qps > MAX_QPS)
		return -EINVAL;
	if (exchange.qps)
		return -EBUSY;
	init_completion(&exchange.event);
	err = rdma_query_gid(devices[0], 1, 0, &gid);
	length = scnprintf(answer, sizeof(answer), "%*phN", 16, gid.raw);
	while (exchange.qps < qps && !err) {
		struct queue *queue = &exchange.queues[exchange.qps++];

		err = queue_open(queue);
		if (!err)
			length += scnprintf(answer + length, sizeof(answer) - length, " %u", queue->end.qp->qp_num);
	}
	if (err)
		exchange_close();
	return err;
}

/* Parses the peer's answer to `open`. */
static int exchange_meet(char *line)
{
	char *word = strsep(&line, " ");
	union ib_gid gid;
	int err = 0, i;
	u32 qpn;

	if (!exchange.qps)
		return -ENOTCONN;
	if (exchange.queues[0].end.peer || strlen(word) != 32 || hex2bin(gid.raw, word, sizeof(gid.raw)))
		return -EINVAL;
	for (i = 0; i < exchange.qps && !err; i++) {
		word = strsep(&line, " ");
		err = word ? kstrtou32(word, 10, &qpn) : -EINVAL;
		err = err ?: end_meet(&exchange.queues[i].end, &gid, qpn);
	}
	exchange.has_met = !err;
	return err;
}

/* Counts a work request of a send queue, which was posted with this result. */
static int counted(int err)
{
	exchange.posted += !err;
	return err;
}

/* Posts an access to the region of a call, or a message that is longer than its header. */
static int post(struct queue *queue, u64 id, enum ib_wr_opcode opcode, struct served *served, u32 length)
{
	struct ib_sge sge = { .addr = served->data.dma, .length = length, .lkey = queue->end.pd->local_dma_lkey };
	const struct message *call = &served->call;

	return counted(end_post(&queue->end, id, opcode, sge, le64_to_cpu(call->addr), le32_to_cpu(call->rkey), le32_to_cpu(call->slot)));
}

static int message_send(struct queue *queue, u64 id, const struct message *message)
{
	struct ib_sge sge = { .addr = (uintptr_t)message, .length = sizeof(*message) };

	return counted(end_post(&queue->end, id, IB_WR_SEND, sge, 0, 0, 0));
}

/* Begins a call with the registration of its region. */
static int call_begin(struct queue *queue, int slot)
{
	struct call *call = &queue->calls[slot];
	struct ib_reg_wr wr = {
		.wr = {
			.wr_id = id_of(WORK_REGISTER, slot),
			.opcode = IB_WR_REG_MR,
			.send_flags = IB_SEND_SIGNALED,
		},
		.mr = call->mr,
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE,
	};
	int pages = DIV_ROUND_UP(exchange.size, PAGE_SIZE), err;

	call->seed = exchange.begun++;
	call->answered = false;
	call->invalid = false;
	pattern_fill(call->region, call->seed, exchange.size);
	dma_sync_sg_for_device(queue->end.dev->dma_device, call->sg, PAGES, DMA_BIDIRECTIONAL);

	err = ib_map_mr_sg(call->mr, call->sg, pages, NULL, PAGE_SIZE);
	if (err != pages)
		return err < 0 ? err : -EBADMSG;
	efa_inc_fast_reg_key_gen(call->mr);
	wr.key = call->mr->rkey;
	return counted(ib_post_send(queue->end.qp, &wr.wr, NULL));
}

/* Sends the call to the peer, as its region is registered. */
static int call_registered(struct queue *queue, int slot)
{
	struct call *call = &queue->calls[slot];
	struct message message = {
		.kind = cpu_to_le32(CALL),
		.slot = cpu_to_le32(slot),
		.seed = cpu_to_le64(call->seed),
		.addr = cpu_to_le64(call->mr->iova),
		.rkey = cpu_to_le32(call->mr->rkey),
		.length = cpu_to_le32(exchange.size),
	};

	call->sending = true;
	return message_send(queue, id_of(WORK_SEND_CALL, slot), &message);
}

/* Ends a call once its key is invalidated and its message is sent, and begins the next call. */
static int call_end(struct queue *queue, int slot)
{
	struct call *call = &queue->calls[slot];

	if (call->sending || !call->invalid)
		return 0;
	call->invalid = false;
	exchange.ended++;
	return exchange.begun < exchange.count ? call_begin(queue, slot) : 0;
}

/* Checks the answer, which has arrived in the region, and invalidates the region. */
static int call_answered(struct queue *queue, u32 slot)
{
	struct call *call = &queue->calls[slot % SLOTS];
	int err;

	if (slot >= SLOTS || call->answered) {
		pr_err("call of slot %u is answered twice\n", slot);
		return -EBADMSG;
	}
	call->answered = true;
	dma_sync_sg_for_cpu(queue->end.dev->dma_device, call->sg, PAGES, DMA_BIDIRECTIONAL);
	err = pattern_check(call->region, ~call->seed, exchange.size);
	return err ?: counted(end_post(&queue->end, id_of(WORK_INVALIDATE, slot), IB_WR_LOCAL_INV, (struct ib_sge) {}, 0, 0,
				       call->mr->rkey));
}

/* Serves a call of the peer: reads its region. */
static int serve_call(struct queue *queue, const struct message *call)
{
	u32 slot = le32_to_cpu(call->slot), length = le32_to_cpu(call->length);

	if (slot >= SLOTS || length > MAX_SIZE)
		return -EBADMSG;
	queue->served[slot].call = *call;
	return post(queue, id_of(WORK_READ, slot), IB_WR_RDMA_READ, &queue->served[slot], length);
}

/* Writes the answer. In every other slot, immediate data announces it; in the others, a message follows. */
static int serve_write(struct queue *queue, int slot)
{
	struct served *served = &queue->served[slot];
	enum ib_wr_opcode opcode = slot % 2 ? IB_WR_RDMA_WRITE : IB_WR_RDMA_WRITE_WITH_IMM;
	u64 seed = le64_to_cpu(served->call.seed);
	u32 length = le32_to_cpu(served->call.length);
	int err = pattern_check(served->data.data, seed, length);

	if (err)
		return err;
	pattern_fill(served->data.data, ~seed, length);
	return post(queue, id_of(WORK_WRITE, slot), opcode, served, length);
}

static int serve_answer(struct queue *queue, int slot)
{
	struct message message = queue->served[slot].call;

	if (slot % 2 == 0) {
		exchange.served++;
		return 0;
	}
	message.kind = cpu_to_le32(ANSWER);
	return message_send(queue, id_of(WORK_SEND_ANSWER, slot), &message);
}

/* Sends a message whose contents follow from its number. */
static int data_begin(struct queue *queue, int slot)
{
	struct served *served = &queue->served[slot];
	struct message message = {
		.kind = cpu_to_le32(DATA),
		.slot = cpu_to_le32(slot),
		.seed = cpu_to_le64(exchange.begun),
		.length = cpu_to_le32(exchange.size - sizeof(message)),
	};

	memcpy(served->data.data, &message, sizeof(message));
	pattern_fill(served->data.data + sizeof(message), exchange.begun++, exchange.size - sizeof(message));
	return post(queue, id_of(WORK_SEND_DATA, slot), IB_WR_SEND, served, exchange.size);
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

static int received(struct queue *queue, int index, const struct ib_wc *wc)
{
	const struct message *message = queue->end.area.data + index * RECEIVE_SIZE;
	int err;

	if (wc->opcode == IB_WC_RECV_RDMA_WITH_IMM)
		return call_answered(queue, be32_to_cpu(wc->ex.imm_data)) ?: receive(queue, index);
	if (wc->opcode != IB_WC_RECV || wc->byte_len < sizeof(*message) || wc->src_qp != queue->end.peer_qpn)
		return -EBADMSG;
	switch (le32_to_cpu(message->kind)) {
	case DATA:
		err = data_received(message, wc->byte_len);
		break;
	case CALL:
		err = serve_call(queue, message);
		break;
	case ANSWER:
		err = call_answered(queue, le32_to_cpu(message->slot));
		break;
	default:
		pr_err("message of unknown kind %#x\n", le32_to_cpu(message->kind));
		err = -EBADMSG;
	}
	return err ?: receive(queue, index);
}

static int completed(struct queue *queue, const struct ib_wc *wc)
{
	int slot = wc->wr_id & 0xffff;
	struct call *call = &queue->calls[slot % SLOTS];
	enum work work = wc->wr_id >> 32;

	if (wc->status || wc->qp != queue->end.qp) {
		pr_err("work request %llx ended with %s (%u)\n", wc->wr_id, ib_wc_status_msg(wc->status), wc->vendor_err);
		return -EBADMSG;
	}
	if (work == WORK_RECEIVE)
		return received(queue, slot, wc);

	exchange.posted--;
	switch (work) {
	case WORK_REGISTER:
		return call_registered(queue, slot);
	case WORK_SEND_CALL:
		call->sending = false;
		return call_end(queue, slot);
	case WORK_INVALIDATE:
		call->invalid = true;
		return call_end(queue, slot);
	case WORK_READ:
		return serve_write(queue, slot);
	case WORK_WRITE:
		return serve_answer(queue, slot);
	case WORK_SEND_ANSWER:
		exchange.served++;
		return 0;
	case WORK_SEND_DATA:
		exchange.ended++;
		return exchange.begun < exchange.count ? data_begin(queue, slot) : 0;
	default:
		return -EBADMSG;
	}
}

static bool is_done(void)
{
	return exchange.ended == exchange.count && exchange.served == exchange.count && !exchange.posted;
}

/* Processes completions of all queues; returns their number, or an error. */
static int poll(void)
{
	struct ib_wc wc[16];
	int count, err, i, j, sum = 0;

	for (i = 0; i < exchange.qps; i++) {
		struct queue *queue = &exchange.queues[i];

		count = ib_poll_cq(queue->end.cq, ARRAY_SIZE(wc), wc);
		for (j = 0; j < count; j++) {
			err = completed(queue, &wc[j]);
			if (err)
				return err;
		}
		sum += count;
	}
	cond_resched();
	return sum;
}

/* Requests events of all queues; returns whether one has completions already, or an error. */
static int arm(void)
{
	int err = 0, i;

	for (i = 0; i < exchange.qps && !err; i++)
		err = ib_req_notify_cq(exchange.queues[i].end.cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS);
	return err;
}

/* Processes completions until the run is complete. Sleeps while there are none. */
static int work(void)
{
	int count = 0;
	long left;

	while (!is_done()) {
		count = poll() ?: arm();
		if (count < 0)
			return count;
		if (count)
			continue;
		/* A killed process does not wait for a peer that has failed. */
		left = wait_for_completion_killable_timeout(&exchange.event, msecs_to_jiffies(PATIENCE_MS));
		if (left < 0)
			return left;
		if (!left) {
			pr_err("no completions: %llu of %llu have ended, %llu of the peer's\n", exchange.ended, exchange.count,
			       exchange.served);
			return -ETIMEDOUT;
		}
	}
	return 0;
}

static int run(int (*begin)(struct queue *queue, int slot), u64 directions)
{
	int err = 0, i;

	exchange.begun = 0;
	exchange.ended = 0;
	exchange.served = 0;
	/* The first call of each queue pair, then the second of each. */
	for (i = 0; i < exchange.qps * SLOTS && exchange.begun < exchange.count && !err; i++)
		err = begin(&exchange.queues[i % exchange.qps], i / exchange.qps);
	err = err ?: work();
	scnprintf(answer, sizeof(answer), "calls %llu bytes %llu", exchange.count, exchange.count * exchange.size * directions);
	return err;
}

int exchange_run(char *word, char *line)
{
	bool has_calls = !strcmp(word, "exchange");
	int err, number;

	if (!strcmp(word, "close")) {
		exchange_close();
		return 0;
	}
	if (!strcmp(word, "open"))
		return kstrtoint(line, 10, &number) ?: exchange_open(number);
	if (!strcmp(word, "meet"))
		return exchange_meet(line);
	if (!has_calls && strcmp(word, "send"))
		return -EINVAL;
	if (sscanf(line, "%llu %llu", &exchange.count, &exchange.size) != 2 || !exchange.count || !exchange.size)
		return -EINVAL;
	if (exchange.size > (has_calls ? MAX_SIZE : RECEIVE_SIZE) || (!has_calls && exchange.size < sizeof(struct message)))
		return -EINVAL;
	if (!exchange.has_met)
		return -ENOTCONN;
	if (has_calls)
		return run(call_begin, 2);
	exchange.seen = bitmap_zalloc(exchange.count, GFP_KERNEL);
	if (!exchange.seen)
		return -ENOMEM;
	err = run(data_begin, 1);
	bitmap_free(exchange.seen);
	exchange.seen = NULL;
	return err;
}

void exchange_removed(struct ib_device *dev)
{
	if (exchange.queues[0].end.dev == dev)
		exchange_close();
}
