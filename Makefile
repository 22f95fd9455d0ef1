# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Targets of this clone. Builds and tests run in a Debian root, which the first of them creates in $XDG_CACHE_HOME/efa-rs
# (~/.cache/efa-rs). To build only the module, for a kernel of your own: make -C KDIR M=$PWD/efa_rs.

# The kernel's architecture: amd64 or arm64.
ARCH ?= amd64
FLAVOUR ?= cloud-$(ARCH)
DRIVER ?= rust
DEVICES ?= profile=efa2
USERLAND ?= stable

combination = --driver $(DRIVER) --flavour $(FLAVOUR)
devices = $(if $(INSTANCE),--instance $(INSTANCE),$(DEVICES:%=--device %))

.PHONY: help
help:
	@echo 'Try it'
	@echo '  make demo            boots two stock Debian kernels with an emulated EFA each, and moves data between them'
	@echo '  make vm              a shell in such a guest   DRIVER= FLAVOUR= or ARCH= DEVICES= or INSTANCE= USERLAND='
	@echo '  make lab             two guests that stay: tools/vm exec runs programs in them   DRIVER= FLAVOUR= DEVICES= or INSTANCE= USERLAND='
	@echo
	@echo 'Build'
	@echo '  make module          builds efa.ko, and prints its path   DRIVER= FLAVOUR= or ARCH= or KVER='
	@echo '  make sample          builds null_rdma.ko, a provider without hardware, and rdma_exchange.ko, a client; prints their paths   FLAVOUR='
	@echo '  make emulator        builds efa-emu, and prints its path'
	@echo '  make clean           removes the builds of this clone'
	@echo '  make distclean       removes the whole cache'
	@echo
	@echo 'Test: all of it'
	@echo '  make check           the suite of CI: the Rust driver on one kernel; the last line has the number of passed checks'
	@echo '  make check-all       the same, with the C driver, more kernels and networks, recovery and peer memory'
	@echo
	@echo 'Test: on the host'
	@echo '  make lint            format, warnings and the laws of the project'
	@echo '  make deny            licences and sources of the emulator'\''s crates, and advisories about them'
	@echo '  make test-host       the tests that need no guest'
	@echo '  make test-tools      the tests of the tools   PROGRAM= CASE='
	@echo '  make attack          machines, peers and control clients that attack an emulator, for SECONDS=10 each   ROUNDS='
	@echo '  make cargo-install   installs the emulator with cargo from the clone, and runs it'
	@echo '  make wireshark       Wireshark'\''s dissection of the emulator'\''s captures'
	@echo '  make fuzz            coverage-guided fuzzing of each part of the emulator, for SECONDS=600'
	@echo '  make schedules       random schedules of clients, interrupts, faults, recovery and removal with the driver as a program, for SECONDS=60'
	@echo '  make fuzz-driver     the same with libFuzzer, for SECONDS=600   KEEP='
	@echo '  make canary          the module for Debian'\''s newest kernel   DEBIAN='
	@echo '  make upstream        the RDMA abstractions as patches for Linux: builds and checks each; runs the examples and KUnit tests'
	@echo
	@echo 'Test: in guests'
	@echo '  make kselftest       the kernel selftests in a guest   DRIVER= FLAVOUR= PROGRAM= CASE='
	@echo '  make host-diff       sequences of verbs and faults, with the driver as a program as well   COUNT='
	@echo '  make stress          long sequences of them   DRIVER= FLAVOUR='
	@echo '  make abi-diff        compares the uverbs interfaces of the two drivers   FLAVOUR= PROFILE= CASE='
	@echo '  make check-sample    each sample in a guest   FLAVOUR= (or debug)'
	@echo '  make kverbs          a client of kernel verbs   FLAVOUR= (or debug) ROUNDS='
	@echo '  make peer-memory     dma-buf registration and revocation, with memory of another device   FLAVOUR='
	@echo '  make guides          the commands in README and Documentation, while a program has objects   FLAVOUR='
	@echo '  make power-off       a power-off resets the devices in use   DRIVER= FLAVOUR='
	@echo '  make check-life      failure, recovery and removal of devices under load   DRIVER= FLAVOUR= (or debug) ROUNDS= TESTS='
	@echo '  make rdma-core       rdma-core'\''s own tests in a guest   DRIVER= FLAVOUR= USERLAND='
	@echo '  make rdma-core-diff  the same with both drivers, and the differences of their results   FLAVOUR= USERLAND='
	@echo '  make interop         data between guests: contents, perftest, libfabric, Open MPI   DRIVER= FLAVOUR= USERLAND= PROGRAM= CASE= ROUNDS='
	@echo '  make soak            a million messages between four guests   DRIVER= FLAVOUR='
	@echo '  make check-arm64     modules, selftests, abi-diff and data between guests on kernels of arm64, also with pages of 16 KiB'
	@echo '  make check-debug     the selftests, abi-diff and more on a kernel with KASAN, lockdep, kmemleak and fault injection   DRIVER='
	@echo
	@echo 'Measure'
	@echo '  make bench           costs of the Rust driver compared with the C driver   FLAVOUR='
	@echo '  make bench-data      bandwidth and latency between guests, also over rdma_rxe   DRIVER='
	@echo '  make bench-srd       a simulation of SRD with many concurrent senders, beside TCP'
	@echo
	@echo 'Package'
	@echo '  make dist            the source tarball, which is reproducible   BUGS='
	@echo '  make deb             the Debian package efa-rs-dkms   BUGS='
	@echo '  make rpm             the same as an RPM   BUGS='
	@echo '  make emulator-deb    the Debian package efa-emu, with the emulator   BUGS='
	@echo '  make check-install   the packages on machines with systemd: install, kernel upgrades, removal, failures   SCENARIOS='
	@echo
	@echo 'DRIVER    rust (default), c (Linux'\''s own driver, for comparison) or, in make vm, none'
	@echo 'FLAVOUR   cloud-amd64 (default, what EC2 images run) or amd64; cloud-arm64, arm64 or arm64-16k; tools/series says of which Linux'
	@echo 'ARCH      arm64: the same as FLAVOUR=cloud-arm64'
	@echo 'PROGRAM   only this one of what is run, such as objects_faults'
	@echo 'CASE      only test cases that are named like this, such as CASE='\''create_qp*'\'
	@echo 'JUNIT     of all of these tests: a file in which the results are written as JUnit'\''s XML, too'
	@echo 'ROUNDS    how many rounds each test has, and how often attack kills one of two emulators (default: few; interop: one)'
	@echo 'KEEP      1: fuzz-driver replaces the corpus that make check replays'
	@echo 'COUNT     how many sequences host-diff plays (default: 1000)'
	@echo 'TESTS     which ones of check-life: parts of their names, separated by semicolons'
	@echo 'SECONDS   how long each attack takes'
	@echo 'DEBIAN    experimental or sid, whose kernel canary takes even if it is not newer than the one that all else uses'
	@echo 'KVER      a kernel release of the toolroot, in place of FLAVOUR'
	@echo 'DEVICES   a list of emulated devices (default: profile=efa2)'
	@echo 'PROFILE   of the device that most cases of abi-diff use: efa1, efa2, efa3 or efa4 (default: each, one after the other)'
	@echo 'INSTANCE  the EC2 instance whose devices to emulate instead, such as p4d.24xlarge'
	@echo 'SCENARIOS some of those of check-install (default: all)'
	@echo 'BUGS      where users of a package report bugs, such as https://host/path (default: dkms/bugs, which leads nowhere)'
	@echo 'USERLAND  stable (default, Debian 13 with rdma-core 56) or next (Debian testing with rdma-core 65 or newer)'

.PHONY: demo
demo:
	@tools/vm $(combination) --guests 2 --leader $(devices) --fabric realistic /efa-rs/tests/interop/demo.py

.PHONY: check check-all
check check-all:
	@tools/check $@

.PHONY: vm
vm:
	@tools/vm $(combination) --userland=$(USERLAND) $(devices)

.PHONY: lab
lab:
	@tools/vm lab $(combination) --userland=$(USERLAND) $(devices)

.PHONY: module
module:
	@tools/build module $(combination) $(if $(KVER),--kernel $(KVER))

.PHONY: sample
sample:
	@tools/build $@ --flavour $(FLAVOUR)

export EFA_BUGS = $(BUGS)

.PHONY: emulator dist deb emulator-deb rpm clean distclean
emulator dist deb emulator-deb rpm clean distclean:
	@tools/build $@

export EFA_JUNIT = $(JUNIT)

part = $(PROGRAM:%=--program %) $(if $(CASE),--case '$(CASE)')

.PHONY: lint deny test-host cargo-install wireshark
lint deny test-host cargo-install wireshark:
	@tools/check $@

.PHONY: test-tools
test-tools:
	@tools/check $@ $(part)

.PHONY: attack
attack:
	@tools/check $@ $(SECONDS:%=--seconds %) $(ROUNDS:%=--rounds %)

.PHONY: fuzz
fuzz:
	@tools/check $@ $(SECONDS:%=--seconds %)

.PHONY: schedules
schedules:
	@tools/check $@ $(SECONDS:%=--seconds %)

.PHONY: fuzz-driver
fuzz-driver:
	@tools/check $@ $(SECONDS:%=--seconds %) $(if $(KEEP),--keep)

.PHONY: host-diff
host-diff:
	@tools/check $@ $(FLAVOUR:%=--flavour %) $(COUNT:%=--count %)

.PHONY: canary
canary:
	@tools/check $@ $(DEBIAN:%=--debian %)

.PHONY: upstream
upstream:
	@tools/check $@

.PHONY: kselftest
kselftest:
	@tools/check $@ $(combination) $(part)

.PHONY: stress soak power-off
stress soak power-off:
	@tools/check $@ $(combination)

.PHONY: guides
guides:
	@tools/check $@ --flavour $(FLAVOUR)

.PHONY: rdma-core
rdma-core:
	@tools/check $@ $(combination) --userland=$(USERLAND)

.PHONY: interop
interop:
	@tools/check $@ $(combination) --userland=$(USERLAND) $(part) $(ROUNDS:%=--rounds %)

.PHONY: rdma-core-diff
rdma-core-diff:
	@tools/check $@ --flavour $(FLAVOUR) --userland=$(USERLAND)

.PHONY: check-sample
check-sample:
	@tools/check sample --flavour $(FLAVOUR)

.PHONY: kverbs
kverbs:
	@tools/check $@ --flavour $(FLAVOUR) $(ROUNDS:%=--rounds %)

.PHONY: peer-memory
peer-memory:
	@tools/check $@ --flavour $(FLAVOUR)

.PHONY: check-life
check-life:
	@tools/check life $(combination) $(ROUNDS:%=--rounds %) --tests '$(TESTS)'

.PHONY: check-debug
check-debug:
	@tools/check check-debug --driver $(DRIVER)

.PHONY: check-arm64
check-arm64:
	@tools/check $@

.PHONY: check-install
check-install:
	@tools/check $@ $(SCENARIOS)

.PHONY: bench
bench:
	@tools/bench --flavour $(FLAVOUR)

.PHONY: bench-data
bench-data:
	@tools/bench-data --driver $(DRIVER)

.PHONY: bench-srd
bench-srd:
	@tools/bench-srd

.PHONY: abi-diff
abi-diff:
	@tools/check $@ --flavour $(FLAVOUR) $(PROFILE:%=--profile %) $(if $(CASE),--case '$(CASE)')
