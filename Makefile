# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Targets of this clone. All of them run in a Debian root, which the first of them makes in $XDG_CACHE_HOME/efa-rs (~/.cache/efa-rs).
# To build only the module, for a kernel of your own: make -C KDIR M=$PWD/efa_rs.

FLAVOUR ?=
DRIVER ?=

.PHONY: help
help:
	@echo 'make demo            boots two stock Debian kernels with an emulated EFA each, and moves data between them'
	@echo 'make vm              a shell in such a guest; tools/vm --help has more   DRIVER= FLAVOUR= DEVICES= or INSTANCE= USERLAND='
	@echo 'make build           builds WHAT="rust-cloud-amd64 emulator" (tools/builds.mk has all), and prints the folders'
	@echo 'make check           the suites of CI, or those of SUITE=, or the tests ONLY=PROGRAM::CASE   DRIVER= FLAVOUR= USERLAND= LENGTH= JUNIT='
	@echo 'make check-all       the same, with the C driver, more kernels and networks, recovery and peer memory'
	@echo 'make bench           measures WHAT=driver, data or srd, beside the C driver, rdma_rxe and TCP'
	@echo 'make package         makes a release, or WHAT="deb rpm dist emulator-deb emulator-dist image", and prints the files   BUGS='
	@echo 'make clean           removes the builds of this clone, or with ALL=1 the whole cache'
	@echo
	@echo 'SUITE    names of tests/test_*.py, separated by commas: all their tests, whatever their tier'
	@echo 'ONLY     tests by name, such as queues, queues::create_qp* or host,abi'
	@echo 'DRIVER   rust (default), or c: Linux'\''s own driver, for comparison'
	@echo 'FLAVOUR  cloud-amd64 (default, what EC2 images run), amd64, debug, cloud-arm64, arm64 or arm64-16k'
	@echo 'LENGTH   of a suite that can be longer: rounds, messages or seconds, as its file says'

devices = $(if $(INSTANCE),--instance $(INSTANCE),$(patsubst %,--device %,$(or $(DEVICES),profile=efa2)))
kernel = $(DRIVER:%=--driver %) $(FLAVOUR:%=--flavour %) $(USERLAND:%=--userland %)

.PHONY: demo vm
demo:
	@tools/vm --guests 2 --device profile=efa2 --fabric realistic $(kernel) --demo
vm:
	@tools/vm $(devices) $(kernel)

.PHONY: build
WHAT ?= rust-cloud-amd64 emulator
build:
	@tools/enter --net sh -ec 'make -s -j$$(nproc) -f tools/builds.mk $(WHAT) && cd /run/built && \
		readlink $(WHAT) | sed "s|^/cache|$$EFA_CACHE|"'

# Builds need the network, tests have one of their own.
options = $(SUITE:%=--suite %) $(if $(ONLY),--only "$(ONLY)") $(kernel) $(LENGTH:%=--length %)
pytest = python3 -m pytest -c tests/pytest.ini tests dkms emulator/lab
tests = $(if $(JUNIT),rm -f $(keep)/junit.xml;) tools/enter --net sh -c '$(pytest) --build $(options) --tier $1 && \
	exec unshare --net sh -c "ip link set lo up && exec $(pytest) -q -n $$(nproc) --tier $1 $(if $(JUNIT),--junitxml=\$$EFA_KEEP/junit.xml) \
	$(subst ",\",$(options))"' ; status=$$?; $(if $(JUNIT),cp $(keep)/junit.xml '$(JUNIT)';) exit $$status
.PHONY: check check-all
check:
	@$(call tests,check)
check-all:
	@$(call tests,all)

# The cache, and this clone's folder in it.
cache = "$${XDG_CACHE_HOME:-$$HOME/.cache}/efa-rs"
keep = $(cache)/clone/$$(printf %s "$(CURDIR)" | sha256sum | cut -c -12)

.PHONY: bench
bench: what = $(or $(filter driver data srd,$(WHAT)),driver)
bench:
	@rm -rf $(keep)/bench
	@tools/enter --net sh -ec 'make -s -j$$(nproc) -f tools/builds.mk bench-$(what) FLAVOUR=$(FLAVOUR) DRIVER=$(DRIVER) && \
		exec unshare --net bench/$(what).py $(if $(filter driver,$(what)),$(FLAVOUR:%=--flavour %)) \
		$(if $(filter data,$(what)),$(DRIVER:%=--driver %))'
	@cp $(keep)/bench/* bench/

.PHONY: package
package: WHAT := $(if $(filter command%,$(origin WHAT)),$(WHAT),release)
package:
	@EFA_BUGS='$(BUGS)' tools/enter --net sh -ec 'make -s -f tools/builds.mk $(WHAT) && cd /run/built && \
		for one in $(WHAT); do ls $$(readlink $$one)/*; done | sed "s|^/cache|$$EFA_CACHE|"'

# A root that an ordinary user made has files of other users of its namespace.
.PHONY: clean
clean:
	@$(if $(filter 0,$(shell id -u)),,unshare --user --map-root-user --map-auto) rm -rf --one-file-system $(if $(ALL),$(cache),$(keep))

# The former names of suites, builds and packages say what they are now, until the next release.
suites := lint test-host:host test-tools:tools kselftest abi-diff:abi rdma-core:rdma_core rdma-core-diff:rdma_core kverbs:clients \
	check-sample:clients interop:data soak check-life:life host-diff:host_diff stress:kselftest schedules:lives fuzz-driver:lives fuzz:lives \
	attack:emulator deny:emulator wireshark:emulator cargo-install:release peer-memory:peer power-off:power_off guides check-debug:debug \
	check-arm64:arm64 check-install:packages canary upstream
builds := module:rust-cloud-amd64 emulator sample:null_rdma-cloud-amd64
packages := dist deb rpm emulator-deb
name = $(firstword $(subst :, ,$1))
define moved
.PHONY: $(call name,$1)
$(call name,$1):
	@echo 'make $$@ is now: make $2=$(lastword $(subst :, ,$1))' >&2; exit 2
endef
$(foreach one,$(suites),$(eval $(call moved,$(one),check SUITE)))
$(foreach one,$(builds),$(eval $(call moved,$(one),build WHAT)))
$(foreach one,$(packages),$(eval $(call moved,$(one),package WHAT)))
$(foreach one,bench-data:data bench-srd:srd,$(eval $(call moved,$(one),bench WHAT)))
