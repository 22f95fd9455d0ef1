#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_completions)]
mod tests {
    use super::*;
    use crate::rdma::work::RecvWrs;

    /// Returns the token of a receive with a number.
    fn token(wr_id: u64) -> Result<WrToken> {
        // SAFETY: All zeroes are a work request, which has numbers and pointers only.
        let mut wr: bindings::ib_recv_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: All variants are as large, and numbers or pointers.
        unsafe { (&raw mut wr.__bindgen_anon_1).cast::<u64>().write(wr_id) };
        // SAFETY: The work request is valid, and has no buffers.
        let mut wrs = unsafe { RecvWrs::new(&wr) };
        Ok(wrs.peek().ok_or(ENOENT)?.accept())
    }

    fn completion(qp: &QpRef) -> WorkCompletion<'_> {
        WorkCompletion {
            qp,
            port_num: 1,
            status: WcStatus::WrFlushErr,
            vendor_err: 2,
        }
    }

    /// Takes room for completions.
    fn room(places: &mut [MaybeUninit<bindings::ib_wc>], count: c_int) -> WorkCompletions<'_> {
        // SAFETY: The tests name no more than there are.
        unsafe { WorkCompletions::new(places.as_mut_ptr().cast(), count) }
    }

    #[test]
    fn there_is_as_much_room_as_was_asked_for() -> Result {
        let qp = QpRef::new(NonNull::dangling())?;
        let mut places = [MaybeUninit::uninit(); 2];
        assert!(room(&mut places, 0).place().is_none());
        assert!(room(&mut places, -1).place().is_none());
        let mut room = room(&mut places, 2);
        for number in 0..2 {
            let place = room.place().ok_or(ENOENT)?;
            place.complete(token(number)?, &completion(&qp));
        }
        assert!(room.place().is_none());
        assert_eq!(room.count(), 2);
        Ok(())
    }

    #[test]
    fn a_place_that_is_not_filled_stays() -> Result {
        let mut places = [MaybeUninit::uninit(); 1];
        let mut room = room(&mut places, 1);
        assert!(room.place().is_some());
        assert!(room.place().is_some());
        assert_eq!(room.count(), 0);
        Ok(())
    }

    #[test]
    fn a_completion_names_its_work_request() -> Result {
        let qp = QpRef::new(NonNull::dangling())?;
        let mut places = [MaybeUninit::uninit(); 1];
        let mut room = room(&mut places, 1);
        let place = room.place().ok_or(ENOENT)?;
        place.complete(token(u64::MAX)?, &completion(&qp));
        // SAFETY: The place was filled.
        let wc = unsafe { places[0].assume_init_ref() };
        // SAFETY: All variants are as large, and numbers or pointers.
        let number = unsafe { (&raw const wc.__bindgen_anon_1).cast::<u64>().read() };
        assert_eq!(number, u64::MAX);
        assert_eq!(wc.status, bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR);
        assert_eq!(wc.opcode, bindings::ib_wc_opcode_IB_WC_RECV);
        assert_eq!((wc.port_num, wc.vendor_err, wc.byte_len), (1, 2, 0));
        assert!(core::ptr::eq(wc.qp, NonNull::dangling().as_ptr()));
        Ok(())
    }

    #[test]
    fn what_was_received_is_reported() -> Result {
        let qp = QpRef::new(NonNull::dangling())?;
        for imm_data in [None, Some(7)] {
            let mut places = [MaybeUninit::uninit(); 1];
            let received = Received {
                byte_len: 3,
                src_qp: 4,
                slid: 5,
                is_rdma_write: imm_data.is_some(),
                imm_data,
            };
            let mut room = room(&mut places, 1);
            let place = room.place().ok_or(ENOENT)?;
            place.receive(token(0)?, &completion(&qp), &received);
            // SAFETY: The place was filled.
            let wc = unsafe { places[0].assume_init_ref() };
            assert_eq!((wc.byte_len, wc.src_qp, wc.slid), (3, 4, 5));
            let expected = match imm_data {
                None => bindings::ib_wc_opcode_IB_WC_RECV,
                Some(_) => bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
            };
            assert_eq!(wc.opcode, expected);
            // SAFETY: All variants are numbers.
            let imm = u32::from_be(unsafe { (&raw const wc.ex).cast::<u32>().read() });
            assert_eq!(imm, imm_data.unwrap_or(0));
        }
        Ok(())
    }

    #[test]
    fn a_queue_pair_that_is_gone_has_no_completion() -> Result {
        let qp = QpRef::new(NonNull::dangling())?;
        qp.forget();
        let mut places = [MaybeUninit::uninit(); 1];
        let mut room = room(&mut places, 1);
        let place = room.place().ok_or(ENOENT)?;
        place.complete(token(0)?, &completion(&qp));
        assert_eq!(room.count(), 0);
        Ok(())
    }
}
