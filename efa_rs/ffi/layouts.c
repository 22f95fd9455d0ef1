// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The C compiler checks the layouts that bindgen got from clang. bindgen does not read this. */
#include <net/devlink.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/iter.h>
#include <uapi/rdma/efa-abi.h>

#include "../include/efa_verbs.h"
#include "objects.h"
#include "layouts_generated.h"
