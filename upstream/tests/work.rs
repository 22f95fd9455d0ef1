#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_work)]
mod tests {
    use super::*;
    use core::{
        mem::MaybeUninit,
        ptr::null, //
    };

    const QPN: u32 = 7;
    const QKEY: u32 = 8;

    /// The memory region of every registration.
    ///
    /// # Safety
    ///
    /// None.
    unsafe fn mr_of(_mr: *mut bindings::ib_mr) -> &'static u32 {
        &1
    }

    /// An RDMA work request of SRD, with which one of its sends begins.
    fn srd(opcode: bindings::ib_wr_opcode) -> bindings::ib_srd_rdma_wr {
        // SAFETY: All zeroes are a work request, which has numbers and pointers only.
        let mut wr: bindings::ib_srd_rdma_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        wr.wr.wr.opcode = opcode;
        wr.wr.remote_qpn = QPN;
        wr.wr.remote_qkey = QKEY;
        wr.remote_addr = 9;
        wr.rkey = 10;
        wr
    }

    fn sge(addr: u64, length: u32) -> bindings::ib_sge {
        bindings::ib_sge {
            addr,
            length,
            lkey: 3,
        }
    }

    /// Room for an address handle, of which the tests use nothing.
    static HANDLE: [u64; 64] = [0; 64];

    /// An RDMA work request of SRD with an address handle.
    fn rdma(opcode: bindings::ib_wr_opcode) -> bindings::ib_srd_rdma_wr {
        let mut wr = srd(opcode);
        wr.wr.ah = (&raw const HANDLE).cast_mut().cast();
        wr
    }

    /// Takes the list that a work request of SRD begins.
    fn list(wr: &bindings::ib_srd_rdma_wr) -> SendWrs<'_, (), u32> {
        // SAFETY: The work request is of SRD. The function can be called with any region.
        unsafe { SendWrs::new(&raw const wr.wr.wr, &SendWrLayout::EFA_SRD, 0, mr_of) }
    }

    /// Returns what a work request of SRD asks for.
    fn operation(wr: &bindings::ib_srd_rdma_wr) -> Result<SendOp<'_, (), u32>> {
        list(wr).peek().ok_or(ENOENT)?.wr().operation()
    }

    #[test]
    fn an_empty_list_has_no_work_request() {
        // SAFETY: The list is empty.
        let mut wrs: SendWrs<'_, (), u32> =
            unsafe { SendWrs::new(null(), &SendWrLayout::UD, 0, mr_of) };
        assert!(wrs.peek().is_none());
        // SAFETY: The list is empty.
        assert!(unsafe { RecvWrs::new(null(), 0) }.peek().is_none());
    }

    #[test]
    fn a_send_has_its_peer() -> Result {
        let wr = srd(bindings::ib_wr_opcode_IB_WR_SEND);
        let SendOp::Send(wr) = operation(&wr)? else {
            return Err(EINVAL);
        };
        assert_eq!(wr.remote_qpn(), QPN);
        assert_eq!(wr.remote_qkey(), QKEY);
        assert!(wr.imm_data().is_none());
        Ok(())
    }

    #[test]
    fn a_send_without_address_handle_is_refused() -> Result {
        let wr = srd(bindings::ib_wr_opcode_IB_WR_SEND);
        let SendOp::Send(wr) = operation(&wr)? else {
            return Err(EINVAL);
        };
        assert_eq!(wr.ah().err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn immediate_data_is_in_network_order() -> Result {
        let mut wr = srd(bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM);
        // SAFETY: All variants are numbers.
        unsafe { (&raw mut wr.wr.wr.ex).cast::<u32>().write(5u32.to_be()) };
        let SendOp::Send(wr) = operation(&wr)? else {
            return Err(EINVAL);
        };
        assert_eq!(wr.imm_data(), Some(5));
        Ok(())
    }

    #[test]
    fn a_write_and_a_read_have_memory_of_the_peer() -> Result {
        let wr = rdma(bindings::ib_wr_opcode_IB_WR_RDMA_WRITE);
        let SendOp::RdmaWrite(_, memory) = operation(&wr)? else {
            return Err(EINVAL);
        };
        assert_eq!((memory.addr, memory.rkey), (9, 10));
        let wr = rdma(bindings::ib_wr_opcode_IB_WR_RDMA_READ);
        let SendOp::RdmaRead(_, memory) = operation(&wr)? else {
            return Err(EINVAL);
        };
        assert_eq!((memory.addr, memory.rkey), (9, 10));
        Ok(())
    }

    /// `ib_drain_qp` posts one in a structure that ends before the fields of SRD.
    #[test]
    fn a_write_without_address_handle_is_refused() {
        let wr = srd(bindings::ib_wr_opcode_IB_WR_RDMA_WRITE);
        assert_eq!(operation(&wr).err(), Some(EINVAL));
    }

    #[test]
    fn a_transport_without_rdma_refuses_it() -> Result {
        let wr = srd(bindings::ib_wr_opcode_IB_WR_RDMA_WRITE);
        // SAFETY: A work request of SRD is as long as one of UD, of which nothing is read here.
        let mut wrs: SendWrs<'_, (), u32> =
            unsafe { SendWrs::new(&raw const wr.wr.wr, &SendWrLayout::UD, 0, mr_of) };
        let next = wrs.peek().ok_or(ENOENT)?;
        assert_eq!(next.wr().operation().err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn an_invalidation_has_its_key() -> Result {
        let mut wr = srd(bindings::ib_wr_opcode_IB_WR_LOCAL_INV);
        // SAFETY: All variants are numbers.
        unsafe { (&raw mut wr.wr.wr.ex).cast::<u32>().write(6) };
        let SendOp::LocalInv { rkey } = operation(&wr)? else {
            return Err(EINVAL);
        };
        assert_eq!(rkey, 6);
        Ok(())
    }

    #[test]
    fn a_registration_has_its_region() -> Result {
        // SAFETY: All zeroes are a region, which has numbers and pointers only.
        let mut region: bindings::ib_mr = unsafe { MaybeUninit::zeroed().assume_init() };
        (region.lkey, region.iova, region.length) = (1, 2, 3);
        // SAFETY: All zeroes are a work request, which has numbers and pointers only.
        let mut wr: bindings::ib_reg_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_REG_MR;
        wr.mr = &mut region;
        // SAFETY: The work request is a registration. The function can be called with any region.
        let mut wrs: SendWrs<'_, (), u32> =
            unsafe { SendWrs::new(&raw const wr.wr, &SendWrLayout::EFA_SRD, 0, mr_of) };
        let SendOp::RegMr(found) = wrs.peek().ok_or(ENOENT)?.wr().operation()? else {
            return Err(EINVAL);
        };
        assert_eq!((found.lkey(), found.iova(), found.length()), (1, 2, 3));
        assert_eq!(*found.mr(), 1);
        Ok(())
    }

    #[test]
    fn a_registration_without_region_is_refused() -> Result {
        // SAFETY: All zeroes are a work request, which has numbers and pointers only.
        let mut wr: bindings::ib_reg_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_REG_MR;
        // SAFETY: The work request is a registration, which names no region.
        let mut wrs: SendWrs<'_, (), u32> =
            unsafe { SendWrs::new(&raw const wr.wr, &SendWrLayout::EFA_SRD, 0, mr_of) };
        let next = wrs.peek().ok_or(ENOENT)?;
        assert_eq!(next.wr().operation().err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn other_opcodes_are_refused() -> Result {
        let wr = srd(bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP);
        assert_eq!(operation(&wr).err(), Some(EINVAL));
        // It is not accepted, either.
        let mut wrs = list(&wr);
        assert!(wrs.peek().ok_or(ENOENT)?.accept().is_err());
        assert!(!wrs.as_raw().is_null());
        Ok(())
    }

    #[test]
    fn flags_that_an_operation_lacks_are_refused() {
        let mut wr = srd(bindings::ib_wr_opcode_IB_WR_SEND);
        wr.wr.wr.send_flags = bindings::ib_send_flags_IB_SEND_FENCE;
        assert_eq!(operation(&wr).err(), Some(EINVAL));
        let mut wr = srd(bindings::ib_wr_opcode_IB_WR_RDMA_READ);
        wr.wr.wr.send_flags = bindings::ib_send_flags_IB_SEND_INLINE;
        assert_eq!(operation(&wr).err(), Some(EINVAL));
    }

    #[test]
    fn what_is_accepted_leaves_the_list() -> Result {
        let second = srd(bindings::ib_wr_opcode_IB_WR_SEND);
        let mut first = srd(bindings::ib_wr_opcode_IB_WR_RDMA_READ);
        // SAFETY: All variants are as large, and numbers or pointers.
        unsafe {
            (&raw mut first.wr.wr.__bindgen_anon_1)
                .cast::<u64>()
                .write(11)
        };
        first.wr.wr.next = (&raw const second.wr.wr).cast_mut();
        first.wr.wr.send_flags = bindings::ib_send_flags_IB_SEND_SIGNALED;

        let mut wrs = list(&first);
        // What is only looked at stays.
        assert!(wrs.peek().ok_or(ENOENT)?.wr().is_signaled());
        let token = wrs.peek().ok_or(ENOENT)?.accept()?;
        assert!(token.opcode() == WcOpcode::RdmaRead as u32);
        assert_eq!(token.into_wr_id(), 11);
        assert!(core::ptr::eq(wrs.as_raw(), &second.wr.wr));
        assert!(!wrs.peek().ok_or(ENOENT)?.wr().is_signaled());
        wrs.peek().ok_or(ENOENT)?.accept()?;
        assert!(wrs.as_raw().is_null());
        Ok(())
    }

    #[test]
    fn inline_data_is_copied_if_it_fits() -> Result {
        let bytes = *b"abcde";
        let mut sges = [
            sge(bytes.as_ptr() as u64, 2),
            sge(bytes[2..].as_ptr() as u64, 3),
        ];
        let mut wr = srd(bindings::ib_wr_opcode_IB_WR_SEND);
        wr.wr.wr.send_flags = bindings::ib_send_flags_IB_SEND_INLINE;
        wr.wr.wr.sg_list = sges.as_mut_ptr();
        wr.wr.wr.num_sge = 2;
        let SendOp::Send(wr) = operation(&wr)? else {
            return Err(EINVAL);
        };
        let SendData::Inline(data) = wr.data() else {
            return Err(EINVAL);
        };
        let mut copy = [0; 6];
        assert_eq!(data.copy_to(&mut copy), Some(5));
        assert_eq!(&copy, b"abcde\0");
        assert!(data.copy_to(&mut copy[..4]).is_none());
        Ok(())
    }

    #[test]
    fn a_length_has_32_bits() -> Result {
        let mut sges = [sge(0, u32::MAX), sge(0, 1)];
        let mut wr = srd(bindings::ib_wr_opcode_IB_WR_SEND);
        wr.wr.wr.sg_list = sges.as_mut_ptr();
        for (count, length) in [(0, Some(0)), (1, Some(u32::MAX)), (2, None)] {
            wr.wr.wr.num_sge = count;
            let SendOp::Send(wr) = operation(&wr)? else {
                return Err(EINVAL);
            };
            assert_eq!(wr.data().length(), length);
        }
        Ok(())
    }

    #[test]
    fn a_receive_has_its_buffers() -> Result {
        let mut sges = [sge(1, 2)];
        // SAFETY: All zeroes are a work request, which has numbers and pointers only.
        let mut wr: bindings::ib_recv_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        wr.sg_list = sges.as_mut_ptr();
        for (count, buffers) in [(-1, 0), (0, 0), (1, 1)] {
            wr.num_sge = count;
            // SAFETY: The work request has so many buffers, or none.
            let mut wrs = unsafe { RecvWrs::new(&wr, 0) };
            let next = wrs.peek().ok_or(ENOENT)?;
            assert_eq!(next.sges().len(), buffers);
            if let Some(sge) = next.sges().first() {
                assert_eq!((sge.addr(), sge.length(), sge.lkey()), (1, 2, 3));
            }
            assert!(next.accept().opcode() == WcOpcode::Recv as u32);
            assert!(wrs.as_raw().is_null());
        }
        Ok(())
    }
}
