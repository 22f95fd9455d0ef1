# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The image: hosts in a container, which buildah runs by chroot, and podman in a guest; what it refuses; and the files in image/ci."""

import json
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import BUILT, CLONE, ran, succeeds
from guests import Guests

MINUTES = 15
TIER = "all"
NEEDS = ["image", "image-tools"]
WORK = Path(os.environ["EFA_KEEP"], "image")
TOOLS = BUILT / "image-tools"
ARCHIVE = "efa-rs.oci.tar"
CI = CLONE / "image/ci"
# buildah's defaults may exceed those of the host.
LIMITS = ("--ulimit", "nofile=16384:16384", "--ulimit", "nproc=8192:8192")
# A user of whom the image knows nothing.
STRANGER = "12345"
# Runs a program as a user without privileges who has subordinate ids.
ROOTLESS = f"""
    cp /etc/passwd /tmp/passwd
    echo rootless:x:{STRANGER}:{STRANGER}::/tmp/home:/bin/sh >>/tmp/passwd
    echo {STRANGER}:20000:40000 >/tmp/subid
    mkdir -p /tmp/home/.config
    chown -R {STRANGER}:{STRANGER} /tmp/home
    mount --bind /tmp/passwd /etc/passwd
    mount --bind /tmp/subid /etc/subuid
    mount --bind /tmp/subid /etc/subgid
    exec setpriv --reuid {STRANGER} --regid {STRANGER} --clear-groups --reset-env "$@"
"""
# Makes the root read-only, and becomes another user, before the image's program.
READ_ONLY = """
    busybox mount -o remount,bind,ro /
    exec setpriv --reuid "$0" --regid "$0" --clear-groups --bounding-set -sys_admin /efa-rs/image/hosts.py "$@"
"""
TRIES = 5
ENDPOINTS = ("-e rdm -f efa", "-e rdm -f efa-direct", "-e dgram -f efa")
PINGPONG = "p='fi_pingpong -p efa -c -I 20 {0}'; if [ $EFA_GUEST = 0 ]; then $p; else until $p guest0; do sleep 1; done; fi"
# Refusals before a boot, and after one: arguments, and words of the last line, which says what is wrong and what to do.
REFUSALS = {
    "memory": (("--hosts", "16", "--memory", "999G", "--", "true"), "ask for fewer --hosts or less --memory"),
    "size": (("--memory", "1", "--", "true"), "such as 512M"),
    "instance": (("--instance", "p9.huge", "--", "true"), "p9.huge"),
}
LATE = {
    "hang": (("--hosts", "1", "--limit", "5", "--", "sleep 1000"), "No end after 5 s on guest0"),
    "glibc": (("--hosts", "1", "--", 'echo "version \\`GLIBC_2.99\' not found"; exit 1'), "newer C library"),
}
# Stands for podman in the scripts of workflows, and runs a container by buildah.
PODMAN = """#!/bin/sh
[ "$1" = run ] || exit 0
while [ "$1" != efa-rs ]; do shift; done
shift
exec {} "$@"
"""
# Which of fabtests' 3,753 tests run here, as an emulated CPU takes six seconds for each; and how many of them at least.
FABTESTS = "rdm_efa or tagged_peek or comm_getinfo or efa_info or test_cq or av_xfer or multi_ep or setopt or cntr or mr_host"
FEWEST = 20
# Validates workflows against GitHub's schema, and the items of a list against that of the newest Kubernetes.
VALIDATE = """
import json, sys, jsonschema, kubernetes_validate, yaml
schema, pods, *workflows = map(open, sys.argv[1:])
schema, items = json.load(schema), yaml.safe_load(pods)["items"]
for item in items:
    kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)
for workflow in map(yaml.safe_load, workflows):
    # YAML 1.1 takes the key for a truth value.
    workflow["on"] = workflow.pop(True)
    jsonschema.validate(workflow, schema)
print(len(items) + len(workflows), "valid")
"""
# Containers in the memory of a guest.
GUESTS_PODMAN = "podman --root /tmp/storage --runroot /tmp/run"
# Tests share containers.
pytestmark = pytest.mark.xdist_group("image")


def tool(*words, **options):
    """Runs a program in the layer of the image's tools; again if the host's memory of buildah's program is busy for a moment."""
    command = ["tools/layer", TOOLS, *words]
    done = ran(command, cwd=CLONE, **options)
    for _ in range(TRIES):
        if "sealing memfd copy" not in done.stdout:
            break
        done = ran(command, cwd=CLONE, **options)
    return done


@pytest.fixture(scope="module")
def container():
    """Returns a function that returns the command of the image for a folder /share, before its arguments."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    made = {}

    def command(share, user="0", rootless=False):
        folder = WORK / ("rootless" if rootless else "root")
        storage = ["--storage-driver", "vfs", "--root", folder / "storage", "--runroot", folder / "run"]
        buildah = [*(["sh", "-ec", ROOTLESS, "sh"] if rootless else []), "buildah", *storage]
        if folder not in made:
            folder.mkdir()
            succeeds(["chown", STRANGER if rootless else "0", folder])
            done = tool(*buildah, "from", "--pull-never", *LIMITS, f"oci-archive:{BUILT}/image/{ARCHIVE}")
            assert done.returncode == 0, done.stdout
            made[folder] = done.stdout.split()[-1]
        run = ["run", "--isolation", "chroot", "--cap-add", "CAP_SYS_ADMIN", "--mount", "type=tmpfs,target=/tmp"]
        return [*buildah, *run, "--volume", f"{share}:/share", made[folder], "--", "sh", "-ec", READ_ONLY, user]

    yield command
    shutil.rmtree(WORK, ignore_errors=True)


@pytest.fixture
def share(container):
    """A folder that every user reaches."""
    with tempfile.TemporaryDirectory(dir=WORK) as work:
        Path(work).chmod(0o755)
        folder = Path(work, "share")
        folder.mkdir()
        folder.chmod(0o777)
        yield folder


def run(command, *words):
    """Runs the image with arguments."""
    done = tool(*command, *words, timeout=1200)
    # What buildah adds.
    done.stdout = re.sub(r"^(subprocess exited with|Error: exit) status \d+\n", "", done.stdout, flags=re.MULTILINE)
    return done


def test_help(container, share):
    done = run(container(share))
    assert done.returncode == 0 and "--hosts" in done.stdout


@pytest.mark.parametrize("case", [*REFUSALS, *LATE])
def test_refusals(container, share, case):
    words, said = (REFUSALS | LATE)[case]
    done = run(container(share), "run", *words)
    assert done.returncode and said in done.stdout.splitlines()[-1], done.stdout[-3000:]
    assert case != "hang" or (share / "efa-console0").exists()


def test_full_disk(container, share):
    done = run([f"{word},tmpfs-size=1m" if str(word).endswith("=/tmp") else word for word in container(share)], "run", "--", "true")
    assert done.returncode and done.stdout.splitlines()[-1].endswith("--tmpfs /tmp does."), done.stdout[-3000:]


@pytest.mark.tier("named")
@pytest.mark.parametrize(
    ("instance", "user", "rootless"),
    [("p5.48xlarge", "0", False), ("c5n.18xlarge", STRANGER, False), ("hpc7g.16xlarge", "0", True)],
    ids=["root", "stranger", "rootless"],
)
def test_pingpong(container, share, instance, user, rootless):
    """Each endpoint of libfabric, between two hosts on a read-only root, and files that hosts write."""
    command = "set -e; echo $EFA_GUEST >guest$EFA_GUEST; " + "; ".join(PINGPONG.format(endpoint) for endpoint in ENDPOINTS)
    words = ("run", "--instance", instance, "--limit", "600", "--junit", "results.xml", "--", command)
    done = run(container(share, user, rootless), *words)
    assert done.returncode == 0, done.stdout[-6000:]
    assert len(re.findall(r"^guest[01]: 64 +20 ", done.stdout, re.MULTILINE)) == 2 * len(ENDPOINTS), done.stdout
    assert [(share / f"guest{guest}").read_text() for guest in range(2)] == ["0\n", "1\n"]
    assert results(share / "results.xml") == {"passed": 2}


def results(file):
    """Returns the numbers of a file of JUnit's results, by outcome."""
    found = {}
    for case in ElementTree.parse(file).iter("testcase"):
        bad = next((tag for tag in ("failure", "error", "skipped") if case.find(tag) is not None), "passed")
        found[bad] = found.get(bad, 0) + 1
    return found


def steps(name):
    """Returns the steps of a workflow that have a name and a script."""
    parse = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))"
    said = tool("python3", "-c", parse, input=(CI / name).read_text()).stdout
    [job] = json.loads(said)["jobs"].values()
    return {step["name"]: step for step in job["steps"] if "run" in step}


@pytest.fixture
def step(container, share):
    """Returns a function that runs a step of a workflow beside the folder share. Its podman is buildah, and its sudo does nothing."""
    work = share.parent
    podman = PODMAN.format(shlex.join(map(str, [CLONE / "tools/layer", TOOLS, *container(share)])))
    (work / "bin").mkdir()
    for name, text in (("podman", podman), ("sudo", "#!/bin/sh\n")):
        (work / "bin" / name).write_text(text)
        (work / "bin" / name).chmod(0o755)

    def run(step, **environment):
        environment = {**os.environ, "PATH": f"{work}/bin:{os.environ['PATH']}", **step.get("env", {}), **environment}
        done = ran(["bash", "-ec", step["run"]], cwd=work, env=environment)
        assert done.returncode == 0, done.stdout[-6000:]

    return run


@pytest.mark.tier("named")
def test_program(step, share):
    """The workflow for a program of one's own."""
    named = steps("program.yml")
    step(named["Build the program"])
    step(named["Run the program"])
    assert results(share / "program.xml") == {"passed": 2}


@pytest.mark.tier("named")
def test_fabtests(step, share):
    """The workflow for libfabric: its tests of each kind, by a build of Debian's source."""
    named = steps("fabtests.yml")
    source = share.parent / "libfabric"
    source.mkdir()
    succeeds(["tar", "-x", "-f", *TOOLS.glob("layer/usr/src/libfabric_*.orig.tar.*"), "-C", source, "--strip-components=1"])
    built = tool("bash", "-ec", f"cd {share.parent}; {named['Build libfabric']['run']}")
    assert built.returncode == 0, built.stdout[-6000:]
    step(named["Run fabtests"], EXPRESSION=FABTESTS)
    found = results(share / "fabtests.xml")
    assert found.keys() <= {"passed", "skipped"} and found["passed"] >= FEWEST, found


@pytest.mark.needs("image-linters")
def test_ci():
    """The files in image/ci: a linter of workflows, and the schemas of GitHub and Kubernetes."""
    linters, workflows = BUILT / "image-linters", sorted(CI.glob("*.yml"))
    succeeds([linters / "bin/zizmor", "--offline", "--strict-collection", "--persona=pedantic", *workflows])
    schema = linters / "check_jsonschema/builtin_schemas/vendor/github-workflows.json"
    checked = tool("env", f"PYTHONPATH={linters}", "python3", "-c", VALIDATE, schema, CI / "pods.yaml", *workflows)
    assert checked.returncode == 0 and checked.stdout == f"{2 + len(workflows)} valid\n", checked.stdout[-3000:]


@pytest.mark.tier("named")
def test_podman(tmp_path):
    """Debian's podman in a guest loads the image, and shows its help and each refusal that needs no boot."""
    (tmp_path / "upper").symlink_to(TOOLS / "layer")
    (tmp_path / "of").write_text(f"{os.environ['EFA_ROOT']} /")
    (tmp_path / "lock").touch()
    with Guests(driver="none", cpu="max", memory="6G", overlay=tmp_path, share=BUILT / "image") as guests:
        guests.run(f"mount -t cgroup2 cgroup2 /sys/fs/cgroup; {GUESTS_PODMAN} load -i /share/{ARCHIVE}")
        podman = f"{GUESTS_PODMAN} run --rm --read-only --network none efa-rs"
        assert "--hosts" in guests.run(podman)
        for words, said in REFUSALS.values():
            done = guests.tried(f"{podman} run {shlex.join(words)}")
            assert done.returncode and said in done.stdout.splitlines()[-1], done.stdout
