/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What clients in the kernel need for EFA beside rdma/ib_verbs.h: the reliable datagrams (SRD) that
 * it has no types for. Source compatible with the header of the same name in Amazon's driver.
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
 * max_inline_data is larger than the device's inline_buf_size. Only then do its work requests
 * have room for both. That size is 32 bytes on all known devices.
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

/* How often a region was registered by a work request, modulo 16, is in both of its keys. */
#define EFA_MR_GEN_SHIFT 20
#define EFA_MR_GEN_MASK 0x00F00000

/* To be called before each registration, which then has other keys than the last one. */
static inline void efa_inc_fast_reg_key_gen(struct ib_mr *mr)
{
	u32 generation = (mr->rkey + (1 << EFA_MR_GEN_SHIFT)) & EFA_MR_GEN_MASK;

	mr->lkey = (mr->lkey & ~EFA_MR_GEN_MASK) | generation;
	mr->rkey = (mr->rkey & ~EFA_MR_GEN_MASK) | generation;
}

#endif /* _EFA_VERBS_H_ */
