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
    fn device_attributes_are_zero_by_default() {
        let raw = DeviceAttr::default().to_raw();
        assert_eq!(raw.max_qp, 0);
        assert_eq!(raw.max_mr_size, 0);
        assert_eq!(raw.page_size_cap, 0);
        assert_eq!(raw.max_pkeys, 0);
    }

    #[test]
    fn device_attributes_reach_their_fields() {
        let attr = DeviceAttr {
            max_qp: 1,
            max_qp_wr: 2,
            max_cq: 3,
            max_cqe: 4,
            max_mr: 5,
            max_pd: 6,
            max_ah: 7,
            ..DeviceAttr::default()
        };
        let raw = attr.to_raw();
        assert_eq!(raw.max_qp, 1);
        assert_eq!(raw.max_qp_wr, 2);
        assert_eq!(raw.max_cq, 3);
        assert_eq!(raw.max_cqe, 4);
        assert_eq!(raw.max_mr, 5);
        assert_eq!(raw.max_pd, 6);
        assert_eq!(raw.max_ah, 7);
    }

    #[test]
    fn device_sge_limits_reach_their_fields() {
        let attr = DeviceAttr {
            max_send_sge: 1,
            max_recv_sge: 2,
            max_sge_rd: 3,
            ..DeviceAttr::default()
        };
        let raw = attr.to_raw();
        assert_eq!(raw.max_send_sge, 1);
        assert_eq!(raw.max_recv_sge, 2);
        assert_eq!(raw.max_sge_rd, 3);
    }

    #[test]
    fn device_ids_reach_their_fields() {
        let attr = DeviceAttr {
            vendor_id: 0x1d0f,
            vendor_part_id: 0xefa2,
            hw_ver: 0xefa2,
            ..DeviceAttr::default()
        };
        let raw = attr.to_raw();
        assert_eq!(raw.vendor_id, 0x1d0f);
        assert_eq!(raw.vendor_part_id, 0xefa2);
        assert_eq!(raw.hw_ver, 0xefa2);
    }

    #[test]
    fn attributes_that_are_not_listed_are_zero() {
        let raw = DeviceAttr {
            max_qp: u32::MAX,
            ..DeviceAttr::default()
        }
        .to_raw();
        assert_eq!(raw.max_srq, 0);
        assert_eq!(raw.max_mcast_grp, 0);
        assert_eq!(raw.device_cap_flags, 0);
    }

    #[test]
    fn port_is_active_and_up() {
        let raw = filled(&port());
        assert_eq!(raw.state, bindings::ib_port_state_IB_PORT_ACTIVE);
        assert_eq!(
            u32::from(raw.phys_state),
            bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP
        );
    }

    #[test]
    fn port_tables_have_their_lengths() {
        let raw = filled(&port());
        assert_eq!(raw.gid_tbl_len, 2);
        assert_eq!(raw.pkey_tbl_len, 3);
        assert_eq!(raw.lmc, 1);
        assert_eq!(raw.max_vl_num, 4);
        assert_eq!(raw.max_msg_sz, 1 << 30);
    }

    #[test]
    fn port_rate_is_that_of_the_core() {
        let raw = filled(&port());
        assert_eq!(
            u32::from(raw.active_width),
            bindings::ib_port_width_IB_WIDTH_8X
        );
        assert_eq!(
            u32::from(raw.active_speed),
            bindings::ib_port_speed_IB_SPEED_NDR
        );
    }

    #[test]
    fn every_speed_fits_its_field() {
        for speed in [
            PortSpeed::Sdr,
            PortSpeed::Ddr,
            PortSpeed::Fdr10,
            PortSpeed::Edr,
            PortSpeed::Hdr,
            PortSpeed::Ndr,
            PortSpeed::Xdr,
        ] {
            let raw = filled(&PortAttr {
                active_speed: speed,
                ..port()
            });
            assert_eq!(u32::from(raw.active_speed), speed as u32);
        }
    }

    #[test]
    fn every_width_fits_its_field() {
        for width in [PortWidth::X1, PortWidth::X4, PortWidth::X8, PortWidth::X12] {
            let raw = filled(&PortAttr {
                active_width: width,
                ..port()
            });
            assert_eq!(u32::from(raw.active_width), width as u32);
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
