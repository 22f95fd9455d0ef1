/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Static inlines and macros of the kernel, as functions that Rust can call. */
#ifndef EFA_FFI_HELPERS_H
#define EFA_FFI_HELPERS_H

#include <linux/completion.h>
#include <linux/cpumask.h>
#include <linux/pci.h>
#include <linux/semaphore.h>
#include <linux/spinlock.h>
#include <rdma/ib_verbs.h>

void efa_dma_rmb(void);

unsigned long efa_spin_lock_irqsave(spinlock_t *lock);
void efa_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);
void efa_reinit_completion(struct completion *completion);
void efa_sema_init(struct semaphore *semaphore, int count);
unsigned long efa_usecs_to_jiffies(unsigned int usecs);
int efa_ratelimit(void);

void efa_irq_set_affinity_hint(unsigned int irq, const struct cpumask *mask);
const struct cpumask *efa_cpumask_of(unsigned int cpu);
unsigned int efa_nth_online_cpu(unsigned int n);
unsigned int efa_num_online_cpus(void);

const char *efa_pci_name(const struct pci_dev *pdev);
unsigned int efa_pci_bus_number(const struct pci_dev *pdev);
unsigned int efa_pci_devfn(const struct pci_dev *pdev);
u32 efa_linux_version_code(void);
const char *efa_utsname_release(void);
const char *efa_utsname_version(void);

int efa_ib_is_udata_in_empty(struct ib_udata *udata);
int efa_ib_copy_from_udata(void *dest, struct ib_udata *udata, size_t len);
enum ib_mtu efa_ib_mtu_int_to_enum(int mtu);

/* Sizes as the C compiler sees them, to compare with the generated bindings. */
extern const size_t efa_sizeof_ib_device;
extern const size_t efa_sizeof_ib_device_ops;
extern const size_t efa_sizeof_ib_ucontext;

#endif
