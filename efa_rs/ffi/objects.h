/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Structures and data that C and Rust share. */
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

/* A memory region with the attributes that EFA_IB_METHOD_MR_QUERY returns. */
struct efa_mr_object {
	struct ib_mr core;
	u16 validity;
	u16 recv_ic_id;
	u16 rdma_read_ic_id;
	u16 rdma_recv_ic_id;
};

extern const struct uapi_definition efa_uapi_definitions[];
