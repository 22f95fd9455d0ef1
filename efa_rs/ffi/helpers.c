// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/utsname.h>
#include <linux/version.h>
#include <net/netlink.h>
#include <rdma/rdma_netlink.h>
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

void efa_ratelimit_init(struct ratelimit_state *state)
{
	ratelimit_default_init(state);
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

struct nlattr *efa_nla_nest_driver(struct sk_buff *msg)
{
	return nla_nest_start(msg, RDMA_NLDEV_ATTR_DRIVER);
}

void efa_nla_nest_end(struct sk_buff *msg, struct nlattr *nest)
{
	nla_nest_end(msg, nest);
}

void efa_nla_nest_cancel(struct sk_buff *msg, struct nlattr *nest)
{
	nla_nest_cancel(msg, nest);
}

struct ib_udata *efa_attrs_to_udata(struct uverbs_attr_bundle *attrs)
{
	return &attrs->driver_udata;
}

struct ib_ucontext *efa_udata_to_ucontext(struct ib_udata *udata)
{
	return udata ? rdma_udata_to_uverbs_attr_bundle(udata)->context : NULL;
}

u64 efa_mmap_offset(const struct rdma_user_mmap_entry *entry)
{
	return rdma_user_mmap_get_offset(entry);
}

int efa_mmap_noncached(struct ib_ucontext *ucontext, struct vm_area_struct *vma,
		       unsigned long pfn, struct rdma_user_mmap_entry *entry)
{
	return rdma_user_mmap_io(ucontext, vma, pfn, entry->npages * PAGE_SIZE,
				 pgprot_noncached(vma->vm_page_prot), entry);
}

int efa_mmap_writecombine(struct ib_ucontext *ucontext, struct vm_area_struct *vma,
			  unsigned long pfn, struct rdma_user_mmap_entry *entry)
{
	return rdma_user_mmap_io(ucontext, vma, pfn, entry->npages * PAGE_SIZE,
				 pgprot_writecombine(vma->vm_page_prot), entry);
}

int efa_mmap_cached(struct ib_ucontext *ucontext, struct vm_area_struct *vma,
		    unsigned long pfn, struct rdma_user_mmap_entry *entry)
{
	return rdma_user_mmap_io(ucontext, vma, pfn, entry->npages * PAGE_SIZE,
				 vma->vm_page_prot, entry);
}

unsigned long efa_coherent_to_pfn(void *address)
{
	return is_vmalloc_addr(address) ? vmalloc_to_pfn(address) :
					  PHYS_PFN(virt_to_phys(address));
}

struct ib_umem *efa_umem_get_va(struct ib_device *device, unsigned long start,
				size_t length, int access)
{
	return ib_umem_get_va(device, start, length, access);
}

struct ib_umem *efa_umem_get_dmabuf(struct ib_device *device, unsigned long offset,
				    size_t length, int fd, int access)
{
	struct ib_umem_dmabuf *dmabuf;

	dmabuf = ib_umem_dmabuf_get_pinned(device, offset, length, fd, access);
	return IS_ERR(dmabuf) ? ERR_CAST(dmabuf) : &dmabuf->umem;
}

bool efa_umem_is_contiguous(struct ib_umem *umem)
{
	return ib_umem_is_contiguous(umem);
}

dma_addr_t efa_umem_start(struct ib_umem *umem)
{
	return ib_umem_start_dma_addr(umem);
}

size_t efa_umem_num_blocks(struct ib_umem *umem, unsigned long block_size)
{
	return ib_umem_num_dma_blocks(umem, block_size);
}

void efa_umem_iter_start(struct ib_block_iter *iter, struct ib_umem *umem,
			 unsigned long block_size)
{
	__rdma_umem_block_iter_start(iter, umem, block_size);
}

size_t efa_umem_iter_fill(struct ib_block_iter *iter, u64 *blocks, size_t count)
{
	size_t i;

	for (i = 0; i < count && __rdma_umem_block_iter_next(iter); i++)
		blocks[i] = rdma_block_iter_dma_address(iter);
	return i;
}
