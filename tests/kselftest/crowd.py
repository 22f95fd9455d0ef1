# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Objects of every kind that are created and destroyed in random order."""

import mmap
import os
import random
from functools import partial

import objects
from uverbs import opened

# Maximum number of objects of a crowd at a time.
AT_ONCE = 40


class Crowd:
    """A context that creates objects of random kinds, and destroys random objects.

    Nothing in it refers to it, so that its memory is freed with the last reference.
    """

    def __init__(self, function, seed, at_once=AT_ONCE, region=4 << 20):
        self.random = random.Random(seed)
        self.at_once = at_once
        self.context = opened(function)
        self.pd, _ = self.context.alloc_pd()
        self.channel = objects.CompletionChannel(self.context)
        self.cq = objects.CompletionQueue(self.context)
        self.memory = objects.Memory(region)
        self.alive = []

    def pds(self):
        handle, _ = self.context.alloc_pd()
        return partial(self.context.dealloc_pd, handle)

    def cqs(self):
        cq = objects.CompletionQueue(self.context)
        objects.Mapping(self.context, cq.response.q_mmap_key, cq.response.q_mmap_size, mmap.PROT_READ).close()
        return cq.destroy

    def channel_cqs(self):
        return objects.CompletionQueue(self.context, flags=objects.CQ_WITH_COMPLETION_CHANNEL, channel=self.channel.fd).destroy_by_write

    def umem_cqs(self):
        return objects.CompletionQueue(self.context, buffer=(objects.BUFFER_VA, 0, self.memory.address, mmap.PAGESIZE), cqe=128).destroy

    def qps(self):
        pair = objects.QueuePair(
            self.context, self.pd, self.cq.handle, self.cq.handle, qp_type=self.random.choice((objects.QPT_DRIVER, objects.QPT_UD))
        )
        if self.random.random() < 0.5:
            pair.to_rts()
            pair.query(1)
        objects.Mapping(self.context, pair.response.sq_db_mmap_key, mmap.PAGESIZE).close()
        return self.random.choice((pair.destroy, pair.destroy_by_ioctl))

    def regions(self):
        pages = self.random.choice((1, 15, 16, 512, 1024))
        length = min(pages * mmap.PAGESIZE, self.memory.length)
        return objects.MemoryRegion(self.context, self.pd, self.memory.address, length).dereg

    def ioctl_regions(self):
        region = objects.IoctlMemoryRegion(self.context, self.pd, self.memory.address, self.random.randrange(1, self.memory.length))
        region.query()
        region.efa_query()
        return region.dereg_by_ioctl

    def ahs(self):
        return objects.AddressHandle(self.context, self.pd).destroy

    kinds = (pds, cqs, channel_cqs, umem_cqs, qps, regions, ioctl_regions, ahs)

    def run(self, objects):
        for _ in range(objects):
            self.step()

    def step(self):
        """Creates an object, and destroys one if there are too many."""
        self.alive.append(self.random.choice(self.kinds)(self))
        if len(self.alive) > self.at_once:
            self.alive.pop(self.random.randrange(len(self.alive)))()

    def close(self):
        os.close(self.channel.fd)
        self.context.close()
