#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_object)]
mod tests {
    use super::*;
    use crate::sync::Arc;

    type Counted = Object<u64, u32, Arc<u8>>;

    /// Allocates an object as the core does, zeroed.
    fn allocate() -> Result<KBox<Counted>> {
        let zeroed = KBox::<Counted>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
        // SAFETY: Zeroes are an object whose parts are not initialized.
        Ok(unsafe { zeroed.assume_init() })
    }

    #[test]
    fn data_is_dropped_once() -> Result {
        let data = Arc::new(7, GFP_KERNEL)?;
        let mut object = allocate()?;
        let core: *mut u64 = (&raw mut *object).cast();
        // SAFETY: The object was just allocated, and does not move.
        let found = unsafe { Counted::init(core, Ok(data.clone())) }?;
        assert_eq!(**found, 7);
        // SAFETY: The data was just initialized, and is not used any more.
        unsafe { Counted::drop_data(core) };
        drop(object);
        // There is no other reference.
        assert!(Arc::into_unique_or_drop(data).is_some());
        Ok(())
    }

    #[test]
    fn an_error_leaves_no_data() -> Result {
        let mut object = allocate()?;
        let core: *mut u64 = (&raw mut *object).cast();
        // SAFETY: The object was just allocated, and does not move.
        let created = unsafe { Counted::init(core, Err::<Arc<u8>, _>(EINVAL)) };
        assert!(created.is_err());
        Ok(())
    }

    #[test]
    fn the_extra_data_follows_the_object_of_the_core() -> Result {
        let mut object = allocate()?;
        let core: *mut u64 = (&raw mut *object).cast();
        let data = Arc::new(7, GFP_KERNEL)?;
        // SAFETY: The object was just allocated, and does not move.
        unsafe { Counted::init(core, Ok(data)) }?;
        // SAFETY: Nothing else uses the object.
        unsafe { Counted::set_extra(core, 9) };
        // SAFETY: The data was just initialized.
        assert_eq!(*unsafe { Counted::extra(core) }, 9);
        let extra = core.wrapping_add(1).cast::<u32>();
        // SAFETY: The object has room for a number there.
        assert_eq!(unsafe { extra.read() }, 9);
        // SAFETY: The data is initialized, and is not used any more.
        unsafe { Counted::drop_data(core) };
        Ok(())
    }

    #[test]
    fn an_object_begins_with_that_of_the_core() {
        assert_eq!(core::mem::offset_of!(Counted, core), 0);
        assert!(Counted::SIZE >= size_of::<u64>() + size_of::<u32>() + size_of::<Arc<u8>>());
    }
}
