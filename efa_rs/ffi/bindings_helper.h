/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Input of bindgen: the driver's own C, and headers that the kernel crate's bindings leave out. */
#include <linux/version.h>
#include <net/devlink.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <uapi/rdma/efa-abi.h>

#include "../include/efa_verbs.h"
#include "helpers.c"
#include "objects.h"
#include "trace.c"
#include "version.h"
