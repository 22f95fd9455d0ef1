#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Makes the image: packages of this root with what they need, and the kernel, module, emulator and tools of guests.

usage: image/build.py FOLDER    makes FOLDER/efa-rs.oci.tar, for podman load, docker load or skopeo
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
CLONE, BUILT = Path("/efa-rs"), Path("/run/built")
# What hosts the guests, and then what runs in them.
PACKAGES = """
    qemu-system-x86 virtiofsd python3 openssh-client libnss-wrapper
    openssh-server busybox-static kmod udev iproute2 pciutils procps util-linux xz-utils make
    rdma-core ibverbs-utils python3-pyverbs perftest libfabric-bin openmpi-bin
    python3-pytest python3-pytest-xdist python3-yaml python3-junitparser python3-retrying
""".split()
# Files that scripts of packages have made.
MADE = ("etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/ld.so.cache", "etc/alternatives", "etc/ssh/sshd_config")
RESULTS = ("emulator-release", "rust-cloud-amd64", "kernel-cloud-amd64")
PROGRAM = "/efa-rs/image/hosts.py"


def said(*words, **options):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def packages():
    """Returns the names of all packages that the image has."""
    essential = re.findall(r"^(\S+) yes$", said("dpkg-query", "-W", "-f", "${Package} ${Essential}\n"), re.MULTILINE)
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    found = said("apt-cache", "depends", "--recurse", "--installed", *(f"--no-{kind}" for kind in kinds), *PACKAGES, *essential)
    installed = set(said("dpkg-query", "-W", "-f", "${Package}\n").split())
    return sorted({line for line in found.splitlines() if re.match(r"[a-z0-9]", line)} & installed)


def files(names):
    """Returns the paths of packages and of what their scripts have made, without the first slash."""
    listed = {Path(line) for line in said("dpkg-query", "-L", *names).splitlines() if line.startswith("/")}
    # A path in a folder that is a link now, such as /bin, is one in the folder that it links to.
    real = {path.parent.resolve() / path.name for path in listed if os.path.lexists(path)}
    made = {path for name in MADE for path in [Path("/", name), *Path("/", name).glob("*")]}
    return sorted(str(path)[1:] for path in real | made if str(path) != "/")


def fill(root, names):
    """Makes the root of the image."""
    subprocess.run(["rsync", "-a", "--files-from=-", "/", root], input="\n".join(files(names)), text=True, check=True)
    release = next(path for path in Path("/usr/lib/modules").iterdir() if path.name.endswith("-cloud-amd64"))
    shutil.copytree(release, root / "usr/lib/modules" / release.name, symlinks=True, ignore=shutil.ignore_patterns("build", "source"))
    for name in RESULTS:
        shutil.copytree(BUILT / name, root / "usr/lib/efa-rs" / name.replace("-release", ""))
    for name in ("tools", "image", "tests/traffic.py", "LICENSE"):
        (shutil.copytree if (CLONE / name).is_dir() else shutil.copy)(CLONE / name, parent(root / "efa-rs" / name))
    for name in ("cache", "share", "proc", "sys", "dev", "run", "tmp", "mnt"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for name in ("hosts", "hostname", "resolv.conf"):
        # What a container mounts there, also if its root is read-only.
        (root / "etc" / name).touch()
    # The list of the software.
    parent(root / "var/lib/dpkg/status").write_text(said("dpkg-query", "--status", *names))


def parent(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def main(folder):
    storage = ["buildah", "--storage-driver", "vfs", "--root", f"{folder}/storage", "--runroot", "/run/containers"]
    container = said(*storage, "from", "scratch").strip()
    fill(Path(said(*storage, "mount", container).strip()), packages())
    labels = {"title": "EFA without EC2", "licenses": "GPL-2.0 OR BSD-2-Clause"}
    words = [word for name, value in labels.items() for word in ("--label", f"org.opencontainers.image.{name}={value}")]
    words += ["--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "--env", "LANG=C.UTF-8"]
    subprocess.run([*storage, "config", *words, "--entrypoint", f'["{PROGRAM}"]', "--workingdir", "/share", container], check=True)
    time = os.environ.get("SOURCE_DATE_EPOCH", "0")
    image = f"oci-archive:{folder}/efa-rs.oci.tar:efa-rs"
    subprocess.run([*storage, "commit", "--quiet", "--timestamp", time, container, image], check=True)
    subprocess.run([*storage, "rm", container], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder / "storage")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
