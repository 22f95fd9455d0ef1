# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The toolroot: a Debian root with compilers, kernels, QEMU and the guests' programs, made by toolroot.sh."""

import re
import shutil
import subprocess
from pathlib import Path

from . import arm64, cache, namespace, steps
from .failure import Failure

RECIPE = namespace.TOOLS / "toolroot.sh"
CHOOSE_KERNEL = namespace.TOOLS / "choose-kernel"
SERIES_FILE = namespace.TOOLS / "series"


def read_series(text):
    """Parses the file of series: the floor, the names of its flavours, and those of the next series, if there is one."""
    (floor, *flavours), *others = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    return floor, tuple(flavours), tuple(f"{flavour}-{number}" for number, *names in others for flavour in names)


SERIES, FLAVOURS, NEXT = read_series(SERIES_FILE.read_text())
# Flavour of the kernel that debug_kernel builds from the same source.
DEBUG = "debug"

# File name of a kernel, in the folder of its modules.
IMAGE = "vmlinuz.unsigned"
# A message of choose-kernel.
CHOSEN = re.compile(r"^choose-kernel: (.*)$", re.MULTILINE)
# The host's apt settings for access to a mirror, and for the age of its index.
APT_SETTINGS = re.compile(r"Acquire::((http|https|ftp)::|Check-Valid-Until |Check-Date |(Max|Min)-ValidTime |Retries |ForceIPv[46] )")


def key():
    return cache.key(RECIPE, SERIES_FILE, CHOOSE_KERNEL)


def root():
    """The toolroot's directory, which is made first if it is not in the cache."""
    path = cache.folder("toolroot") / key()
    if path.exists() and not complete(path):
        steps.note(f"the toolroot {path} is damaged: making it again")
        with cache.lock("toolroot-damaged"):
            if path.exists() and not complete(path):
                namespace.remove(path)
    return cache.make(path, "the toolroot", 7, build) / "root"


def complete(path):
    """Whether a cached toolroot still has its main files."""
    programs = ("usr/bin/rustc", "usr/bin/qemu-system-x86_64", "usr/libexec/virtiofsd", source(SERIES).lstrip("/"))
    return all((path / "root" / program).exists() for program in programs)


def build(path):
    namespace.require("mmdebstrap", "mmdebstrap")
    namespace.unshare()
    with steps.step("toolroot") as log:
        command = [*namespace.unshare(), "sh", str(RECIPE), str(path), *apt_settings()]
        steps.run(command, log, "Making the toolroot")
    for line in CHOSEN.findall(Path(log.name).read_text(errors="replace")):
        steps.note(line)
    shutil.rmtree(path / "tmp", ignore_errors=True)


def apt_settings():
    if not shutil.which("apt-config"):
        return []
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
    return [line for line in dump.splitlines() if APT_SETTINGS.match(line) and not line.endswith(' "";')]


def foreign():
    """The folder of the layer over the toolroot that has kernels of another architecture."""
    return arm64.folder(root(), key(), SERIES)


def root_of(release):
    """The root that has a kernel, its headers and their compilers: a folder, or an overlay."""
    if not arm64.is_release(release):
        return root()
    path = foreign()
    return namespace.Overlay([path / "layer", root()], path / "mount")


def foreign_programs():
    """Returns the folder of the layer for programs of arm64, which lies over foreign()."""
    return arm64.programs(root(), foreign())


def root_of_programs():
    """The overlay in which Rust programs for arm64 are built."""
    path = foreign_programs()
    return namespace.Overlay([path / "layer", foreign() / "layer", root()], path / "mount")


def emulator():
    """Returns the file of qemu-user, which runs programs of arm64."""
    return foreign_programs() / "layer/usr/bin/qemu-aarch64"


def modules_of(release):
    """Returns the folder with the modules of all kernels of a kernel's architecture."""
    return (foreign() / "layer" if arm64.is_release(release) else root()) / "usr/lib/modules"


def kernel(flavour):
    """The release of the kernel of that flavour, such as 7.3.4+deb13-cloud-amd64."""
    releases = foreign_kernels() if flavour in arm64.FLAVOURS else kernels()
    if flavour not in releases:
        raise Failure(f"There is no kernel flavour {flavour}: choose one of {', '.join(all_flavours())}.")
    return releases[flavour]


def kernels():
    """The releases by flavour."""
    releases = {}
    for image in sorted((root() / "usr/lib/modules").glob(f"*/{IMAGE}")):
        release = image.parent.name
        flavour = release.split("-", 1)[1]
        if series(release) == SERIES:
            releases[flavour] = release
            releases[DEBUG] = f"{release.split('+')[0]}-{DEBUG}"
        else:
            releases[f"{flavour}-{series(release)}"] = release
    return releases


def foreign_kernels():
    """The releases of the layer's kernels by flavour."""
    images = (foreign() / "layer/usr/lib/modules").glob(f"*/{arm64.IMAGE}")
    return {image.parent.name.split("-", 1)[1]: image.parent.name for image in images}


def architecture():
    """Returns Debian's name of the toolroot's architecture, such as amd64."""
    return (root() / "var/lib/dpkg/arch-native").read_text().strip()


def series(release):
    """The series of a kernel release, such as 7.3."""
    return ".".join(release.split(".")[:2])


def source(release):
    """The file in the toolroot with the source of a kernel release, or of a series."""
    return f"/usr/src/linux-source-{series(release)}.tar.xz"


def all_flavours():
    """The names of all kernels."""
    return [*FLAVOURS, *NEXT, *arm64.FLAVOURS, DEBUG]


def versions(*packages):
    """The versions of packages that are installed in the toolroot."""
    return versions_in(root(), *packages)


def versions_in(folder, *packages):
    """The versions of packages that are installed in a Debian root."""
    fields = re.findall(r"^(Package|Version): (.*)$", (folder / "var/lib/dpkg/status").read_text(), re.MULTILINE)
    names, numbers = ([value for field, value in fields if field == name] for name in ("Package", "Version"))
    return [f"{name} {number}" for name, number in zip(names, numbers, strict=True) if name in packages]


def flavour_of(release):
    """The flavour of a kernel release that the toolroot has."""
    for flavour, known in (foreign_kernels() if arm64.is_release(release) else kernels()).items():
        if known == release:
            return flavour
    raise Failure(f"There is no kernel {release} in the toolroot: choose one of {', '.join(sorted(kernels().values()))}.")
