/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef _KVERBS_CLIENT_H_
#define _KVERBS_CLIENT_H_

#include <linux/mutex.h>
#include <rdma/ib_verbs.h>

#include "efa_verbs.h"

#define QKEY 0x11111111
/* How long nothing may complete. */
#define PATIENCE_MS 20000

/* The first devices there are, for whoever holds the lock; they stay while it does. */
extern struct mutex devices_lock;
extern struct ib_device *devices[2];

/* setup.c: what it takes until a queue pair can send. */
int to_state(struct ib_qp *qp, enum ib_qp_state state);
int to_rts(struct ib_qp *qp);
struct ib_ah *ah_of(struct ib_pd *pd, const union ib_gid *gid);

/* local.c: tests between the devices of one machine. */
int local_run(const char *name);
void local_removed(struct ib_device *dev);

/* exchange.c: data between two machines. */
void exchange_init(void);
void exchange_exit(void);
void exchange_removed(struct ib_device *dev);

#endif /* _KVERBS_CLIENT_H_ */
