/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef _KVERBS_CLIENT_H_
#define _KVERBS_CLIENT_H_

#include <rdma/ib_verbs.h>

#include "setup.h"

/* Timeout of all waits of the tests. A longer wait counts as a hang, see tests/kselftest/patience.py. */
#define PATIENCE_MS 120000

/* Depth of each queue. */
#define DEPTH 32

/* Bytes of inline data that a queue pair has room for. */
#define INLINE 32

/* The client polls its completion queue, where others have the context in which the core polls. */
#define POLLS_ITSELF -1

/* Memory that the device reads and writes. */
struct area {
	void *data;
	u64 dma;
	size_t size;
};

int area_open(struct area *area, struct ib_device *dev, size_t size);
void area_close(struct area *area, struct ib_device *dev);

/* end.c: a queue pair on a device, and what it needs. */
struct end {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_cq *cq;
	bool is_polled;
	struct ib_qp *qp;
	struct ib_ah *peer;
	u32 peer_qpn;
	struct area area;
};

int end_open(struct end *end, struct ib_device *dev, size_t size, int context, struct completion *event);
int end_meet(struct end *end, const union ib_gid *gid, u32 qpn);
void end_close(struct end *end);
int end_receive(struct end *end, u64 id, u64 offset, u32 length);
int end_send(struct end *end, u64 id, enum ib_wr_opcode opcode, u64 addr, u32 length);
int end_post(struct end *end, u64 id, enum ib_wr_opcode opcode, struct ib_sge sge, u64 remote_addr, u32 rkey, u32 ex);

/* The first devices, which are not removed during a command, and the result of the last command. */
extern struct ib_device *devices[2];
extern char answer[512];

/* local.c: work requests in flight between both devices while one of them is removed, and drains. */
int local_run(const char *name);
void local_removed(struct ib_device *dev);

/* exchange.c: data between two machines, or of one machine with itself. */
int exchange_run(char *word, char *line);
void exchange_removed(struct ib_device *dev);

#endif /* _KVERBS_CLIENT_H_ */
