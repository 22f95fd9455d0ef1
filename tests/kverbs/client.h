/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef _KVERBS_CLIENT_H_
#define _KVERBS_CLIENT_H_

#include <linux/mutex.h>
#include <rdma/ib_verbs.h>

#include "setup.h"

/* Timeout of all waits of the tests. A longer wait counts as a hang, see tests/kselftest/patience.py. */
#define PATIENCE_MS 120000

/* The first devices, protected by the lock. They are not removed while it is held. */
extern struct mutex devices_lock;
extern struct ib_device *devices[2];

/* local.c: tests between the devices of one machine. */
int local_run(const char *name);
void local_removed(struct ib_device *dev);

/* exchange.c: data between two machines. */
void exchange_init(void);
void exchange_exit(void);
void exchange_removed(struct ib_device *dev);

/* lnd.c: a client that behaves like Lustre's. */
void lnd_exit(void);

#endif /* _KVERBS_CLIENT_H_ */
