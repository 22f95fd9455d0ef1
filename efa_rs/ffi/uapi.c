// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The driver's own uverbs methods and attributes, which only C macros can declare. */

#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/uverbs_ioctl.h>
#include <uapi/rdma/efa-abi.h>

#include "objects.h"

#define UVERBS_MODULE_NAME efa_ib
#include <rdma/uverbs_named_ioctl.h>

static int UVERBS_HANDLER(EFA_IB_METHOD_MR_QUERY)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *ibmr = uverbs_attr_get_obj(attrs, EFA_IB_ATTR_QUERY_MR_HANDLE);
	struct efa_mr_object *mr = container_of(ibmr, struct efa_mr_object, core);

	return uverbs_copy_to(attrs, EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID,
			      &mr->recv_ic_id, sizeof(mr->recv_ic_id)) ?:
	       uverbs_copy_to(attrs, EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID,
			      &mr->rdma_read_ic_id, sizeof(mr->rdma_read_ic_id)) ?:
	       uverbs_copy_to(attrs, EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID,
			      &mr->rdma_recv_ic_id, sizeof(mr->rdma_recv_ic_id)) ?:
	       uverbs_copy_to(attrs, EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY,
			      &mr->validity, sizeof(mr->validity));
}

#define RESPONSE(name) \
	UVERBS_ATTR_PTR_OUT(EFA_IB_ATTR_QUERY_MR_RESP_##name, UVERBS_ATTR_TYPE(u16), \
			    UA_MANDATORY)

DECLARE_UVERBS_NAMED_METHOD(EFA_IB_METHOD_MR_QUERY,
			    UVERBS_ATTR_IDR(EFA_IB_ATTR_QUERY_MR_HANDLE,
					    UVERBS_OBJECT_MR,
					    UVERBS_ACCESS_READ,
					    UA_MANDATORY),
			    RESPONSE(IC_ID_VALIDITY),
			    RESPONSE(RECV_IC_ID),
			    RESPONSE(RDMA_READ_IC_ID),
			    RESPONSE(RDMA_RECV_IC_ID));

ADD_UVERBS_METHODS(efa_mr_methods,
		   UVERBS_OBJECT_MR,
		   &UVERBS_METHOD(EFA_IB_METHOD_MR_QUERY));

#define BUFFER(name) \
	UVERBS_ATTR_PTR_IN(EFA_IB_ATTR_CREATE_COMP_CNTR_##name##_BUFFER, \
			   UVERBS_ATTR_STRUCT(struct ib_uverbs_buffer_desc, length), \
			   UA_MANDATORY)

ADD_UVERBS_ATTRIBUTES_SIMPLE(efa_comp_cntr_attributes,
			     UVERBS_OBJECT_COMP_CNTR,
			     UVERBS_METHOD_COMP_CNTR_CREATE,
			     BUFFER(COMP),
			     BUFFER(ERR));

const struct uapi_definition efa_uapi_definitions[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_MR, &efa_mr_methods),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_COMP_CNTR, &efa_comp_cntr_attributes),
	{},
};
