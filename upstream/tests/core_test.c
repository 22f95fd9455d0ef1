// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Test of the changes of the core in the first series. The module loads if they work. */

#include <linux/device/faux.h>
#include <linux/module.h>
#include <rdma/ib_verbs.h>

struct test_device {
	struct ib_device ib;
};

struct test_cq {
	struct ib_cq ib;
};

static bool had_handler;
static int added, removed, notified;

static int create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr,
		     struct uverbs_attr_bundle *attrs)
{
	had_handler = cq->comp_handler;
	return notified ? -EINVAL : 0;
}

static int destroy_cq(struct ib_cq *cq, struct ib_udata *udata)
{
	return 0;
}

static int req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags)
{
	notified++;
	return 0;
}

static int query_device(struct ib_device *device, struct ib_device_attr *attr,
			struct ib_udata *udata)
{
	return 0;
}

static int query_port(struct ib_device *device, u32 port, struct ib_port_attr *attr)
{
	attr->state = IB_PORT_ACTIVE;
	return 0;
}

static int get_port_immutable(struct ib_device *device, u32 port,
			      struct ib_port_immutable *immutable)
{
	return 0;
}

static const struct ib_device_ops ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.create_cq = create_cq,
	.destroy_cq = destroy_cq,
	.req_notify_cq = req_notify_cq,
	.query_device = query_device,
	.query_port = query_port,
	.get_port_immutable = get_port_immutable,
	INIT_RDMA_OBJ_SIZE(ib_cq, test_cq, ib),
};

static int add(struct ib_device *device)
{
	added++;
	return 0;
}

static void remove(struct ib_device *device, void *data)
{
	removed++;
}

/* The device lacks most verbs. */
static struct ib_client client = {
	.name = "core_test", .add = add, .remove = remove, .no_kverbs_req = true
};

/* Whether the driver of a queue sees its handler, and is asked for events after the creation. */
static bool queue(struct ib_device *device, enum ib_poll_context context, int notifications)
{
	struct ib_cq *cq;

	had_handler = false;
	notified = 0;
	cq = ib_alloc_cq(device, NULL, 1, 0, context);
	if (IS_ERR(cq))
		return false;
	ib_free_cq(cq);
	return had_handler && notified == notifications;
}

static bool holds(bool condition, const char *text)
{
	if (!condition)
		pr_err("it does not hold that %s\n", text);
	return condition;
}

#define HOLDS(condition) holds(condition, #condition)

static bool works(struct ib_device *device)
{
	if (!HOLDS(queue(device, IB_POLL_DIRECT, 0)) || !HOLDS(queue(device, IB_POLL_SOFTIRQ, 1)) ||
	    !HOLDS(queue(device, IB_POLL_WORKQUEUE, 1)))
		return false;
	notified = 0;
	if (!HOLDS(IS_ERR(ib_alloc_cq(device, NULL, 1, 0, 99))) || !HOLDS(!notified))
		return false;
	if (!HOLDS(added == 1 && !removed))
		return false;
	ib_device_disable(device);
	ib_device_disable(device);
	if (!HOLDS(removed == 1) || !HOLDS(!strcmp(dev_name(&device->dev), "core_test0")))
		return false;
	if (!HOLDS(!ib_device_enable(device)) || !HOLDS(!ib_device_enable(device)))
		return false;
	return HOLDS(added == 2 && removed == 1) && HOLDS(queue(device, IB_POLL_WORKQUEUE, 1));
}

static int __init core_test_init(void)
{
	struct faux_device *parent = faux_device_create("core_test", NULL, NULL);
	struct test_device *test = parent ? ib_alloc_device(test_device, ib) : NULL;
	int error = -ENOMEM;

	if (!test)
		goto destroy;
	test->ib.dev.parent = &parent->dev;
	test->ib.phys_port_cnt = 1;
	test->ib.num_comp_vectors = 1;
	ib_set_device_ops(&test->ib, &ops);
	error = ib_register_client(&client);
	if (error)
		goto dealloc;
	error = ib_register_device(&test->ib, "core_test%d", NULL);
	if (!error) {
		error = works(&test->ib) ? 0 : -EINVAL;
		ib_unregister_device(&test->ib);
		if (added != removed)
			error = -EINVAL;
	}
	ib_unregister_client(&client);
dealloc:
	ib_dealloc_device(&test->ib);
destroy:
	if (parent)
		faux_device_destroy(parent);
	return error;
}

static void __exit core_test_exit(void)
{
}

module_init(core_test_init);
module_exit(core_test_exit);
MODULE_DESCRIPTION("Test of the RDMA core");
MODULE_LICENSE("Dual BSD/GPL");
