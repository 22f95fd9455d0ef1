// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A client of kernel verbs, which depends on rdma/ib_verbs.h and efa_verbs.h only.
 *
 * Writing the name of a test to its parameter `test` runs the test between the first two devices, which
 * may be the same. The write fails with the test's errno. Tests between two machines use debugfs.
 */

#include <linux/module.h>

#include "client.h"

/* Protects `devices`. */
DEFINE_MUTEX(devices_lock);
struct ib_device *devices[2];

static int test_set(const char *value, const struct kernel_param *param)
{
	int err;

	mutex_lock(&devices_lock);
	err = devices[0] ? local_run(value) : -ENODEV;
	mutex_unlock(&devices_lock);
	return err;
}

static const struct kernel_param_ops test_ops = { .set = test_set };
module_param_cb(test, &test_ops, NULL, 0200);
MODULE_PARM_DESC(test, "Runs the test of this name");

static int add_one(struct ib_device *dev)
{
	int i;

	mutex_lock(&devices_lock);
	for (i = 0; i < ARRAY_SIZE(devices); i++) {
		if (!devices[i]) {
			devices[i] = dev;
			break;
		}
	}
	mutex_unlock(&devices_lock);
	return 0;
}

static void remove_one(struct ib_device *dev, void *data)
{
	int i;

	mutex_lock(&devices_lock);
	local_removed(dev);
	exchange_removed(dev);
	for (i = 0; i < ARRAY_SIZE(devices); i++)
		if (devices[i] == dev)
			devices[i] = NULL;
	mutex_unlock(&devices_lock);
}

static struct ib_client client = {
	.name = "kverbs_client",
	.add = add_one,
	.remove = remove_one,
};

static int __init kverbs_init(void)
{
	int err = ib_register_client(&client);

	if (!err)
		exchange_init();
	return err;
}

static void __exit kverbs_exit(void)
{
	lnd_exit();
	exchange_exit();
	ib_unregister_client(&client);
}

module_init(kverbs_init);
module_exit(kverbs_exit);
MODULE_DESCRIPTION("Test client of kernel verbs");
MODULE_LICENSE("Dual BSD/GPL");
