/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The headers that bindgen reads: what the kernel crate's own bindings leave out. */

#include <linux/pci.h>
#include <linux/semaphore.h>
#include <net/net_namespace.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/uverbs_ioctl.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <uapi/rdma/efa-abi.h>

#include "helpers.h"
#include "version.h"
