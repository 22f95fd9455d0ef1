# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""make canary: the Rust kit and the module for the newest kernel in any suite of Debian.

Kernel, headers, source and the compilers that they were built with are a layer over the toolroot, made at the first use of each.
"""

import os
import shlex

from . import cache, namespace, steps, toolroot, verdict
from .failure import Failure, match_in
from .tally import Tally

FLAVOUR = "cloud-amd64"
# Debian's suites that get kernels before backports. The compilers are those of the last one.
SUITES = ("experimental", "sid")
SOURCES = f"""
    set -eu
    export DEBIAN_FRONTEND=noninteractive
    for suite in {" ".join(SUITES)}; do
        sed -n "s/ trixie / $suite /p" /etc/apt/sources.list
    done >/etc/apt/sources.list.d/canary.list
    apt-get update
"""
# Prints the version of the toolroot's kernel, and the newest version in a suite or in all of them.
LOOK = """
    newest=0
    for version in $(apt-cache madison linux-headers-{flavour} | grep -F {suite} | cut -d '|' -f 2); do
        ! dpkg --compare-versions $version gt $newest || newest=$version
    done
    ours=$(dpkg-query -W -f '${{Version}}' linux-headers-{ours})
    ! dpkg --compare-versions $newest gt $ours || echo "it is newer"
    echo "ours is $ours"
    echo "newest is $newest"
"""
# A build needs exactly the rustc that built the kernel. C compiler and binutils are Debian's present ones, whose versions are set in the
# configuration. This suffices, as the module is not loaded.
INSTALL = """
    printf 'Package: linux-*\\nPin: version %s\\nPin-Priority: 1001\\n' {version} >/etc/apt/preferences.d/canary
    install="apt-get install --yes --no-install-recommends --allow-downgrades -t {compilers}"
    $install linux-headers-{flavour} linux-source
    headers=/usr/src/$(dpkg-query -W -f '${{Depends}}' linux-headers-{flavour} | grep -o 'linux-headers-[^ ]*')
    config() {{
        sed -n "s/^$1=\\"\\(.*\\)\\"/\\1/p" $headers/.config
    }}
    wanted=$(config CONFIG_RUSTC_VERSION_TEXT | cut -d ' ' -f 2)
    for rustc in $(apt-cache madison rustc | cut -d '|' -f 2) none; do
        case $rustc in "$wanted"[+-]*) break ;; esac
    done
    if [ $rustc = none ]; then
        echo "Debian has no rustc $wanted any more, which built the kernel."
        exit 1
    fi
    $install rustc=$rustc rust-src=$rustc bindgen binutils pahole
    set_config() {{
        sed -i "s/^$1=[^\\"].*/$1=$2/; s/^$1=\\".*/$1=\\"$2\\"/" $headers/.config $headers/include/config/auto.conf
    }}
    compiler=$(config CONFIG_CC_VERSION_TEXT | cut -d ' ' -f 1)
    set_config CONFIG_CC_VERSION_TEXT "$($compiler --version | head -n 1)"
    binutils=$(as --version | head -n 1 | sed 's/.* //' | awk -F . '{{ print $1 * 10000 + $2 * 100 + $3 }}')
    set_config CONFIG_AS_VERSION $binutils
    set_config CONFIG_LD_VERSION $binutils
    apt-get clean
    rm -rf /var/lib/apt/lists/*
"""
WORK = "/run/efa-rs/canary"
COPY = "rsync --recursive --copy-links --times --perms --exclude-from=/efa-rs/.gitignore --exclude=*_generated.*"


def run(suite_name=""):
    """Builds for the newest kernel, or that of a suite; returns the tally. One process at a time runs it."""
    with cache.lock("canary"):
        ours, newest, newer = look(suite_name)
        if newer or suite_name:
            return build_for(newest)
    steps.note(f"Debian has no newer kernel than the toolroot's, {ours}")
    tally = Tally()
    tally.succeed("the toolroot's kernel is the newest that Debian has")
    return tally


def build_for(newest):
    path = install(newest)
    headers = next((path / "layer/usr/src").glob(f"linux-headers-*-{FLAVOUR}"))
    release = headers.name.removeprefix("linux-headers-")
    name = f"the module builds for {newest}"
    return verdict.attempt(name, lambda: build_module(path, release))


def look(suite_name):
    """Returns the versions of our kernel and of the newest kernel, of a suite or of all, and whether the latter is newer."""
    path = cache.folder("canary", "look")
    script = SOURCES + LOOK.format(
        flavour=FLAVOUR, ours=toolroot.kernel(FLAVOUR), suite=shlex.quote(f"{suite_name}/" if suite_name else "")
    )
    with steps.step("the newest kernel that Debian has") as log:
        namespace.remove(path)
        steps.run(namespace.enter(writable(path), ["sh", "-c", script]), log, "Looking for the newest kernel")
        with open(log.name) as file:
            said = file.read()
    ours, newest = (match_in(rf"(?m)^{what} is (\S+)$", said, log.name)[1] for what in ("ours", "newest"))
    if newest == "0":
        raise Failure(f"There is no kernel in {suite_name}: choose one of {', '.join(SUITES)}.")
    return ours, newest, "\nit is newer\n" in said


def writable(path):
    """The toolroot with a layer in which packages can be installed."""
    for part in ("layer", "work", "mount"):
        (path / part).mkdir(parents=True, exist_ok=True)
    return namespace.Overlay([toolroot.root()], path / "mount", path / "layer", path / "work")


def install(version):
    """The folder with the layer that has the kernel of that version, which is made first if it is not in the cache."""
    script = SOURCES + INSTALL.format(version=version, flavour=FLAVOUR, compilers=SUITES[-1])

    def build(path):
        with steps.step(f"kernel {version} and its compilers") as log:
            steps.run(namespace.enter(writable(path), ["sh", "-c", script]), log, f"Installing the kernel {version}")

    folder = cache.folder("canary")
    path = cache.make(folder / cache.key(toolroot.key(), script), f"the kernel {version}", 4, build)
    for old in folder.iterdir():
        if old != path:
            namespace.remove(old)
    return path


def enter(path, command, binds=()):
    """Returns the command line that runs COMMAND in the root with the kernel."""
    overlay = namespace.Overlay([path / "layer", toolroot.root()], path / "mount")
    return namespace.enter(overlay, command, [(cache.CLONE, "/efa-rs", "ro"), *binds])


def build_module(path, release):
    """Builds the kit and the module, as for any kernel; neither is kept."""
    work = path / "build"
    namespace.remove(work)
    (work / "tmp").mkdir(parents=True)
    binds = [(work, WORK, "rw")]
    kit = ["env", f"TMPDIR={WORK}/tmp", "/efa-rs/tools/rust-kit", "--kernel", release, "--output", f"{WORK}/kit"]
    module = f"{COPY} /efa-rs/efa_rs/ {WORK}/module/ && make -j{os.cpu_count()} -C {WORK}/kit M={WORK}/module modules"
    try:
        with steps.step(f"rust kit {release}") as log:
            steps.run(enter(path, kit, binds), log, f"Making the Rust kit for {release}")
        with steps.step(f"rust module {release}") as log:
            steps.run(enter(path, ["sh", "-c", module], binds), log, f"Building the module for {release}")
    finally:
        namespace.remove(work)
