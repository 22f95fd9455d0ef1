#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_dma_bufs)]
mod tests {
    use super::*;
    use crate::sync::atomic::{
        Atomic,
        Relaxed, //
    };

    /// What stands for pinned memory: how often it was unpinned.
    type Pinned = Atomic<u32>;

    /// Unpins.
    ///
    /// # Safety
    ///
    /// `this` must be a reference of [`Arc::into_raw`] to a [`Pinned`], which is not used afterwards.
    unsafe fn end(this: *const c_void) {
        // SAFETY: The caller guarantees that this is such a reference.
        let this = unsafe { Arc::from_raw(this.cast::<Pinned>()) };
        this.store(this.load(Relaxed) + 1, Relaxed);
    }

    fn pinned() -> Result<Arc<Pinned>> {
        Ok(Arc::new(Atomic::new(0), GFP_KERNEL)?)
    }

    fn add(list: &DmaBufs, pinned: &Arc<Pinned>) -> Result<usize> {
        let room = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let reference: *const c_void = Arc::into_raw(pinned.clone()).cast();
        // SAFETY: `end` is the function for such a reference.
        unsafe { list.add(room, reference, end) };
        Ok(reference.addr())
    }

    #[test]
    fn an_empty_list_ends() -> Result {
        DmaBufs::new()?.end_all();
        Ok(())
    }

    #[test]
    fn memory_is_unpinned_by_its_address() -> Result {
        let (list, pinned) = (DmaBufs::new()?, pinned()?);
        let address = add(&list, &pinned)?;
        assert_eq!(pinned.load(Relaxed), 0);
        list.end(address);
        assert_eq!(pinned.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn memory_is_unpinned_once() -> Result {
        let (list, pinned) = (DmaBufs::new()?, pinned()?);
        let address = add(&list, &pinned)?;
        list.end(address);
        list.end(address);
        list.end_all();
        assert_eq!(pinned.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn other_memory_stays_pinned() -> Result {
        let (list, one, other) = (DmaBufs::new()?, pinned()?, pinned()?);
        let address = add(&list, &one)?;
        add(&list, &other)?;
        list.end(address);
        assert_eq!(other.load(Relaxed), 0);
        list.end_all();
        assert_eq!(other.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn all_that_is_left_is_unpinned() -> Result {
        let list = DmaBufs::new()?;
        let all = [pinned()?, pinned()?, pinned()?];
        for pinned in &all {
            add(&list, pinned)?;
        }
        list.end_all();
        for pinned in &all {
            assert_eq!(pinned.load(Relaxed), 1);
        }
        Ok(())
    }
}
