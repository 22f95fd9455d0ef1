#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_client_posted)]
mod tests {
    use super::*;

    fn posted(id: u64, opcode: WcOpcode) -> Posted<'static> {
        Posted {
            id,
            opcode,
            held: Held::Nothing,
            ah: None,
        }
    }

    /// Posts a work request; returns the number that the core has for it.
    fn post(outstanding: &Outstanding<'static>, id: u64, opcode: WcOpcode) -> Result<u64> {
        let mut posted_as = 0;
        outstanding.post(posted(id, opcode), |number| {
            posted_as = number;
            Ok(())
        })?;
        Ok(posted_as)
    }

    #[test]
    fn a_work_request_completes_once() -> Result {
        let outstanding = Outstanding::new(1, 1)?;
        let number = post(&outstanding, 7, WcOpcode::Send)?;
        assert_eq!(outstanding.take(number).map(|posted| posted.id), Some(7));
        assert!(outstanding.take(number).is_none());
        Ok(())
    }

    #[test]
    fn a_number_is_not_that_of_the_next_use() -> Result {
        let outstanding = Outstanding::new(1, 1)?;
        let first = post(&outstanding, 7, WcOpcode::Send)?;
        outstanding.take(first).ok_or(ENOENT)?;
        let second = post(&outstanding, 8, WcOpcode::Send)?;
        assert!(first != second);
        assert!(outstanding.take(first).is_none());
        assert_eq!(outstanding.take(second).map(|posted| posted.id), Some(8));
        Ok(())
    }

    #[test]
    fn sends_and_receives_have_numbers_of_their_own() -> Result {
        let outstanding = Outstanding::new(1, 1)?;
        let send = post(&outstanding, 7, WcOpcode::RdmaRead)?;
        let recv = post(&outstanding, 8, WcOpcode::Recv)?;
        assert!(send != recv);
        assert_eq!(outstanding.take(recv).map(|posted| posted.id), Some(8));
        assert_eq!(outstanding.take(send).map(|posted| posted.id), Some(7));
        Ok(())
    }

    #[test]
    fn a_queue_has_its_depth() -> Result {
        let outstanding = Outstanding::new(2, 0)?;
        post(&outstanding, 0, WcOpcode::Send)?;
        post(&outstanding, 1, WcOpcode::Send)?;
        assert_eq!(post(&outstanding, 2, WcOpcode::Send), Err(ENOMEM));
        assert_eq!(post(&outstanding, 3, WcOpcode::Recv), Err(ENOMEM));
        Ok(())
    }

    #[test]
    fn what_could_not_be_posted_is_not_kept() -> Result {
        let outstanding = Outstanding::new(1, 1)?;
        let failed = outstanding.post(posted(0, WcOpcode::Send), |_| Err(EINVAL));
        assert_eq!(failed, Err(EINVAL));
        post(&outstanding, 1, WcOpcode::Send)?;
        Ok(())
    }

    #[test]
    fn numbers_of_nothing_are_refused() -> Result {
        let outstanding = Outstanding::new(1, 1)?;
        for number in [0, 1, u64::from(u32::MAX), u64::MAX] {
            assert!(outstanding.take(number).is_none());
        }
        Ok(())
    }
}
