/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef _KVERBS_SETUP_H_
#define _KVERBS_SETUP_H_

#include <rdma/ib_verbs.h>

#include "efa_verbs.h"

#define QKEY 0x11111111

/* Stores a new object, or returns its error. */
#define KEEP(place, made)				\
({							\
	typeof(place) object = (made);			\
							\
	place = IS_ERR(object) ? NULL : object;		\
	PTR_ERR_OR_ZERO(object);			\
})

int to_state(struct ib_qp *qp, enum ib_qp_state state);
int to_rts(struct ib_qp *qp);
struct ib_ah *ah_of(struct ib_pd *pd, const union ib_gid *gid);

#endif /* _KVERBS_SETUP_H_ */
