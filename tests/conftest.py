# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""What all suites have in common: their tiers, what they need, guests as fixtures, and lines of KTAP as results.

A suite is a file test_NAME.py with
    MINUTES         about how long it takes on two cores
    COMBINATIONS    of driver and kernel flavour by tier: check, all, or named for those that only SUITE=NAME runs; or
    TIER            for tests without guests
    NEEDS           targets of tools/builds.mk besides emulator, module and kernel; those of one test are a marker, needs
    GUESTS          options of its guests, see tools/guests.py
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling

sys.dont_write_bytecode = True
CLONE = Path("/efa-rs")
sys.path[:0] = [str(CLONE / "tools"), str(CLONE / "tests/kselftest"), str(CLONE / "tests/abi")]

import ktap as parser
from guests import ARM64, BUILT, GuestFailed, Guests

TIERS = ("check", "all", "named")
# Where the first of the two runs of pytest leaves the names of targets that were not built.
FAILED_BUILDS = BUILT / ".failed"
# Seconds between two lines about what runs.
HEARTBEAT = 20


def pytest_addoption(parser):
    group = parser.getgroup("efa-rs")
    group.addoption("--tier", choices=TIERS[:2], default="check", help="check, or all of check-all")
    group.addoption("--suite", default="", help="suites, separated by commas: all their tests, whatever their tier")
    group.addoption("--only", default="", help="tests that match PROGRAM,... or PROGRAM::CASE, such as queues::create_qp*")
    group.addoption("--driver", default="", help="rust or c, in place of a suite's combinations")
    group.addoption("--flavour", default="", help="kernel flavour, in place of a suite's combinations")
    group.addoption("--userland", default="stable", help="stable, or next for Debian testing's rdma-core")
    group.addoption("--length", type=int, default=0, help="rounds, seconds or messages of a suite that has a length")
    group.addoption("--build", action="store_true", help="only build what the chosen tests need")


def ran(command, **options):
    """Runs a program; returns it with its status, and with the output of both streams."""
    options = {"stdin": None if "input" in options else subprocess.DEVNULL, "text": True, "errors": "replace", **options}
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options)


def succeeds(command, **options):
    """Runs a program; returns its output, or fails with it unless the exit status is 0."""
    done = ran(command, **options)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout[-8000:]}"
    return done.stdout


def pytest_configure(config):
    config.addinivalue_line("markers", "xdist_group(name): tests that share guests")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Controller(config), "efa-rs")


def combinations(module, config):
    """Returns the combinations of a suite that are to run."""
    table = getattr(module, "COMBINATIONS", {})
    if config.option.driver or config.option.flavour:
        return [f"{config.option.driver or 'rust'} {config.option.flavour or 'cloud-amd64'}"]
    if config.option.suite or config.option.only:
        # Those of the first tier. Of a test that is asked for, the first one.
        found = next((table[tier] for tier in TIERS if table.get(tier)), [])
        return found[:1] if config.option.only else found
    return [one for tier in TIERS[: TIERS.index(config.option.tier) + 1] for one in table.get(tier, [])]


def pytest_generate_tests(metafunc):
    if "combination" in metafunc.fixturenames:
        option = metafunc.config.option
        own = None if option.driver or option.flavour else metafunc.definition.get_closest_marker("combinations")
        found = own.args[: 1 if option.only else None] if own else combinations(metafunc.module, metafunc.config)
        parameters = [pytest.param(one, marks=pytest.mark.xdist_group(f"{suite_of(metafunc.module)} {one}"), id=one) for one in found]
        metafunc.parametrize("combination", parameters, scope="module")


def suite_of(module):
    return module.__name__.removeprefix("test_")


def pytest_collection_modifyitems(config, items):
    option = config.option
    suites = option.suite.split(",") if option.suite else []
    program, _, _ = option.only.partition("::")
    chosen, rest = [], []
    for item in items:
        name, tier = suite_of(item.module), tier_of(item)
        wanted = name in suites if suites else not tier or TIERS.index(tier) <= TIERS.index(option.tier) or bool(program)
        if program:
            words = re.split(r"[\[\]/-]", item.name)
            words += [item.originalname, item.originalname.removeprefix("test_")]
            wanted = wanted and any(fnmatchcase(word.strip(), one) for word in words for one in program.split(","))
        if hasattr(item, "callspec") and not isinstance(item.callspec.params.get("combination", ""), str):
            # No combination of the suite is to run: pytest would skip it.
            wanted = False
        (chosen if wanted else rest).append(item)
    if program and not suites and chosen:
        # Those of the first tier: queues is no test of patches, and of no other architecture.
        first = min(map(rank, chosen))
        rest += [item for item in chosen if rank(item) != first]
        chosen = [item for item in chosen if rank(item) == first]
    config.hook.pytest_deselected(items=rest)
    items[:] = chosen
    if suites and (missing := set(suites) - {suite_of(item.module) for item in chosen}):
        raise pytest.UsageError(f"There is no suite {', '.join(sorted(missing))} with tests for these options: see ls tests/test_*.py.")


def tier_of(item):
    """Returns the tier of a test, or of its suite; None if it is that of a combination."""
    own = item.get_closest_marker("tier")
    return own.args[0] if own else getattr(item.module, "TIER", None)


def rank(item):
    """Returns the index of the tier of a test or, if that is later, of its suite: the first one with a combination."""
    suite = getattr(item.module, "TIER", None) or next(
        (tier for tier in TIERS if getattr(item.module, "COMBINATIONS", {}).get(tier)), TIERS[0]
    )
    return max(TIERS.index(tier_of(item) or suite), TIERS.index(suite))


def needs(items, config):
    """Returns the targets that tests need."""
    found = {}
    for item in items:
        own = [*getattr(item.module, "NEEDS", []), *(name for marker in item.iter_markers("needs") for name in marker.args)]
        if hasattr(item, "callspec") and (combination := item.callspec.params.get("combination")):
            driver, flavour = combination.split()
            module = [] if driver == "none" else [f"{driver}-{flavour}"]
            found |= dict.fromkeys(
                ["emulator", *module, f"kernel-{flavour}", *(name.format(driver=driver, flavour=flavour) for name in own)]
            )
            found |= dict.fromkeys(["arm64-userland"] if flavour in ARM64 else [])
            if config.option.userland != "stable":
                found["next"] = None
        else:
            found |= dict.fromkeys(own)
    return list(found)


def pytest_collection_finish(session):
    if session.config.option.build:
        targets = needs(session.items, session.config)
        command = ["make", "-s", "-k", f"-j{os.cpu_count()}", "-C", CLONE, "-f", "tools/builds.mk", *targets]
        if targets and subprocess.run(command, check=False).returncode:
            # Tests that need them fail, and the others run.
            FAILED_BUILDS.write_text("\n".join(name for name in targets if not (BUILT / name).exists()))
        os._exit(0)


def pytest_runtest_setup(item):
    failed = FAILED_BUILDS.read_text().split() if FAILED_BUILDS.exists() else []
    if missing := [name for name in needs([item], item.config) if name in failed]:
        pytest.fail(f"not built, see the start of the output: {', '.join(missing)}", pytrace=False)


@pytest.fixture(scope="module")
def options(request, combination):
    """The options of a suite's guests."""
    driver, flavour = combination.split()
    return {"driver": driver, "flavour": flavour, "userland": request.config.option.userland, **getattr(request.module, "GUESTS", {})}


@pytest.fixture(scope="module")
def guests(options):
    """The suite's guests."""
    with Guests(**options) as started:
        yield started


@pytest.fixture
def case(request):
    """The pattern of test cases that were asked for."""
    return request.config.option.only.partition("::")[2]


@pytest.fixture
def ktap(request):
    """Records the lines of a KTAP document as results."""

    def record(done, prefix=""):
        lines = request.node.ktap = [
            *getattr(request.node, "ktap", []),
            *((prefix + name, how, said) for name, how, said in parser.parse(done.stdout)),
        ]
        bad = [name for name, outcome, _ in lines if outcome == "failed"]
        assert not bad, f"{len(bad)} of {len(lines)} failed: {', '.join(bad[:5])}"
        assert done.returncode in (0, 4), f"exit status {done.returncode} in spite of the results:\n{done.stdout[-2000:]}"
        assert lines, "no results"

    return record


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.ktap = getattr(item, "ktap", []) if call.when == "call" else []
    report.gone = bool(call.excinfo and call.excinfo.errisinstance(GuestFailed))
    if report.failed and (guests := getattr(item, "funcargs", {}).get("guests")) and guests.processes:
        report.sections += [(f"guest {guest}", guests.console(guest)) for guest in range(guests.count)]
    return report


def pytest_report_teststatus(report):
    """An item whose lines are results is not counted itself, unless it failed for another reason. A guest that is gone is an error."""
    lines = getattr(report, "ktap", ())
    if lines and (report.passed or any(outcome == "failed" for _, outcome, _ in lines)):
        return "", "", ""
    if report.failed and getattr(report, "gone", False):
        return "error", "E", "ERROR"
    return None


class Controller:
    """Reports lines of KTAP as tests, what runs, and the last line. A worker of xdist may report its own items only."""

    def __init__(self, config):
        self.config, self.lengths, self.running = config, {}, {}
        self.begin = time.monotonic()
        self.reporter: Any = None

    def pytest_sessionstart(self, session):
        self.reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        while True:
            time.sleep(HEARTBEAT)
            now = time.monotonic()
            running = ", ".join(
                f"{nodeid.partition('::')[2] or nodeid} {now - begin:.0f} s" for nodeid, begin in list(self.running.items())
            )
            if running:
                print(f"==> {now - self.begin:.0f} s, {self.counts()}; running: {running}", file=sys.stderr, flush=True)

    def pytest_runtest_logstart(self, nodeid):
        self.running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid):
        self.running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report):
        if report.failed and not getattr(report, "ktap", ()):
            print(f"\n==> failed: {report.nodeid}", file=sys.stderr, flush=True)
        group = report.nodeid.rpartition("@")[2]
        self.lengths[group] = self.lengths.get(group, 0) + report.duration
        for name, outcome, said in getattr(report, "ktap", ()):
            nodeid = f"{report.nodeid.rpartition('@')[0] or report.nodeid}::{name}"
            text = (str(report.fspath), 0, said) if outcome == "skipped" else said if outcome == "failed" else None
            for when, ended in (("setup", ("passed", None)), ("call", (outcome, text)), ("teardown", ("passed", None))):
                words: Any = (nodeid, (str(report.fspath), 0, name), {}, ended[0], ended[1], when)
                options: Any = {"duration": 0}
                sub = pytest.TestReport(*words, **options)
                self.config.hook.pytest_runtest_logreport(report=sub)

    def counts(self):
        stats = self.reporter.stats
        failed = len(stats.get("failed", [])) + len(stats.get("error", []))
        return f"{len(stats.get('passed', []))} passed, {failed} failed, {len(stats.get('skipped', []))} skipped"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        self.config.cache.set("efa-rs/lengths", self.config.cache.get("efa-rs/lengths", {}) | self.lengths)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self):
        if self.reporter and not self.config.option.collectonly:
            print(self.counts(), flush=True)


def pytest_xdist_make_scheduler(config, log):
    """Groups that took longest last time begin first. xdist would begin with those that have the most tests."""
    lengths = config.cache.get("efa-rs/lengths", {})

    class Queue(OrderedDict):
        def popitem(self, last=False):
            group = max(self, key=lambda name: lengths.get(name, 60))
            return group, self.pop(group)

    scheduler = LoadGroupScheduling(config, log)
    scheduler.workqueue = Queue()
    return scheduler
