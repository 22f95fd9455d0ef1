/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Types for clients of EFA in the kernel that rdma/ib_verbs.h lacks: those of scalable reliable
 * datagrams (SRD). Source compatible with the header of the same name in Amazon's driver.
 */
#ifndef _EFA_VERBS_H_
#define _EFA_VERBS_H_

#include <linux/container_of.h>
#include <rdma/ib_verbs.h>

#define EFA_VERBS_VERSION 1

/* Type of a queue pair, for ib_create_qp(). */
#define EFA_QPT_SRD IB_QPT_RESERVED1

/* A send on an SRD queue pair. */
struct ib_srd_wr {
	struct ib_send_wr wr;
	struct ib_ah *ah;
	u32 remote_qpn;
	u32 remote_qkey;
};

/*
 * An RDMA read or write on an SRD queue pair. A write of inline data needs a queue pair whose
 * max_inline_data is larger than the device's inline_buf_size, 32 bytes on all known devices.
 * Only its work requests have room for both the remote address and inline data.
 */
struct ib_srd_rdma_wr {
	struct ib_srd_wr wr;
	u64 remote_addr;
	u32 rkey;
};

static inline const struct ib_srd_wr *srd_wr(const struct ib_send_wr *wr)
{
	return container_of(wr, struct ib_srd_wr, wr);
}

static inline const struct ib_srd_rdma_wr *srd_rdma_wr(const struct ib_send_wr *wr)
{
	return container_of(wr, struct ib_srd_rdma_wr, wr.wr);
}

/* Both keys of a region contain its number of fast registrations, modulo 16. */
#define EFA_MR_GEN_SHIFT 20
#define EFA_MR_GEN_MASK 0x00F00000

/* Must be called before each fast registration, as each needs keys of a new generation. */
static inline void efa_inc_fast_reg_key_gen(struct ib_mr *mr)
{
	u32 generation = (mr->rkey + (1 << EFA_MR_GEN_SHIFT)) & EFA_MR_GEN_MASK;

	mr->lkey = (mr->lkey & ~EFA_MR_GEN_MASK) | generation;
	mr->rkey = (mr->rkey & ~EFA_MR_GEN_MASK) | generation;
}

#endif /* _EFA_VERBS_H_ */
