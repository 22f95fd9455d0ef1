# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""The workbench itself: what judges results, what keeps builds, and that nothing is left when a run is killed."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import console
import ktap as parser
import pytest
import test_abi as abi
import topology
from conftest import CLONE
from guests import PATIENCE, place, wait_until

MINUTES = 1
TIER = "check"

# Documents, and how many of their results have passed, failed and were skipped.
DOCUMENTS = {
    "KTAP version 1\n1..3\nok 1 a\nnot ok 2 - b\nok 3 c # SKIP no device\n": (1, 1, 1),
    "1..1\n# ok so far\n# not ok either\nok 1 a\n": (1, 0, 0),
    "1..1\nnot ok 1 a # TODO later\n": (0, 1, 0),
    # Subtests count in place of their test, or are quoted. A test may fail after its subtests have passed.
    "KTAP version 1\n1..2\n  KTAP version 1\n  1..2\n  ok 1 a\n  ok 2 b # SKIP why\nok 1 first\nok 2 second\n": (2, 0, 1),
    "TAP version 13\n1..1\n# TAP version 13\n# 1..2\n# ok 1 a\n# not ok 2 b\nnot ok 1 selftests: efa: x\n": (1, 1, 0),
    "1..1\n  1..1\n  ok 1 a\nnot ok 1 program # exit=1\n": (1, 1, 0),
    # Fewer or more tests than planned, no plan, a program that gave up, and two programs.
    "1..3\nok 1 a\n": (1, 2, 0),
    "1..1\n  1..4\n  ok 1 a\nok 1 program\n": (1, 3, 0),
    "1..2\n  1..2\n  ok 1 a\n": (1, 3, 0),
    "1..1\nok 1 a\nok 2 b\n": (2, 1, 0),
    "ok 1 a\n": (1, 1, 0),
    "": (0, 1, 0),
    "1..2\nok 1 a\nBail out! no memory\n": (1, 2, 0),
    "1..0 # SKIP no device\n": (0, 0, 1),
    "1..1\nok 1 a\n1..1\nok 1 b\n": (2, 0, 0),
}


@pytest.mark.parametrize("text", DOCUMENTS)
def test_ktap(text):
    outcomes = [outcome for _, outcome, _ in parser.parse(text)]
    assert tuple(map(outcomes.count, (parser.PASSED, parser.FAILED, parser.SKIPPED))) == DOCUMENTS[text]


ROW = "| a | ok | EINVAL | why |\n"
HEAD = "| case | c | rust | reason |\n|---|---|---|---|\n"
COMPARISONS = [
    # What each driver has, the table of differences, and what is wrong.
    ({"a": "ok"}, {"a": "ok"}, "", None),
    ({"a": "ok"}, {"a": "EINVAL"}, "", "the drivers differ"),
    ({"a": "ok"}, {}, "", "the drivers differ"),
    ({"a": "ok"}, {"a": "EINVAL"}, ROW, None),
    ({"a": "ok"}, {"a": "EFAULT"}, ROW, "differences.md allows"),
    ({"a": "ok"}, {"a": "ok"}, ROW, "differences.md allows"),
    ({}, {}, ROW, "differences.md allows"),
    ({"a": "BROKEN x"}, {"a": "BROKEN x"}, "", "it could not run"),
    # Bytes of the commands differ, which they may where the results may.
    ({"a": "ok", "a (bytes)": "1"}, {"a": "ok", "a (bytes)": "2"}, "", "the drivers differ"),
    ({"a": "ok", "a (bytes)": "1"}, {"a": "EINVAL", "a (bytes)": "2"}, ROW, None),
]


@pytest.mark.parametrize(("c", "rust", "table", "problem"), COMPARISONS)
def test_comparison(c, rust, table, problem):
    found = [text for _, text in abi.compare({"c": c, "rust": rust}, abi.table(HEAD + table))]
    assert len(found) == bool(problem) and all(text.startswith(problem) for text in found)


def test_table_of_differences():
    for bad in ("| a | ok | EINVAL | |\n", "| a | ok | EINVAL |\n", ROW * 2):
        with pytest.raises(AssertionError, match=r"not \||two lines"):
            abi.table(HEAD + bad)
    text = f"{HEAD}{ROW}| b | x | y | z |\n\n## Pages of 16 KiB\n\n{HEAD}| a | ok | ok | fits |\n"
    assert [abi.table(text, pages)["a"]["rust"] for pages in (4096, 16384)] == ["EINVAL", "ok"]
    assert all(sorted(abi.table(text, pages)) == ["a", "b"] for pages in (4096, 16384))


REPORT = """[ 9.0] ------------[ cut here ]------------
[ 9.0] WARNING: fs/x.c:1 at warns+0x1/0x2, CPU#0
[ 9.0]  caller+0x1/0x2
[ 9.0] ---[ end trace 0 ]---"""
OOM = "[ 9.0] dd invoked oom-killer: order=0\n[ 9.0] Call Trace:\n[ 9.0] oom-kill:constraint=CONSTRAINT_{},nodemask=(null)\n"


@pytest.mark.parametrize(
    "line", ["BUG: KASAN: x", "WARNING: CPU: 0", "Oops: 0000", "Call Trace:", "Kernel panic - not syncing", "refcount_t: underflow"]
)
def test_console(line):
    assert console.trouble(f"one\ntwo\nthree\n[ 1.0] {line}\nafter", context=2) == ["two", "three", f"[ 1.0] {line}", "after"]


def test_what_a_console_may_say():
    assert not console.trouble("[ 1.0] efa: started\n[ 2.0] traps: a[1] general protection fault ip:1 sp:2 error:0\n" + OOM.format("MEMCG"))
    assert console.trouble(OOM.format("NONE"))
    assert console.without(f"one\n{REPORT}\ntwo", [("warns", "caller")]) == ("one\ntwo", 1)
    # Another function, another caller, a second report in it, or one without an end.
    others = REPORT.replace(" caller", " BUG: KASAN: bad\n[ 9.0]  caller"), REPORT.rpartition("\n")[0]
    for text, known in ((REPORT, ("warn", "caller")), (REPORT, ("warns", "other")), *((text, ("warns", "caller")) for text in others)):
        assert console.without(text, [known]) == (text, 0)


@pytest.mark.parametrize(("value", "letters"), [(0, ""), (1 << 12 | 1 << 13, ""), (1 << 9 | 1 << 12, "W"), (1 << 7, "D")])
def test_taint(value, letters):
    assert console.unexpected_taint(f"{value}\n") == letters
    assert console.unexpected_taint(str(value), console.WARNING_TAINT) == letters.replace("W", "")


@pytest.mark.parametrize("instance", [None, "g5.48xlarge", *topology.OF_INSTANCES])
def test_topology(instance):
    """Each device has a port of its own, in the order of the root buses, of which each node has equally many."""
    where = topology.of(f"{instance},number=1" if instance else None)
    parts, places = where.places(32)
    nodes = [part["numa_node"] for part in parts if part["driver"] == "pxb-pcie"]
    assert nodes == sorted(list(range(where.nodes)) * where.buses)
    ids = [part["id"] for part in parts]
    assert len(set(ids)) == len(ids) and [one["bus"] for one in places] == [f"port{number}" for number in range(32 if nodes else 0)]
    assert all(part.get("bus", "pcie.0") in ("pcie.0", *ids[: ids.index(part["id"])]) for part in parts)
    # Without root buses of their own, devices share slots if there are too many.
    slots = [json.dumps(place(number, 120)) for number in range(120)]
    assert len(set(slots)) == 120 and place(15, 16) == {}


CACHED = """
import os, pathlib, sys
from importlib.machinery import SourceFileLoader
cached = SourceFileLoader("cached", "/efa-rs/tools/cached").load_module()
base = pathlib.Path(os.environ["BASE"])
cached.CLONE, cached.CACHE, cached.LINKS = base / "clone", base / "cache", base / "built"
cached.main(sys.argv[1:])
"""


class Cached:
    """A clone with sources, whose builds tools/cached keeps."""

    def __init__(self, base):
        self.base, self.source = base, base / "clone/source"
        made = "mkdir -p clone/source/part clone/elsewhere cache built; echo '*.o\ntarget/\n/source/generated.rs' >clone/.gitignore"
        files = "cd clone; echo 1 >source/one.rs; echo 0 >source/part/two.rs; echo linked >elsewhere/a.rs; ln -s ../elsewhere source/link"
        subprocess.run(["sh", "-ec", f"{made}; {files}"], cwd=base, check=True)

    def start(self, script, *inputs):
        words = (CACHED, "thing", "source", *inputs, "--", "sh", "-c", f"echo >>{self.base}/runs; {script}")
        environment = {**os.environ, "BASE": str(self.base), "EFA_CACHE": str(self.base), "EFA_KEEP": f"{self.base}/cache/clone"}
        return subprocess.Popen(
            [sys.executable, "-Wignore", "-c", *words], stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )

    def build(self, script="echo made >$OUT/made", *inputs):
        """Returns what the command said, the status, and how often a build has run."""
        process = self.start(script, *inputs)
        said = process.communicate()[1]
        return said, process.returncode, len((self.base / "runs").read_text())


def test_key(tmp_path):
    cached = Cached(tmp_path)

    def change(script):
        subprocess.run(["sh", "-ec", script], cwd=cached.source, check=True)

    assert cached.build()[1:] == (0, 1)
    # Neither times nor what is ignored.
    change("touch -d @0 one.rs; : >one.o; : >generated.rs; mkdir target; : >target/x")
    assert cached.build()[1:] == (0, 1)
    changes = ("echo 2 >part/two.rs", "chmod +x one.rs", "mv one.rs renamed.rs", ": >part/new.rs", "rm renamed.rs")
    for number, script in enumerate((*changes, "echo 3 >../elsewhere/a.rs", "ln -sfn part link"), 2):
        change(script)
        assert cached.build()[1:] == (0, number), script
    # Another command, other text, no text, and another result are inputs, too.
    for number, other in enumerate("ab", 9):
        change(f"ln -sfn {other} ../../built/other")
        assert cached.build(":", "text", "", "@other")[1:] == (0, number)
    assert cached.build(f": {'long' * 100}", "text", "", "@other", f"{tmp_path}/built")[1:] == (0, 11)


def test_failed_and_killed_builds(tmp_path):
    """A build that failed or was killed leaves nothing that is taken for complete."""
    cached = Cached(tmp_path)
    said, status, runs = cached.build("echo part >$OUT/made; echo the reason; exit 3")
    assert (status, runs) == (1, 1) and "exit status 3" in said and "the reason" in said and not (cached.base / "built/thing").exists()
    script = f"[ -e {cached.base}/go ] || {{ echo part >$OUT/part; sleep 1000; }}"
    process = cached.start(script)
    wait_until(lambda: list(cached.base.glob("cache/built/thing/*/part")), "the build has begun")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (cached.base / "go").touch()
    assert cached.build(script)[1:] == (0, 3)
    assert os.listdir(cached.base / "built/thing/") == [".complete"]


def test_two_builds_at_once(tmp_path):
    cached = Cached(tmp_path)
    script = f"until [ -e {cached.base}/go ]; do sleep 0.01; done"
    first = cached.start(script)
    wait_until((cached.base / "runs").exists, "the build has begun")
    second = cached.start(script)
    assert "waiting for another run" in second.stderr.readline()
    (cached.base / "go").touch()
    for process in (first, second):
        process.communicate()
    assert (first.returncode, second.returncode, len((cached.base / "runs").read_text())) == (0, 0, 1)


def test_sources_that_change_during_a_build(tmp_path):
    cached = Cached(tmp_path)
    said, status, runs = cached.build(f"cat {cached.source}/one.rs >$OUT/made; echo new >{cached.source}/one.rs")
    assert (status, runs) == (0, 2) and "is built again" in said and (cached.base / "built/thing/made").read_text() == "new\n"


SUITE = """
import subprocess
import pytest
from guests import GuestFailed

class Guests:
    processes, count = {"qemu-0": None}, 1
    def console(self, guest):
        return "the last words of the guest"

@pytest.fixture
def guests():
    return Guests()

@pytest.mark.parametrize(("text", "status"), [
    ("1..3\\nok 1 good\\n# why\\nnot ok 2 bad\\nok 3 other # SKIP no device\\n", 0),
    ("1..0 # SKIP nothing\\n", 4), ("", 0), ("1..1\\nok 1 fine\\n", 1)])
def test_lines(guests, ktap, text, status):
    ktap(subprocess.CompletedProcess("", status, text))

def test_gone(guests):
    raise GuestFailed("guest 0 ended")
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_results(tmp_path, workers):
    """Lines are results. No results, a bad status and a guest that has ended fail a run, which then shows the guest's console."""
    (tmp_path / "test_sample.py").write_text(SUITE)
    shutil.copy(CLONE / "tests/pytest.ini", tmp_path)
    shutil.copy(CLONE / "tests/conftest.py", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", f"-n{workers}", "--junitxml=junit.xml", "-o", "cache_dir=cache", tmp_path]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": f"{CLONE}/tests"}, check=False
    )
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "2 passed, 4 failed, 2 skipped", done.stdout + done.stderr
    assert "the last words of the guest" in done.stdout and "guest 0 ended" in done.stdout
    report = (tmp_path / "junit.xml").read_text()
    assert all(re.search(rf'<testcase [^>]*name="[^"]*{name}"', report) for name in ("good", "bad", "other"))


@pytest.mark.parametrize("option", ["--only", "--suite"])
def test_no_tests(option):
    """A run without tests fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CLONE / "tests", option, "nothing"]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


# tools/enter is entered from here as from a host: there is no sign of a root, and this root is the one in the cache.
ENTER = """
mkdir -p upper work cache/efa-rs/root/$EFA_ROOT/root
mount -t overlay -o lowerdir=/etc,upperdir=$PWD/upper,workdir=$PWD/work$XATTR overlay /etc
rm /etc/efa-root
mount --bind / cache/efa-rs/root/$EFA_ROOT/root
export XDG_CACHE_HOME=$PWD/cache
exec /efa-rs/tools/enter sh -c "setsid sleep $TOKEN & sleep $TOKEN & touch /cache/began; wait"
"""


def commands(word):
    """Returns the processes with a word in their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path] if word in path.read_bytes().decode(errors="replace").split("\0") else []
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_enter(tmp_path, number):
    """kill, kill -9 and Ctrl-C leave no process, also in another session, and no mount."""
    token, mounts = str(100000 + os.getpid() % 100000), Path("/proc/mounts").read_text()
    user = Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
    environment = {**os.environ, "TOKEN": token, "XATTR": ",userxattr" if user else ""}
    command = ["unshare", "--mount", "sh", "-ec", ENTER]
    # A program in the background ignores Ctrl-C, and so would its children.
    options: Any = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    process: Any = subprocess.Popen(command, cwd=tmp_path, env=environment, **options)

    def began():
        assert process.poll() is None, process.stderr.read()
        return (tmp_path / "cache/efa-rs/began").exists() and len(commands(token)) == 2

    wait_until(began, "tools/enter runs its command")
    os.killpg(process.pid, number) if number == signal.SIGINT else os.kill(process.pid, number)
    process.wait(PATIENCE)
    wait_until(lambda: not commands(token), "all processes have ended")
    assert process.returncode != 0 and Path("/proc/mounts").read_text() == mounts
