# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# What tests, benches and packages use, in the root that tools/enter enters. Each target becomes the folder /run/built/TARGET, a link to
# a result in the cache. Those of a kernel end with its flavour: rust-cloud-amd64.
#
# usage: tools/enter --net make -f tools/builds.mk TARGET...

MAKEFLAGS += --no-print-directory --no-builtin-rules
.SECONDARY:
.SUFFIXES:

built := /run/built
cached := nice -n 5 tools/cached
amd64 := cloud-amd64 amd64
arm64 := cloud-arm64 arm64 arm64-16k
flavours := $(amd64) debug $(arm64)
series := $(firstword $(shell sed -n 's/^\([0-9.]*\) .*/\1/p' tools/series))
release = $(firstword $(notdir $(wildcard /usr/lib/modules/$(series)*[0-9]-$1)))
version := $(firstword $(subst -, ,$(call release,cloud-amd64)))
release-debug := $(version)-debug
llvm-debug := LLVM=-19
# The release of a flavour. That of the debug kernel is derived from another one's, and those for arm64 are in a layer.
of = $(or $(release-$1),$(if $(in-$1),$(notdir $(shell ls -d $(built)/arm64/layer/usr/lib/modules/$(series)*[0-9]-$1)),$(call release,$1)))

# Kernels: the image that QEMU starts, uncompressed, as an emulated CPU takes a second for that. The numbers are those of the kernel's
# Documentation/arch/x86/boot.rst: the setup sectors at 0x1f1, offset and length of the payload at 0x248 of the protected-mode code.
define unpack
import struct, sys
image = open(sys.argv[1], "rb").read()
begin, length = struct.unpack_from("<II", image, 0x248)
first = (image[0x1f1] + 1) * 512 + begin
sys.stdout.buffer.write(image[first : first + length - 4])
endef
export unpack
define kernel
.PHONY: kernel-$1 kit-$1 c-$1
kernel-$1:
	@$$(cached) $$@ '$$(EFA_ROOT)' $$(layer-$1) -- sh -c '$$(if $$(in-$1),cp $(built)/arm64/layer/usr/lib/modules/$$(call \
		of,$1)/vmlinuz ,python3 -c "$$$$unpack" /usr/lib/modules/$$(call of,$1)/vmlinuz.unsigned | zstd -dq >)$$$$OUT/image'

kit-$1:
	@$$(cached) $$@ '$$(EFA_ROOT)' dkms/rust-kit $$(layer-$1) -- $$(in-$1) sh -c 'dkms/rust-kit --kernel $$(call of,$1) --output $$$$OUT/build'

c-$1:
	@$$(cached) $$@ '$$(EFA_ROOT)' $$(layer-$1) -- $$(in-$1) sh -ec 'cd $$$$(mktemp -d); tar -x -f /usr/src/linux-source-$$(series).tar.xz \
		--strip-components=4 --wildcards "linux-*/drivers/infiniband/hw/efa/*"; \
		make -j$$$$(nproc) -C /usr/src/linux-headers-$$(call of,$1) M=$$$$PWD/efa CONFIG_INFINIBAND_EFA=m modules; cp efa/efa.ko $$$$OUT'
endef
# Those for arm64. QEMU unpacks their images.
define kernel-of-arm64
in-$1 := tools/layer $(built)/arm64
layer-$1 := @arm64
kernel-$1 kit-$1 c-$1: arm64
endef
$(foreach flavour,$(arm64),$(eval $(call kernel-of-arm64,$(flavour))))
$(foreach flavour,$(amd64) $(arm64),$(eval $(call kernel,$(flavour))))

# Kernels, compilers and QEMU for arm64.
.PHONY: arm64
arm64:
	@$(cached) $@ '$(EFA_ROOT)' tools/layer tools/arm64.sh tools/choose-kernel -- sh -ec 'mkdir $$OUT/layer $$OUT/work; \
		tools/layer $$OUT sh tools/arm64.sh $(series) $(arm64); rm -rf $$OUT/work'

# Modules. What bindgen makes for the driver is kept for the driver as a program.
define module
.PHONY: $1-$2
$1-$2: kit-$2
	@$$(cached) $$@ $3 @kit-$2 $$(layer-$2) -- $$(in-$2) sh -ec 'folder=/tmp/$$@; rm -rf $$$$folder; cp -rL /efa-rs/$3 $$$$folder; cd $$$$folder; \
		make -j$$$$(nproc) -C $(built)/kit-$2/build M=$$$$PWD $$(llvm-$2) $4 modules; \
		for file in *.ko ffi/bindings_generated.rs; do [ ! -e $$$$file ] || cp $$$$file $$$$OUT; done'
endef
clippy := CLIPPY=1 W=e CLIPPY_CONF_DIR=/efa-rs
modules = $(call module,rust,$1,efa_rs)$(newline)$(call module,no_kverbs,$1,efa_rs,KVERBS=0)$(newline)$(call \
	module,null_rdma,$1,samples/null_rdma)$(newline)$(call module,rdma_exchange,$1,samples/rdma_exchange)$(newline)$(call \
	module,kverbs_client,$1,tests/kverbs)$(newline)$(call module,bench_client,$1,bench/client)$(newline)$(call \
	module,clippy,$1,efa_rs,$(clippy))
define newline


endef
$(foreach flavour,$(flavours),$(eval $(call modules,$(flavour))))
$(foreach sample,null_rdma rdma_exchange,$(eval $(call module,clippy_$(sample),cloud-amd64,samples/$(sample),$(clippy))))

# The debug kernel takes most of an hour, so that it does not depend on the rest of the root.
.PHONY: kit-debug kernel-debug c-debug
debug-inputs := linux-source-$(series) clang-19 lld-19 llvm-19 rustc rust-src bindgen pahole
kit-debug kernel-debug c-debug: debug-kernel
	@ln -sfn $$(readlink $(built)/debug-kernel) $(built)/$@
.PHONY: debug-kernel
debug-kernel:
	@$(cached) $@ tests/debug/kernel "$$(dpkg-query -W $(debug-inputs))" -- sh -ec 'tests/debug/kernel/build.sh $$OUT $(release-debug) $$(nproc); \
		cd $$OUT; for link in .:build vmlinuz:image drivers/infiniband/hw/efa/efa.ko:efa.ko; do \
		ln -s $(release-debug)/$${link%:*} $${link#*:}; done'

# The files of Linux that the series in upstream/ edit.
.PHONY: linux-originals
originals = $(shell sed -n 's/^file = "\(.*\)"/linux-*\/\1/p' upstream/series.toml | sort -u)
linux-originals:
	@$(cached) $@ '$(EFA_ROOT)' -- sh -ec 'tar -x -f /usr/src/linux-source-$(series).tar.xz -C $$OUT --strip-components=1 \
		--wildcards $(originals:%="%")'

# Linux for the series in upstream/, built and documented in the folder where the tests mount it. Parts of the source are left out.
.PHONY: linux-tree
left-out := $(addprefix --exclude=linux-*/,Documentation/*.* arch/[a-wyz]*/*.[chS] arch/*/boot/dts/* drivers/gpu/drm/*/*.[ch] \
	sound/*.[ch] tools/testing/selftests/* tools/perf/*)
linux-tree:
	@$(cached) $@ "$$(dpkg-query -W $(debug-inputs))" -- sh -ec 'mkdir /tmp/linux; mount --bind $$OUT /tmp/linux; cd /tmp/linux; \
		tar -x -f /usr/src/linux-source-$(series).tar.xz --strip-components=1 --wildcards $(left-out:%="%"); \
		make="make --no-print-directory -j$$(nproc) LLVM=-19 CLIPPY=1"; $$make -s KCONFIG_ALLCONFIG=/efa-rs/upstream/config allnoconfig; \
		$$make bzImage modules; $$make -f /efa-rs/upstream/rustdoc.mk efa_rustdoc'

# Programs. One workspace has one folder for intermediate files. lld takes a tenth less time than GNU ld.
lld := CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=clang-19 \
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS=-Clink-arg=--ld-path=/usr/bin/ld.lld-19
target = CARGO_TARGET_DIR=$(EFA_KEEP)/$1 $(lld) cargo
product := efa_rs/hw $(foreach name,Cargo.toml Cargo.lock $(foreach crate,efa-emu fabric hw model vfio vfio-user,$(crate)/Cargo.toml \
	$(crate)/src),emulator/$(name))
crates := $(product) $(foreach name,efa-emu/tests fabric fuzz hw model testing vfio vfio-user,emulator/$(name))
.PHONY: emulator emulator-release-x86_64 emulator-release-aarch64
emulator:
	@$(cached) $@ '$(EFA_ROOT)' $(product) -- sh -ec '$(call target,emulator) build --workspace --bins --locked \
		--manifest-path emulator/Cargo.toml; cp $(EFA_KEEP)/emulator/debug/efa-emu $$OUT'
in-aarch64 := tools/layer $(built)/arm64
emulator-release-aarch64: arm64
emulator-release-x86_64 emulator-release-aarch64: emulator-release-%: crates
	@$(cached) $@ '$(EFA_ROOT)' $(product) tools/package.sh @crates $(if $(in-$*),@arm64) -- $(in-$*) tools/package.sh $@

# What the benches need, see bench/README.md.
.PHONY: bench-plugin bench-memcpy bench-emulator bench-driver bench-data bench-srd
rustc := rustc --edition 2021 -O -C panic=abort -C strip=symbols -D warnings
bench-plugin:
	@$(cached) $@ '$(EFA_ROOT)' bench/count.rs -- sh -ec '$(rustc) --crate-type cdylib -o $$OUT/count.so bench/count.rs'
bench-memcpy:
	@$(cached) $@ '$(EFA_ROOT)' bench/memcpy.rs -- sh -ec '$(rustc) -o $$OUT/memcpy bench/memcpy.rs'
bench-emulator: emulator-release-x86_64
	@$(cached) $@ '$(EFA_ROOT)' $(crates) @emulator-release-x86_64 -- sh -ec 'for example in fabric/simulation vfio/messages; do \
		$(call target,emulator) build --release --locked --manifest-path emulator/$${example%/*}/Cargo.toml --example $${example#*/}; done; \
		mkdir $$OUT/examples; cp $(EFA_KEEP)/emulator/release/examples/simulation $(EFA_KEEP)/emulator/release/examples/messages \
		$$OUT/examples; cp $(built)/emulator-release-x86_64/efa-emu $$OUT'
bench-driver: bench-plugin emulator $(foreach name,kernel rust c no_kverbs bench_client,$(name)-$(or $(FLAVOUR),cloud-amd64))
bench-data: bench-emulator bench-memcpy $(or $(DRIVER),rust)-amd64 kernel-amd64
bench-srd: bench-emulator

# The tests of the workspaces are built here, in this clone's folder, and run by pytest, without network.
.PHONY: emulator-tests host-tests
emulator-tests: emulator
	@$(cached) $@ '$(EFA_ROOT)' 'in $(EFA_KEEP)' $(crates) -- sh -ec '$(call target,emulator) test --workspace --no-run --locked \
		--manifest-path emulator/Cargo.toml'
host-tests: rust-cloud-amd64
	@$(cached) $@ '$(EFA_ROOT)' 'in $(EFA_KEEP)' host efa_rs samples emulator/hw emulator/model @rust-cloud-amd64 -- sh -ec 'RUSTC_BOOTSTRAP=1 \
		EFA_BINDINGS=$(built)/rust-cloud-amd64/bindings_generated.rs $(call target,host) test --workspace --no-run --locked \
		--manifest-path host/Cargo.toml'

# The emulator's tests for guests with arm64, and a script that runs all. Unoptimised they take several times as long on an emulated CPU.
.PHONY: emulator-tests-arm64
define list
import json, sys
print("status=0")
for line in sys.stdin:
    built = json.loads(line) if line.startswith('{"reason":"compiler-artifact"') else {}
    if built.get("executable") and built["profile"]["test"]:
        print(f"cd {built['manifest_path'].rpartition('/')[0]} && {built['executable']} || status=1")
print("exit $$status")
endef
export list
emulator-tests-arm64: arm64
	@$(cached) $@ '$(EFA_ROOT)' $(crates) @arm64 -- tools/layer $(built)/arm64 sh -ec 'CARGO_PROFILE_DEV_OPT_LEVEL=1 \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc-14 CARGO_TARGET_DIR=$(EFA_KEEP)/emulator-arm64 \
		cargo test --workspace --no-run --locked --manifest-path emulator/Cargo.toml --target aarch64-unknown-linux-gnu \
		--message-format json-render-diagnostics >$$OUT/built; python3 -c "$$list" <$$OUT/built >$$OUT/run'

# Programs of the driver as a program: $1, in the folder for intermediate files $2, of the crate host/$3, with options $4 and settings $5.
define host-program
.PHONY: $1
$1: rust-cloud-amd64
	@$$(cached) $$@ '$$(EFA_ROOT)' host efa_rs samples emulator/hw emulator/model @rust-cloud-amd64 -- sh -ec '$5 RUSTC_BOOTSTRAP=1 \
		EFA_BINDINGS=$(built)/rust-cloud-amd64/bindings_generated.rs $$(call target,$2) build --release --locked \
		--manifest-path host/$3Cargo.toml --bin $4; cp $(EFA_KEEP)/$2/release/$(firstword $4) $$$$OUT'
endef
# How libFuzzer sees the code that an input reaches. It uses no option that only a nightly rustc has.
fuzzed := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
	-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1
instrumented = RUSTC_WRAPPER=/efa-rs/host/instrument.sh CXX=clang++-19 INSTRUMENT="$1"
$(eval $(call host-program,sequences,host,,sequences))
$(eval $(call host-program,lives,host-coverage,,lives,$(call instrumented,-Cinstrument-coverage)))
$(eval $(call host-program,fuzz-driver,host-fuzz,fuzz/,life --features libfuzzer,$(call instrumented,$(fuzzed))))
.PHONY: fuzz-emulator
fuzz-emulator:
	@$(cached) $@ '$(EFA_ROOT)' $(crates) -- sh -ec 'RUSTFLAGS="$(fuzzed)" CXX=clang++-19 $(call target,emulator-fuzz) build \
		--profile fuzz --features libfuzzer --locked --manifest-path emulator/fuzz/Cargo.toml --bins --target x86_64-unknown-linux-gnu; \
		find $(EFA_KEEP)/emulator-fuzz/x86_64-unknown-linux-gnu/fuzz -maxdepth 1 -type f -executable -exec cp {} $$OUT ";"'

# Packages of PyPI, with their hashes. Linters that Debian does not have:
pip := pip --no-cache-dir --disable-pip-version-check
install := $(pip) install --root-user-action=ignore --no-deps --only-binary :all: --require-hashes
.PHONY: ruff image-linters
ruff := ruff==0.17.6 --hash=sha256:aa3b08254a732acba246891089a152c47c5733dc36b8ecb76ce8602f8326e5e4
image-linters := zizmor==1.32.0 --hash=sha256:84a6acb975accc13408786a2bd274b572537ca19c933ebbc13e78f3988562071\n\
	kubernetes-validate==1.37.0 --hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9\n\
	check-jsonschema==0.39.0 --hash=sha256:14ce5c94871c551268ea948ffe21e9f1464dc48fb20bf9a4c13deeaaf756cf9b
ruff image-linters:
	@$(cached) $@ -- sh -ec 'printf "$($@)\n" >/tmp/requirements; $(install) --target $$OUT --requirement /tmp/requirements'
.PHONY: checkpatch
checkpatch:
	@$(cached) $@ '$(EFA_ROOT)' -- sh -ec 'tar -x -f /usr/src/linux-source-$(series).tar.xz -C $$OUT --strip-components=2 --wildcards \
		"*/scripts/checkpatch.pl" "*/scripts/const_structs.checkpatch" "*/scripts/spelling.txt"'
.PHONY: cargo-deny cargo-mutants
cargo-deny := 0.18.3
cargo-mutants := 26.0.0
cargo-deny cargo-mutants:
	@$(cached) $@ '$(EFA_ROOT)' -- sh -ec 'CARGO_TARGET_DIR=$(EFA_KEEP)/$@ cargo install --debug --locked --root $$OUT --version $($@) $@'

# Debian's newest kernel, which changes each day.
.PHONY: canary
canary:
	@$(cached) $@ '$(EFA_ROOT)' tools/layer tests/canary.sh dkms/rust-kit "$$(date +%F)" -- sh -ec 'mkdir $$OUT/layer $$OUT/work; \
		tools/layer $$OUT tests/canary.sh $(call release,cloud-amd64) $$OUT; rm -rf $$OUT/work'

# The list of advisories changes each day. All crates of the lock file are fetched, also those for other systems.
.PHONY: advisories
advisories: cargo-deny
	@cargo fetch --quiet --locked --manifest-path emulator/Cargo.toml
	@mkdir -p $(built)/$@; ! $(built)/cargo-deny/bin/cargo-deny --manifest-path emulator/Cargo.toml fetch db >$(EFA_KEEP)/logs/$@.log 2>&1 || \
		touch $(built)/$@/fetched

# The image for containers, see image/, and the layer with what makes it and what tests it, among that the source of libfabric.
.PHONY: image-tools image image-arm64
image-packages := buildah netavark debsbom/trixie-backports python3-cyclonedx-lib libnss-wrapper python3-yaml python3-junitparser \
	python3-retrying
image-tests := podman uidmap autoconf automake libtool python3-jsonschema python3-referencing python3-importlib-resources hwloc-nox
image-tools:
	@$(cached) $@ '$(EFA_ROOT)' tools/layer -- sh -ec 'mkdir $$OUT/layer $$OUT/work; tools/layer $$OUT sh -ec "cd /usr/src; \
		sed s/^deb/deb-src/ /etc/apt/sources.list >/etc/apt/sources.list.d/source.list; apt-get update; \
		apt-get install --yes --no-install-recommends $(image-packages) $(image-tests); \
		apt-get source --download-only --tar-only libfabric"; rm -rf $$OUT/work'
image-inputs := emulator-release-x86_64 rust-cloud-amd64 kernel-cloud-amd64
image-arm64-inputs := emulator-release-aarch64 rust-cloud-arm64 kernel-cloud-arm64 arm64 arm64-userland
image: $(image-inputs)
image-arm64: $(image-arm64-inputs)
image image-arm64: image-tools
	@$(cached) $@ image tools tests/traffic.py LICENSE @image-tools $($@-inputs:%=@%) -- tools/layer $(built)/image-tools \
		sh -ec 'image/build.py $$OUT $(if $(filter image,$@),amd64,arm64)'

# Programs of PyPI, each MPI in a folder of its own, with mpi4py's tests of its source, and hwloc's program.
.PHONY: people
people: image-tools
	@$(cached) $@ '$(EFA_ROOT)' $(wildcard tests/people/*.txt) @image-tools -- sh -ec 'for name in mpich impi python; do \
		$(install) --no-warn-script-location --ignore-installed --prefix $$OUT/$$name --requirement tests/people/$$name.txt; done; \
		$(pip) download --no-deps --no-binary mpi4py --require-hashes --dest /tmp/people --requirement tests/people/source.txt; \
		tar -x -C $$OUT -f /tmp/people/mpi4py-*.tar.gz --strip-components=1 --wildcards "*/test"; \
		cp $(built)/image-tools/layer/usr/bin/lstopo-no-graphics $$OUT'

# The roots of guests with arm64, or with a newer rdma-core.
.PHONY: arm64-userland next
arm64-userland next:
	@$(cached) $@ tools/userland.sh -- sh -ec 'tools/userland.sh $(if $(filter next,$@),forky amd64,trixie arm64) $$OUT/root'

# A release: tarballs of the clone's files, and what is built of them, see tools/package.sh. Crates are those of the lock file. Of those
# for Windows, which cargo only looks up, few files are left.
.PHONY: crates dist emulator-dist deb emulator-deb rpm rpm-newer release
crates:
	@$(cached) $@ '$(EFA_ROOT)' emulator/Cargo.lock -- sh -ec 'cargo vendor --quiet --locked --versioned-dirs --manifest-path \
		emulator/Cargo.toml $$OUT/vendor; find $$OUT/vendor/winapi* $$OUT/vendor/windows* -type f ! -name Cargo.toml \
		! -name .cargo-checksum.json ! -path "*/src/lib.rs" -delete'
emulator-dist: crates
dist emulator-dist:
	@$(cached) $@ '$(EFA_ROOT)' . "$$EFA_BUGS" "$$(git -c safe.directory=/efa-rs log -1 --format='%ct %an <%ae>')" -- tools/package.sh $@
emulator-deb: crates
deb emulator-deb rpm rpm-newer: dist
	@$(cached) $@ '$(EFA_ROOT)' @dist tools/package.sh -- tools/package.sh $@
kinds := dist emulator-dist deb emulator-deb rpm image image-arm64 emulator-release-x86_64 emulator-release-aarch64
release: $(kinds)
	@$(cached) $@ '$(EFA_ROOT)' tools/package.sh $(kinds:%=@%) -- tools/package.sh $@

.PHONY: machine clean-debian cloud-image
systems := tests/packages
# The dependencies of the driver's package: the first of alternatives, without kernels and their sources.
depends := $(shell sed -n '/^Package: efa-rs-dkms/,/^Conflicts/ { /linux-/d; s/^ \([a-z][a-z0-9.+-]*\).*/\1/p }' debian/control)
machine:
	@$(cached) $@ '$(EFA_ROOT)' $(systems)/machine.sh $(systems)/efa-test.service '$(depends)' -- \
		sh -c 'sh $(systems)/machine.sh $$OUT/root "dkms $(depends)" amd64'
clean-debian:
	@$(cached) $@ '$(EFA_ROOT)' $(systems)/host.sh -- sh -c 'sh $(systems)/host.sh $$OUT/root'
cloud-image: c-cloud-amd64
	@$(cached) $@ '$(EFA_ROOT)' $(systems)/image.sh -- sh -c 'sh $(systems)/image.sh $$OUT $(call release,cloud-amd64) $(built)/$</efa.ko'
