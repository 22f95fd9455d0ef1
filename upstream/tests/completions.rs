#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_completions)]
mod tests {
    use super::*;
    use crate::rdma::work::RecvWrs;
    use core::ptr::dangling_mut;

    /// Makes a reference to a queue pair, whose queues are that of [`room`].
    fn pair() -> Result<Arc<QpRef>> {
        QpRef::new(dangling_mut(), [dangling_mut(); 2], None)
    }

    /// Returns the token of a receive of a queue pair, with a number.
    fn token(qp: &QpRef, wr_id: u64) -> Result<WrToken> {
        let mut wr = bindings::ib_recv_wr::default();
        // SAFETY: All variants are as large, and numbers or pointers.
        unsafe { (&raw mut wr.__bindgen_anon_1).cast::<u64>().write(wr_id) };
        // SAFETY: The work request is valid, and has no buffers.
        let mut wrs = unsafe { RecvWrs::new(&wr, qp.queues()[1]) };
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
        unsafe { WorkCompletions::new(dangling_mut(), places.as_mut_ptr().cast(), count) }
    }

    #[test]
    fn there_is_as_much_room_as_was_asked_for() -> Result {
        let qp = pair()?;
        let mut places = [MaybeUninit::uninit(); 2];
        assert!(room(&mut places, 0).place().is_none());
        assert!(room(&mut places, -1).place().is_none());
        let mut room = room(&mut places, 2);
        for number in 0..2 {
            let place = room.place().ok_or(ENOENT)?;
            place.complete(token(&qp, number)?, &completion(&qp));
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
        let qp = pair()?;
        let mut places = [MaybeUninit::uninit(); 1];
        let mut room = room(&mut places, 1);
        let place = room.place().ok_or(ENOENT)?;
        place.complete(token(&qp, u64::MAX)?, &completion(&qp));
        // SAFETY: The place was filled.
        let wc = unsafe { places[0].assume_init_ref() };
        // SAFETY: All variants are as large, and numbers or pointers.
        let number = unsafe { (&raw const wc.__bindgen_anon_1).cast::<u64>().read() };
        assert_eq!(number, u64::MAX);
        assert_eq!(wc.status, bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR);
        assert_eq!(wc.opcode, bindings::ib_wc_opcode_IB_WC_RECV);
        assert_eq!((wc.port_num, wc.vendor_err, wc.byte_len), (1, 2, 0));
        assert!(core::ptr::eq(wc.qp, dangling_mut()));
        Ok(())
    }

    #[test]
    fn what_was_received_is_reported() -> Result {
        let qp = pair()?;
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
            place.receive(token(&qp, 0)?, &completion(&qp), &received);
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
        let qp = pair()?;
        qp.forget();
        let mut places = [MaybeUninit::uninit(); 1];
        let mut room = room(&mut places, 1);
        let place = room.place().ok_or(ENOENT)?;
        place.complete(token(&qp, 0)?, &completion(&qp));
        assert_eq!(room.count(), 0);
        Ok(())
    }

    #[test]
    fn a_work_request_does_not_complete_elsewhere() -> Result {
        let (qp, other) = (pair()?, pair()?);
        let queues = [core::ptr::null_mut(); 2];
        let elsewhere = QpRef::new(dangling_mut(), queues, None)?;
        let mut places = [MaybeUninit::uninit(); 1];
        let mut room = room(&mut places, 1);
        let place = room.place().ok_or(ENOENT)?;
        place.complete(token(&other, 0)?, &completion(&qp));
        let place = room.place().ok_or(ENOENT)?;
        place.complete(token(&elsewhere, 0)?, &completion(&elsewhere));
        assert_eq!(room.count(), 0);
        Ok(())
    }
}
