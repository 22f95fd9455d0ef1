# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The image: hosts in a container, which buildah runs by chroot, as root and as another user, and what it refuses."""

import os
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import BUILT, ran

MINUTES = 5
TIER = "named"
NEEDS = ["image", "image-tools"]
WORK = Path(os.environ["EFA_KEEP"], "image")
LAYER = ("tools/layer", BUILT / "image-tools")
STORAGE = ("--storage-driver", "vfs", "--root", WORK / "storage", "--runroot", WORK / "run")
# buildah's defaults may exceed those of the host.
LIMITS = ("--ulimit", "nofile=16384:16384", "--ulimit", "nproc=8192:8192")
# A user of whom the image knows nothing.
STRANGER = "12345:12345"
# Tests share a container.
pytestmark = pytest.mark.xdist_group("image")
TRIES = 5
ENDPOINTS = ("-e rdm -f efa", "-e rdm -f efa-direct", "-e dgram -f efa")
PINGPONG = "p='fi_pingpong -p efa -c -I 20 {0}'; if [ $EFA_GUEST = 0 ]; then $p; else until $p guest0; do sleep 1; done; fi"


def buildah(*words, **options):
    """Runs buildah, again if the host's memory of its program is busy for a moment."""
    for _ in range(TRIES):
        done = ran([*LAYER, "buildah", *STORAGE, *words], **options)
        if "sealing memfd copy" not in done.stdout:
            break
    return done


@pytest.fixture(scope="module")
def container():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    made = buildah("from", "--pull-never", *LIMITS, f"oci-archive:{BUILT}/image/efa-rs.oci.tar")
    assert made.returncode == 0, made.stdout
    name = made.stdout.split()[-1]
    yield name
    buildah("rm", name)
    shutil.rmtree(WORK, ignore_errors=True)


@pytest.fixture
def image(container, tmp_path):
    """Returns a function that runs the image with arguments, and the folder /share."""
    share = tmp_path / "share"
    share.mkdir()
    share.chmod(0o777)

    def run(*words, user="0:0"):
        command = ["run", "--isolation", "chroot", "--user", user, "--volume", f"{share}:/share"]
        done = buildah(*command, container, "--", "/efa-rs/image/hosts.py", *words, timeout=1200)
        # What buildah adds.
        done.stdout = re.sub(r"^(subprocess exited with|Error: exit) status \d+\n", "", done.stdout, flags=re.MULTILINE)
        return done

    return run, share


def test_help(image):
    run, _ = image
    done = run()
    assert done.returncode == 0 and "--hosts" in done.stdout


@pytest.mark.parametrize(("user", "instance"), [("0:0", "p5.48xlarge"), (STRANGER, "c5n.18xlarge")])
def test_pingpong(image, user, instance):
    """Each endpoint of libfabric, between two hosts."""
    run, share = image
    command = "set -e; " + "; ".join(PINGPONG.format(endpoint) for endpoint in ENDPOINTS)
    done = run("run", "--instance", instance, "--limit", "600", "--junit", "results.xml", "--", command, user=user)
    assert done.returncode == 0, done.stdout[-6000:]
    assert len(re.findall(r"^guest[01]: 64 +20 ", done.stdout, re.MULTILINE)) == 2 * len(ENDPOINTS), done.stdout
    cases = ElementTree.parse(share / "results.xml").findall("testcase")
    assert [case.get("name") for case in cases] == ["guest0", "guest1"] and not any(case.findall("failure") for case in cases)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--hosts", "16", "--memory", "999G", "--", "true"), "ask for fewer --hosts or less --memory"),
        (("--memory", "1", "--", "true"), "such as 512M"),
        (("--instance", "p9.huge", "--", "true"), "p9.huge"),
        (("--hosts", "1", "--limit", "5", "--", "sleep 1000"), "No end after 5 s on guest0"),
        (("--hosts", "1", "--", 'echo "version \\`GLIBC_2.99\' not found"; exit 1'), "newer C library"),
    ],
    ids=["memory", "size", "instance", "hang", "glibc"],
)
def test_refusals(image, words, said):
    """The last line says what is wrong, and what to do."""
    run, _ = image
    done = run("run", *words)
    assert done.returncode and said in done.stdout.splitlines()[-1], done.stdout[-3000:]
