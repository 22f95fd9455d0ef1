# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Builds the kernel modules and the emulator in the toolroot. Results stay in the cache."""

import json
import os
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import arm64, cache, debug_kernel, layer, namespace, steps, store, toolroot
from .failure import Failure

KITS = "/run/efa-rs/kit"
BUILD = "/run/efa-rs/build"
CARGO = "/run/efa-rs/cargo"
# bindgen's output for a module, which is kept beside the module.
BINDINGS = "bindings_generated.rs"
KERNEL = "/run/efa-rs/kernel"
# Niceness of builds, by which guests and devices take precedence.
NICE = "5"


def in_toolroot(command, binds=(), environment=None, release=None):
    """Returns the command line that runs COMMAND in the toolroot, or the root for a kernel RELEASE. The clone is at /efa-rs."""
    root = toolroot.root_of(release) if release else toolroot.root()
    return namespace.enter(root, command, [(cache.CLONE, "/efa-rs", "ro"), *binds], environment)


def building(command, *arguments, **options):
    """Like in_toolroot(), for a build, which runs with lower priority than guests and devices."""
    return in_toolroot(["nice", "-n", NICE, *command], *arguments, **options)


def kit(release):
    """Returns the folder of the build directory for modules of a kernel, which is mounted at KITS in the toolroot."""
    flavour = toolroot.flavour_of(release)
    if flavour == toolroot.DEBUG:
        return debug_kernel.folder(KITS)
    folder = cache.folder("kit") / cache.key(toolroot.key(), namespace.TOOLS / "rust-kit", release)

    def build(path):
        path.mkdir()
        with steps.step(f"rust kit {flavour}") as log:
            command = ["/efa-rs/tools/rust-kit", "--kernel", release, "--output", f"{KITS}/{release}"]
            steps.run(building(command, [(path, KITS, "rw")], release=release), log, "Making the Rust kit")

    return cache.make(folder, "the Rust kit", 1, build)


def module(driver, release):
    """Builds the module of DRIVER, "rust" or "c", for a kernel of the toolroot; returns its efa.ko."""
    builds: dict[str, Callable[[str], Path]] = {"rust": rust_module, "c": c_module}
    return builds[driver](release)


def image(release):
    """Returns the path of a kernel in the toolroot, and the mounts that it requires."""
    if toolroot.flavour_of(release) == toolroot.DEBUG:
        return f"{KITS}/{release}/vmlinuz", [(kit(release), KITS, "ro")]
    if arm64.is_release(release):
        return f"/usr/lib/modules/{release}/{arm64.IMAGE}", []
    return f"{KERNEL}/vmlinux", [(unpacked_kernel(release), KERNEL, "ro")]


# Layout of a bzImage, by Documentation/arch/x86/boot.rst. SETUP_SECTS: offset of the number of setup sectors. PAYLOAD: offset of the
# payload's offset and length. LENGTH: bytes of the uncompressed length at the payload's end.
SETUP_SECTS, PAYLOAD, SECTOR, LENGTH = 0x1F1, 0x248, 512, 4


def unpacked_kernel(release):
    """Returns the folder with a kernel that QEMU can start uncompressed: decompression by an emulated CPU takes a second."""

    def build(path):
        path.mkdir()
        image = (toolroot.root() / "usr/lib/modules" / release / toolroot.IMAGE).read_bytes()
        offset, length = struct.unpack_from("<II", image, PAYLOAD)
        start = (image[SETUP_SECTS] + 1) * SECTOR + offset
        packed = path / "vmlinux.zst"
        packed.write_bytes(image[start : start + length - LENGTH])
        with steps.step(f"kernel {release}") as log:
            command = ["zstd", "--decompress", "--rm", "--quiet", f"{KERNEL}/{packed.name}"]
            steps.run(in_toolroot(command, [(path, KERNEL, "rw")]), log, "Unpacking the kernel")

    return cache.make(cache.folder("kernel") / cache.key(toolroot.key(), release), "a kernel", 0.1, build)


def modules(release):
    """Returns the folder with a kernel's own modules, if they are not in the toolroot."""
    return kit(release) / release / "lib/modules" / release if toolroot.flavour_of(release) == toolroot.DEBUG else None


def compiler(release):
    """Returns the options of make that select the compiler of a kernel."""
    return ["LLVM=-19"] if toolroot.flavour_of(release) == toolroot.DEBUG else []


def make_module(release, target="modules", *options):
    """The shell command that builds the module in BUILD/module against the kit."""
    arguments = " ".join([*compiler(release), *options])
    return f"make -j{os.cpu_count()} -C {KITS}/{release} M={BUILD}/module {arguments} {target}"


def rust_module(release, *options, variant=""):
    """Builds a copy of efa_rs/ incrementally."""
    if not (cache.CLONE / "efa_rs" / "Kbuild").exists():
        raise Failure("efa_rs/Kbuild is missing: this clone has no Rust module to build; use --driver c or none.")
    return build_folder("efa_rs", "rust", release, options, variant, "efa.ko")


def module_without_kverbs(release):
    """Builds the driver without the parts for clients in the kernel."""
    return rust_module(release, "KVERBS=0", variant="-no-kverbs")


# Folders of samples/, each with a module of the same name: a provider, and a client.
SAMPLES = ("null_rdma", "rdma_exchange")


def sample(name, release, *options, variant=""):
    """Builds a copy of a sample incrementally, with the targets of its links."""
    return build_folder(f"samples/{name}", name, release, options, variant, f"{name}.ko")


def kverbs_client(release):
    """Builds the test client of kernel verbs."""
    return build_folder("tests/kverbs", "kverbs_client", release, (), "", "kverbs_client.ko")


def bench_client(release):
    """Builds the client of kernel verbs whose calls the bench counts."""
    return build_folder("tests/bench/client", "bench_client", release, (), "", "bench_client.ko")


def build_folder(source, name, release, options, variant, file):
    """Builds a module of the clone's folder SOURCE, unless the cache has one of the same sources; returns its FILE."""
    flavour = toolroot.flavour_of(release)
    kit_folder = kit(release)
    folder = cache.clone_folder("module", f"{name}-{release}{variant}-{kit_folder.name}")
    cache.require_space(0.2, "a kernel module")
    # A file that a killed build was writing is newer than its sources, and incomplete. So the next build starts from scratch.
    script = f"""
        [ ! -e {BUILD}/interrupted ] || rm -rf {BUILD}/module
        : >{BUILD}/interrupted
        rsync --recursive --copy-links --times --perms --delete --exclude-from=/efa-rs/.gitignore \
            --exclude=*_generated.* /efa-rs/{source}/ {BUILD}/module/ &&
        {make_module(release, "modules", *options)}
        result=$?
        rm {BUILD}/interrupted
        exit $result
    """

    def build():
        with cache.lock(f"{folder.name}-{cache.key(str(cache.CLONE))}"), steps.step(f"{name} module {flavour}{variant}") as log:
            binds = [(kit_folder, KITS, "ro"), (folder, BUILD, "rw")]
            steps.run(building(["sh", "-c", script], binds, release=release), log, f"Building the {name} module")
        return [made for made in (folder / "module" / file, folder / "module" / "ffi" / BINDINGS) if made.exists()]

    others = (name, release, *options, script, str(kit_folder), BINDINGS)
    return store.build("module", [source], others, f"the {name} module", 0.2, build) / file


def c_module(release):
    """Builds Linux's own C driver from the toolroot's kernel source."""
    flavour = toolroot.flavour_of(release)
    if flavour == toolroot.DEBUG:
        return debug_kernel.c_module(KITS)
    folder = cache.folder("c-module") / f"{toolroot.key()}-{release}"
    script = f"""
        tar -x -f {toolroot.source(release)} -C {BUILD} --strip-components=4 \
            --wildcards 'linux-*/drivers/infiniband/hw/efa/*' &&
        make -j{os.cpu_count()} -C /usr/src/linux-headers-{release} M={BUILD}/efa CONFIG_INFINIBAND_EFA=m modules
    """

    def build(path):
        path.mkdir()
        with steps.step(f"C module {flavour}") as log:
            steps.run(building(["sh", "-c", script], [(path, BUILD, "rw")], release=release), log, "Building Linux's C driver")

    return cache.make(folder, "Linux's C driver", 0.2, build) / "efa" / "efa.ko"


def cargo_home():
    """Returns the mounts for cargo: a home that all clones share, and the host's configuration of registries."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    configuration = [(file, f"{CARGO}/config.toml", "ro") for file in (home / "config.toml", home / "config") if file.is_file()]
    return [(cache.folder("cargo"), CARGO, "rw"), *configuration[:1]]


# The linker. Building the emulator's tests takes 410 s of CPU time with lld, and 457 s with GNU ld.
LINKER = {
    "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER": "clang-19",
    "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS": "-Clink-arg=--ld-path=/usr/bin/ld.lld-19",
}


def cargo(log, what, *arguments, after=(), manifest="Cargo.toml", environment=None, root=None):
    """Runs the toolroot's cargo, or that of another ROOT, on the workspace emulator/. AFTER follows cargo's own arguments."""
    binds = [(cache.clone_folder("emulator"), BUILD, "rw"), *cargo_home()]
    # The root of another architecture has no such linker.
    linker = {} if root else LINKER
    environment = {"CARGO_HOME": CARGO, "CARGO_TARGET_DIR": f"{BUILD}/target", **linker, **(environment or {})}
    command = ["nice", "-n", NICE, "cargo", *arguments, "--locked", "--manifest-path", f"/efa-rs/emulator/{manifest}", *after]
    steps.run(namespace.enter(root or toolroot.root(), command, [(cache.CLONE, "/efa-rs", "ro"), *binds], environment), log, what)


def host(log, what, *arguments, after=(), manifest="Cargo.toml", environment=None):
    """Runs the toolroot's cargo on the workspace host/, with the bindings that a build of the module makes."""
    bindings = rust_module(toolroot.kernel(toolroot.FLAVOURS[0])).parent / BINDINGS
    inside = f"/run/efa-rs/{BINDINGS}"
    binds = [(cache.clone_folder("host"), BUILD, "rw"), (bindings, inside, "ro"), *cargo_home()]
    # RUSTC_BOOTSTRAP enables unstable language features, as in the kernel's build.
    fixed = {"CARGO_HOME": CARGO, "CARGO_TARGET_DIR": f"{BUILD}/target", "EFA_BINDINGS": inside, "RUSTC_BOOTSTRAP": "1", **LINKER}
    command = ["cargo", *arguments, "--locked", "--manifest-path", f"/efa-rs/host/{manifest}", *after]
    steps.run(building(command, binds, {**fixed, **(environment or {})}), log, what)


# The newest version that the toolroot's rustc can build.
CARGO_DENY = "0.18.3"


def cargo_deny():
    """Builds the program that checks the emulator's dependencies; returns it."""
    folder = cache.folder("cargo-deny") / cache.key(toolroot.key(), CARGO_DENY)

    def build(path):
        path.mkdir()
        with steps.step("cargo-deny") as log:
            command = ["cargo", "install", "--locked", "--root", f"{BUILD}/installed", "--version", CARGO_DENY, "cargo-deny"]
            environment = {"CARGO_HOME": CARGO, "CARGO_TARGET_DIR": f"{BUILD}/target"}
            steps.run(in_toolroot(command, [(path, BUILD, "rw"), *cargo_home()], environment), log, "Building cargo-deny")
        namespace.remove(path / "target")

    return cache.make(folder, "cargo-deny", 2, build) / "installed" / "bin" / "cargo-deny"


def deny(log, what, *arguments):
    """Runs cargo-deny on the workspace emulator/, by its deny.toml."""
    program = f"{BUILD}/cargo-deny"
    binds = [(cargo_deny(), program, "ro"), *cargo_home()]
    command = [program, "--manifest-path", "/efa-rs/emulator/Cargo.toml", "--locked", *arguments]
    steps.run(in_toolroot(command, binds, {"CARGO_HOME": CARGO}), log, what)


# Instrumentation by which libFuzzer sees the code that an input reaches. It uses no option that only a nightly rustc has.
COVERAGE = (
    "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
    " -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1"
)


def fuzz(log, target, seconds):
    """Builds a fuzz target and runs it for SECONDS. The corpus is kept for the next run."""
    triple = "x86_64-unknown-linux-gnu"
    arguments = ("build", "--release", "--bin", target, "--target", triple)
    environment = {"RUSTFLAGS": COVERAGE, "CXX": "clang++-19", "CARGO_TARGET_DIR": f"{BUILD}/fuzz"}
    with cargo_lock("fuzz"):
        cargo(log, "Building the fuzz target", *arguments, manifest="fuzz/Cargo.toml", environment=environment)
    folder = cache.clone_folder("emulator")
    (folder / "corpus" / target).mkdir(parents=True, exist_ok=True)
    command = [
        *(f"{BUILD}/fuzz/{triple}/release/{target}", f"-max_total_time={seconds}", "-max_len=4096", "-len_control=0", "-timeout=60"),
        *("-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={BUILD}/{target}-", f"{BUILD}/corpus/{target}"),
    ]
    steps.run(in_toolroot(command, [(folder, BUILD, "rw")]), log, f"Fuzzing {target}, whose findings are in {folder},")


def cargo_lock(what):
    """Locks the folder of one kind of build. cargo has a lock of its own, but waits for it without a message."""
    return cache.lock(f"emulator-{what}-{cache.key(str(cache.CLONE))}")


def emulator(release=False):
    """Builds the emulator as for host tests, or for a RELEASE, which takes minutes longer; returns its program."""
    if not (cache.CLONE / "emulator" / "Cargo.toml").exists():
        raise Failure("emulator/Cargo.toml is missing: this clone has no emulator to build.")
    cache.require_space(1, "the emulator")

    def build():
        with cargo_lock(profile), steps.step("emulator") as log:
            # The whole workspace, so that its dependencies have the same features as in the tests.
            cargo(log, "Building the emulator", "build", "--workspace", "--bins", *["--release"] * release)
        return [cache.clone_folder("emulator") / "target" / profile / "efa-emu"]

    profile = "release" if release else "debug"
    return store.build("emulator", ["emulator", "efa_rs/hw"], (toolroot.key(), profile), "the emulator", 1, build) / "efa-emu"


INSTALLED = "/run/efa-rs/installed"
# Test of the installed program: it prints its version, serves a device until a signal, and then removes its sockets.
INSTALLED_WORKS = f"""
    PATH={INSTALLED}/bin:$PATH
    cd $(mktemp -d)
    efa-emu --version
    efa-emu --device socket=efa.sock --control control &
    for attempt in $(seq 100); do
        ! efa-emu ctl control '{{"command":"devices"}}' || break
        sleep 0.1
    done
    test -S efa.sock
    efa-emu ctl control '{{"command":"hello","protocol":1}}'
    kill $!
    wait $! || true
    test ! -e efa.sock
"""


def cargo_install():
    """Installs the emulator as in its guide, without network, and tests it. The build has fewer features than that of a workspace."""
    with tempfile.TemporaryDirectory() as folder, cargo_lock("release"), steps.step("cargo install") as log:
        binds = [(cache.clone_folder("emulator"), BUILD, "rw"), (folder, INSTALLED, "rw"), *cargo_home()]
        environment = {"CARGO_HOME": CARGO, "CARGO_TARGET_DIR": f"{BUILD}/target"}
        command = ["cargo", "install", "--offline", "--locked", "--path", "/efa-rs/emulator/efa-emu", "--root", INSTALLED]
        steps.run(in_toolroot(command, binds, environment), log, "cargo install")
        steps.run(in_toolroot(["timeout", "120", "sh", "-euxc", INSTALLED_WORKS], binds[1:2]), log, "The installed emulator")


def dissection(log):
    """Checks how Wireshark shows a capture of the emulator. tshark runs as another user, as it loads no scripts for root."""
    # The features are those of the host tests, so that it is built already.
    arguments = ("test", "--workspace", "--test", "observe")
    with cargo_lock("debug"):
        cargo(log, "Building the emulator", "build", "--workspace", "--bin", "efa-emu")
        cargo(log, "Building the test", *arguments, "--no-run")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "tshark"
        program.write_text('#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/ tshark "$@"\n')
        program.chmod(0o755)
        Path(folder).chmod(0o755)
        binds = [(cache.clone_folder("emulator"), BUILD, "rw"), (folder, INSTALLED, "ro"), *cargo_home()]
        environment = {"CARGO_HOME": CARGO, "CARGO_TARGET_DIR": f"{BUILD}/target", "EFA_TSHARK": f"{INSTALLED}/tshark"}
        command = ["cargo", *arguments, "--offline", "--locked", "--manifest-path", "/efa-rs/emulator/Cargo.toml", "--", "--ignored"]
        steps.run(layer.DISSECTING.enter(command, binds, environment), log, "cargo test")


def foreign_tests():
    """Builds the emulator's tests for arm64; returns the folder to mount at BUILD, and the command of each test program."""
    name = arm64.TARGET.upper().replace("-", "_")
    # Unoptimised tests take several times as long on an emulated CPU.
    environment = {f"CARGO_TARGET_{name}_LINKER": arm64.LINKER, "CARGO_PROFILE_DEV_OPT_LEVEL": "1"}
    arguments = (
        *("test", "--workspace", "--no-run", "--target", arm64.TARGET),
        *("--message-format", "json-render-diagnostics"),
    )
    with cargo_lock("arm64"), steps.step("emulator's tests for arm64") as log:
        cargo(log, "Building the emulator's tests", *arguments, environment=environment, root=toolroot.root_of_programs())
    lines = Path(log.name).read_text(errors="replace").splitlines()
    built = [json.loads(line) for line in lines if line.startswith('{"reason":"compiler-artifact"')]
    tests = [artifact for artifact in built if artifact["executable"] and artifact["profile"]["test"]]
    # The simulation is no part of the emulator, and takes long.
    tests = [test for test in tests if test["target"]["name"] != "simulation"]
    return cache.clone_folder("emulator"), [f"cd {Path(test['manifest_path']).parent} && {test['executable']}" for test in tests]


def endpoints():
    """Builds the bench of endpoints without guests, and the emulator that it uses; returns the folder of both, and the bench in it."""
    with cargo_lock("release"), steps.step("bench of endpoints") as log:
        cargo(log, "Building the emulator", "build", "--release", "--bin", "efa-emu")
        cargo(log, "Building the bench of endpoints", "build", "--release", "--package", "efa-testing", "--example", "endpoints")
    return cache.clone_folder("emulator") / "target" / "release", "examples/endpoints"


def simulation():
    """Builds the simulation of many devices; returns its program."""
    with cargo_lock("release"), steps.step("simulation") as log:
        cargo(log, "Building the simulation", "build", "--release", "--package", "efa-fabric", "--example", "simulation")
    return cache.clone_folder("emulator") / "target" / "release" / "examples" / "simulation"


def run_in_toolroot(program, *arguments):
    """Runs a program that was built in the toolroot; returns its output."""
    return run_of_folder(program.parent, program.name, *arguments)


def run_of_folder(folder, program, *arguments):
    """Runs a program of a folder in which programs were built in the toolroot; returns its output."""
    command = in_toolroot([f"{BUILD}/{program}", *arguments], [(folder, BUILD, "ro")])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def bench_program(name, output, *options):
    """Builds a file of tests/bench for the host; returns the result's path."""
    source = cache.CLONE / "tests" / "bench" / name
    folder = cache.folder("bench-program") / cache.key(toolroot.key(), source)

    def compile_it(path):
        path.mkdir()
        with steps.step(f"{name} of the bench") as log:
            command = [
                *("rustc", "--edition", "2021", "-O", "-C", "panic=abort", "-C", "strip=symbols", "-D", "warnings"),
                *(*options, "-o", f"{BUILD}/{output}", f"/efa-rs/tests/bench/{name}"),
            ]
            steps.run(in_toolroot(command, [(path, BUILD, "rw")]), log, f"Building {name} of the bench")

    return cache.make(folder, f"{name} of the bench", 0.1, compile_it) / output


def bench_plugin():
    """Builds the plugin of QEMU that counts instructions for the bench."""
    return bench_program("count.rs", "count.so", "--crate-type", "cdylib")


def memcpy():
    """Builds the program that measures copies between shared mappings."""
    return bench_program("memcpy.rs", "memcpy")
