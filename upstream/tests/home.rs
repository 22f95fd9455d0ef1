#[cfg(CONFIG_RUST_INFINIBAND_KUNIT_TEST)]
#[macros::kunit_tests(rust_rdma_home)]
mod tests {
    use super::*;

    /// Sets the name that a device had.
    fn name(home: &Home, name: &CStr) {
        let mut to = home.name.lock();
        for (to, from) in to.iter_mut().zip(name.to_bytes_with_nul()) {
            *to = *from;
        }
    }

    /// Returns whether the core's function gets this name.
    fn gets(name: *const c_char, expected: &CStr) -> bool {
        // SAFETY: The name ends with a zero byte.
        unsafe { CStr::from_char_ptr(name) }.to_bytes() == expected.to_bytes()
    }

    #[test]
    fn a_new_device_gets_the_pattern() -> Result {
        Home::new(c"null%d")?.with_name(|name, _| {
            assert!(gets(name, c"null%d"));
            Ok(())
        })
    }

    #[test]
    fn a_pattern_has_no_format_but_that_of_a_number() {
        for (pattern, is_valid) in [
            (c"a%d", true),
            (c"a", true),
            (c"a%s", false),
            (c"%d%d", false),
        ] {
            assert_eq!(Home::new(pattern).is_ok(), is_valid);
        }
    }

    #[test]
    fn a_device_gets_its_name_again() -> Result {
        let home = Home::new(c"null%d")?;
        name(&home, c"rdmap0");
        home.with_name(|name, assigned| {
            assert!(gets(name, c"rdmap0"));
            let by_user = bindings::rdma_nl_name_assign_type_RDMA_NAME_ASSIGN_TYPE_USER;
            assert_eq!(assigned, by_user);
            Ok(())
        })
    }

    #[test]
    fn a_name_like_a_pattern_is_not_used() -> Result {
        let home = Home::new(c"null%d")?;
        name(&home, c"%s%s");
        home.with_name(|name, _| {
            assert!(gets(name, c"null%d"));
            Ok(())
        })
    }

    #[test]
    fn a_name_that_is_taken_gives_way_to_the_pattern() -> Result {
        let home = Home::new(c"null%d")?;
        name(&home, c"rdmap0");
        home.with_name(|name, _| {
            if gets(name, c"rdmap0") {
                return Err(ENFILE);
            }
            assert!(gets(name, c"null%d"));
            Ok(())
        })
    }

    #[test]
    fn other_errors_are_returned() -> Result {
        let home = Home::new(c"null%d")?;
        name(&home, c"rdmap0");
        assert!(home.with_name(|_, _| Err(ENOMEM)) == Err(ENOMEM));
        Ok(())
    }

    #[test]
    fn a_new_device_is_in_the_initial_namespace() -> Result {
        let net = Home::new(c"null%d")?.net();
        assert!(net.as_raw() == &raw mut bindings::init_net);
        Ok(())
    }
}
