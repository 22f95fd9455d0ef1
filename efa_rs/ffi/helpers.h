/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Static inlines and macros of the kernel, as functions that Rust can call. */
#ifndef EFA_FFI_HELPERS_H
#define EFA_FFI_HELPERS_H

#include <linux/completion.h>
#include <linux/cpumask.h>
#include <linux/pci.h>
#include <linux/ratelimit.h>
#include <linux/semaphore.h>
#include <linux/spinlock.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/uverbs_ioctl.h>

void efa_dma_rmb(void);

unsigned long efa_spin_lock_irqsave(spinlock_t *lock);
void efa_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);
void efa_reinit_completion(struct completion *completion);
void efa_sema_init(struct semaphore *semaphore, int count);
unsigned long efa_usecs_to_jiffies(unsigned int usecs);
void efa_ratelimit_init(struct ratelimit_state *state);

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

struct nlattr *efa_nla_nest_driver(struct sk_buff *msg);
void efa_nla_nest_end(struct sk_buff *msg, struct nlattr *nest);
void efa_nla_nest_cancel(struct sk_buff *msg, struct nlattr *nest);

struct ib_udata *efa_attrs_to_udata(struct uverbs_attr_bundle *attrs);
struct ib_ucontext *efa_udata_to_ucontext(struct ib_udata *udata);

u64 efa_mmap_offset(const struct rdma_user_mmap_entry *entry);
int efa_mmap_noncached(struct ib_ucontext *ucontext, struct vm_area_struct *vma,
		       unsigned long pfn, struct rdma_user_mmap_entry *entry);
int efa_mmap_writecombine(struct ib_ucontext *ucontext, struct vm_area_struct *vma,
			  unsigned long pfn, struct rdma_user_mmap_entry *entry);
int efa_mmap_cached(struct ib_ucontext *ucontext, struct vm_area_struct *vma,
		    unsigned long pfn, struct rdma_user_mmap_entry *entry);
unsigned long efa_coherent_to_pfn(void *address);

struct ib_umem *efa_umem_get_va(struct ib_device *device, unsigned long start,
				size_t length, int access);
struct ib_umem *efa_umem_get_dmabuf(struct ib_device *device, unsigned long offset,
				    size_t length, int fd, int access);
bool efa_umem_is_contiguous(struct ib_umem *umem);
dma_addr_t efa_umem_start(struct ib_umem *umem);
size_t efa_umem_num_blocks(struct ib_umem *umem, unsigned long block_size);
void efa_umem_iter_start(struct ib_block_iter *iter, struct ib_umem *umem,
			 unsigned long block_size);
size_t efa_umem_iter_fill(struct ib_block_iter *iter, u64 *blocks, size_t count);

/* A memory region and what the driver's own method of the MR object tells of it. */
struct efa_mr_object {
	struct ib_mr core;
	u16 validity;
	u16 recv_ic_id;
	u16 rdma_read_ic_id;
	u16 rdma_recv_ic_id;
};

extern const struct uapi_definition efa_uapi_definitions[];

/* Sizes as the C compiler sees them, to compare with the generated bindings. */
extern const size_t efa_sizeof_ib_device;
extern const size_t efa_sizeof_ib_device_ops;
extern const size_t efa_sizeof_ib_ucontext;

#endif
