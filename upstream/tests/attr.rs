#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_attr)]
mod tests {
    use super::*;

    fn port() -> PortAttr {
        PortAttr {
            state: PortState::Active,
            phys_state: PortPhysState::LinkUp,
            max_mtu: 4096,
            active_mtu: 1024,
            max_msg_sz: 1 << 30,
            gid_tbl_len: 2,
            pkey_tbl_len: 3,
            lmc: 1,
            max_vl_num: 4,
            active_width: PortWidth::X8,
            active_speed: PortSpeed::Ndr,
        }
    }

    fn filled(attr: &PortAttr) -> bindings::ib_port_attr {
        let mut raw = bindings::ib_port_attr::default();
        attr.fill(&mut raw);
        raw
    }

    #[test]
    fn device_attributes_reach_their_fields_and_others_are_zero() {
        let attr = DeviceAttr {
            vendor_id: 0x1d0f,
            hw_ver: 0xefa2,
            max_qp: 1,
            max_send_sge: 2,
            max_recv_sge: 3,
            max_pd: 4,
            ..DeviceAttr::default()
        };
        let raw = attr.to_raw();
        assert_eq!(raw.vendor_id, 0x1d0f);
        assert_eq!(raw.hw_ver, 0xefa2);
        assert_eq!(raw.max_qp, 1);
        assert_eq!(raw.max_send_sge, 2);
        assert_eq!(raw.max_recv_sge, 3);
        assert_eq!(raw.max_pd, 4);
        assert_eq!(raw.max_cq, 0);
        assert_eq!(raw.max_srq, 0);
        assert_eq!(raw.device_cap_flags, 0);
    }

    #[test]
    fn port_attributes_reach_their_fields() {
        let raw = filled(&port());
        assert_eq!(raw.state, bindings::ib_port_state_IB_PORT_ACTIVE);
        assert_eq!(raw.gid_tbl_len, 2);
        assert_eq!(raw.pkey_tbl_len, 3);
        assert_eq!(raw.lmc, 1);
        assert_eq!(raw.max_vl_num, 4);
        assert_eq!(raw.max_msg_sz, 1 << 30);
        assert_eq!(u32::from(raw.active_width), PortWidth::X8 as u32);
        assert_eq!(u32::from(raw.active_speed), PortSpeed::Ndr as u32);
    }

    #[test]
    fn a_name_has_no_format_but_that_of_a_number() {
        for (name, is_valid) in [
            (c"a%d", true),
            (c"a", true),
            (c"a%s", false),
            (c"%d%d", false),
        ] {
            assert_eq!(check_name(name).is_ok(), is_valid);
        }
    }

    #[test]
    fn mtus_of_the_specification_are_exact() {
        assert_eq!(mtu(256), bindings::ib_mtu_IB_MTU_256);
        assert_eq!(mtu(512), bindings::ib_mtu_IB_MTU_512);
        assert_eq!(mtu(1024), bindings::ib_mtu_IB_MTU_1024);
        assert_eq!(mtu(2048), bindings::ib_mtu_IB_MTU_2048);
        assert_eq!(mtu(4096), bindings::ib_mtu_IB_MTU_4096);
    }

    #[test]
    fn other_mtus_are_rounded_down() {
        assert_eq!(mtu(1023), bindings::ib_mtu_IB_MTU_512);
        assert_eq!(mtu(4095), bindings::ib_mtu_IB_MTU_2048);
        assert_eq!(mtu(8192), bindings::ib_mtu_IB_MTU_4096);
    }

    #[test]
    fn extreme_mtus_are_those_at_the_ends() {
        assert_eq!(mtu(0), bindings::ib_mtu_IB_MTU_256);
        assert_eq!(mtu(u32::MAX), bindings::ib_mtu_IB_MTU_4096);
    }

    #[test]
    fn both_mtus_of_a_port_are_converted() {
        let raw = filled(&port());
        assert_eq!(raw.max_mtu, bindings::ib_mtu_IB_MTU_4096);
        assert_eq!(raw.active_mtu, bindings::ib_mtu_IB_MTU_1024);
    }
}
