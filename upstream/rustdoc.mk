# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# The documentation of the kernel crate, without that of the crates KEEP, which was made before.

include Makefile
efa_rustdoc: prepare
	$(Q)$(MAKE) $(build)=rust $(KEEP:%=-o rustdoc-%) rustdoc-kernel
