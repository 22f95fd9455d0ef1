// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

#include <linux/jiffies.h>
#include <linux/ratelimit.h>
#include <linux/utsname.h>
#include <linux/version.h>
#include <rdma/uverbs_ioctl.h>

#include "helpers.h"

const size_t efa_sizeof_ib_device = sizeof(struct ib_device);
const size_t efa_sizeof_ib_device_ops = sizeof(struct ib_device_ops);
const size_t efa_sizeof_ib_ucontext = sizeof(struct ib_ucontext);

void efa_dma_rmb(void)
{
	dma_rmb();
}

unsigned long efa_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

void efa_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

void efa_reinit_completion(struct completion *completion)
{
	reinit_completion(completion);
}

void efa_sema_init(struct semaphore *semaphore, int count)
{
	sema_init(semaphore, count);
}

unsigned long efa_usecs_to_jiffies(unsigned int usecs)
{
	return usecs_to_jiffies(usecs);
}

int efa_ratelimit(void)
{
	static DEFINE_RATELIMIT_STATE(state, DEFAULT_RATELIMIT_INTERVAL,
				      DEFAULT_RATELIMIT_BURST);

	return __ratelimit(&state);
}

void efa_irq_set_affinity_hint(unsigned int irq, const struct cpumask *mask)
{
	irq_set_affinity_hint(irq, mask);
}

const struct cpumask *efa_cpumask_of(unsigned int cpu)
{
	return cpumask_of(cpu);
}

unsigned int efa_nth_online_cpu(unsigned int n)
{
	return cpumask_nth(n, cpu_online_mask);
}

unsigned int efa_num_online_cpus(void)
{
	return num_online_cpus();
}

const char *efa_pci_name(const struct pci_dev *pdev)
{
	return pci_name(pdev);
}

unsigned int efa_pci_bus_number(const struct pci_dev *pdev)
{
	return pdev->bus->number;
}

unsigned int efa_pci_devfn(const struct pci_dev *pdev)
{
	return pdev->devfn;
}

u32 efa_linux_version_code(void)
{
	return LINUX_VERSION_CODE;
}

const char *efa_utsname_release(void)
{
	return utsname()->release;
}

const char *efa_utsname_version(void)
{
	return utsname()->version;
}

int efa_ib_is_udata_in_empty(struct ib_udata *udata)
{
	return ib_is_udata_in_empty(udata);
}

int efa_ib_copy_from_udata(void *dest, struct ib_udata *udata, size_t len)
{
	return ib_copy_from_udata(dest, udata, len);
}

enum ib_mtu efa_ib_mtu_int_to_enum(int mtu)
{
	return ib_mtu_int_to_enum(mtu);
}
