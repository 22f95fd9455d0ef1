/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What C and Rust share besides functions. */
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

/* A memory region and what the driver's own method of the MR object tells of it. */
struct efa_mr_object {
	struct ib_mr core;
	u16 validity;
	u16 recv_ic_id;
	u16 rdma_read_ic_id;
	u16 rdma_recv_ic_id;
};

extern const struct uapi_definition efa_uapi_definitions[];
