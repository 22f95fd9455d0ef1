// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Static inlines and macros of the kernel, as functions that Rust can call. */

#include <linux/dma-mapping.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/ratelimit.h>
#include <linux/semaphore.h>
#include <linux/utsname.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>
#include <net/netlink.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/rdma_netlink.h>
#include <rdma/uverbs_ioctl.h>

void efa_sema_init(struct semaphore *semaphore, int count)
{
	sema_init(semaphore, count);
}

void efa_ratelimit_init(struct ratelimit_state *state)
{
	ratelimit_default_init(state);
}

/* Returns the mask of the nth online CPU, counted from 0, or NULL if n is too large. */
const struct cpumask *efa_cpumask_of_nth_online(unsigned int n)
{
	unsigned int cpu = cpumask_nth(n, cpu_online_mask);

	return cpu < nr_cpu_ids ? cpumask_of(cpu) : NULL;
}

unsigned int efa_num_online_cpus(void)
{
	return num_online_cpus();
}

enum ib_mtu efa_ib_mtu_int_to_enum(int mtu)
{
	return ib_mtu_int_to_enum(mtu);
}

const char *efa_init_utsname(bool version)
{
	return version ? init_utsname()->version : init_utsname()->release;
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

u64 efa_net_cookie(const struct ib_device *device)
{
	return read_pnet(&device->coredev.rdma_net)->net_cookie;
}

/* Takes a reference to the net namespace with this cookie, or to init_net if there is none. */
struct net *efa_get_net(u64 cookie)
{
	struct net *net, *found = NULL;

	rcu_read_lock();
	for_each_net_rcu(net)
		if (net->net_cookie == cookie)
			found = maybe_get_net(net);
	rcu_read_unlock();
	return found ?: get_net(&init_net);
}

void efa_put_net(struct net *net)
{
	put_net(net);
}

struct ib_ucontext *efa_udata_to_ucontext(struct ib_udata *udata)
{
	return udata ? rdma_udata_to_uverbs_attr_bundle(udata)->context : NULL;
}

u64 efa_mmap_offset(const struct rdma_user_mmap_entry *entry)
{
	return rdma_user_mmap_get_offset(entry);
}

pgprot_t efa_pgprot_noncached(const struct vm_area_struct *vma)
{
	return pgprot_noncached(vma->vm_page_prot);
}

pgprot_t efa_pgprot_writecombine(const struct vm_area_struct *vma)
{
	return pgprot_writecombine(vma->vm_page_prot);
}

/* ioremap_wc() is a function on x86 and a macro on arm64. */
void __iomem *efa_ioremap_wc(phys_addr_t address, size_t size)
{
	return ioremap_wc(address, size);
}

/* Writes to a doorbell, after all earlier writes and before all later accesses. */
void efa_ring_ordered(u32 value, void __iomem *doorbell)
{
	wmb(); /* Earlier writes, those to ioremap_wc() memory included, complete first. */
	writel(value, doorbell);
	mb(); /* Later accesses, such as writes of the next descriptor, follow it. */
}

/* Allocates pages that each have a reference count, as vm_insert_page() requires. */
void *efa_alloc_user_pages(size_t size)
{
	return alloc_pages_exact(size, GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN);
}

int efa_mmap_pages(struct vm_area_struct *vma, void *pages)
{
	unsigned long offset;
	int ret = 0;

	for (offset = 0; !ret && offset < vma->vm_end - vma->vm_start; offset += PAGE_SIZE)
		ret = vm_insert_page(vma, vma->vm_start + offset, virt_to_page(pages + offset));
	return ret;
}

/* Maps pages for DMA. Fails, without a warning, where the platform would need a bounce buffer. */
int efa_dma_map(struct device *dev, void *pages, size_t size, dma_addr_t *address)
{
	if (virt_to_phys(pages) + size - 1 > min_not_zero(dma_get_mask(dev), dev->bus_dma_limit))
		return -EIO;
	*address = dma_map_single_attrs(dev, pages, size, DMA_BIDIRECTIONAL,
					DMA_ATTR_REQUIRE_COHERENT);
	return dma_mapping_error(dev, *address);
}

void efa_dma_unmap(struct device *dev, dma_addr_t address, size_t size)
{
	dma_unmap_single_attrs(dev, address, size, DMA_BIDIRECTIONAL, DMA_ATTR_REQUIRE_COHERENT);
}

void efa_init_delayed_work(struct delayed_work *work, work_func_t function)
{
	INIT_DELAYED_WORK(work, function);
}

unsigned long efa_coherent_to_pfn(void *address)
{
	return is_vmalloc_addr(address) ? vmalloc_to_pfn(address) : PHYS_PFN(virt_to_phys(address));
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

void efa_umem_iter_start(struct ib_block_iter *iter, struct ib_umem *umem, unsigned long size)
{
	__rdma_umem_block_iter_start(iter, umem, size);
}

size_t efa_umem_iter_fill(struct ib_block_iter *iter, u64 *blocks, size_t count)
{
	size_t i;

	for (i = 0; i < count && __rdma_umem_block_iter_next(iter); i++)
		blocks[i] = rdma_block_iter_dma_address(iter);
	return i;
}
