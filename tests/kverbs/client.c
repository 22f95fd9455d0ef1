// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A client of kernel verbs, which depends on rdma/ib_verbs.h and efa_verbs.h only.
 *
 * A line written to debugfs, kverbs_client/run, is a command of exchange.c or local.c. The write fails with the command's errno.
 * A read returns its result.
 */

#include <linux/cleanup.h>
#include <linux/debugfs.h>
#include <linux/minmax.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "client.h"

/* Protects all state. */
static DEFINE_MUTEX(lock);
struct ib_device *devices[2];
char answer[512];

static int command(char *line)
{
	char *word = strsep(&line, " ");

	guard(mutex)(&lock);
	answer[0] = 0;
	if (!devices[0])
		return -ENODEV;
	return line || !strcmp(word, "close") ? exchange_run(word, line) : local_run(word);
}

static ssize_t run_write(struct file *file, const char __user *buffer, size_t count, loff_t *offset)
{
	char *line = memdup_user_nul(buffer, count);
	int err;

	if (IS_ERR(line))
		return PTR_ERR(line);
	err = command(strim(line));
	kfree(line);
	return err ?: count;
}

static ssize_t run_read(struct file *file, char __user *buffer, size_t count, loff_t *offset)
{
	guard(mutex)(&lock);
	return simple_read_from_buffer(buffer, count, offset, answer, strlen(answer));
}

static const struct file_operations run_operations = {
	.owner = THIS_MODULE,
	.write = run_write,
	.read = run_read,
};

static int add_one(struct ib_device *dev)
{
	guard(mutex)(&lock);
	if (!devices[0])
		devices[0] = dev;
	else if (!devices[1])
		devices[1] = dev;
	return 0;
}

static void remove_one(struct ib_device *dev, void *data)
{
	guard(mutex)(&lock);
	local_removed(dev);
	exchange_removed(dev);
	if (devices[0] == dev)
		swap(devices[0], devices[1]);
	if (devices[1] == dev)
		devices[1] = NULL;
}

static struct ib_client client = {
	.name = "kverbs_client",
	.add = add_one,
	.remove = remove_one,
};

static struct dentry *folder;

static int __init kverbs_init(void)
{
	int err = ib_register_client(&client);

	if (!err) {
		folder = debugfs_create_dir("kverbs_client", NULL);
		debugfs_create_file("run", 0600, folder, NULL, &run_operations);
	}
	return err;
}

static void __exit kverbs_exit(void)
{
	debugfs_remove(folder);
	ib_unregister_client(&client);
}

module_init(kverbs_init);
module_exit(kverbs_exit);
MODULE_DESCRIPTION("Test client of kernel verbs");
MODULE_LICENSE("Dual BSD/GPL");
