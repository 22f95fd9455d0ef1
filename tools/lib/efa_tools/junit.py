# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Writes results as JUnit's XML, which many programs can display."""

import re
from xml.etree import ElementTree as xml

from .tally import FAILED, SKIPPED

# Characters that XML cannot represent.
UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(file, jobs):
    """Writes FILE: JOBS are names, tallies, and seconds. A test whose name is not known is counted in its suite only."""
    root = xml.Element("testsuites", name="efa-rs")
    for name, tally, seconds in jobs:
        counts = {"tests": tally.total(), "failures": tally.failed, "skipped": tally.skipped, "errors": 0}
        suite = xml.SubElement(
            root, "testsuite", {"name": name, "time": f"{seconds:.1f}", **{key: str(value) for key, value in counts.items()}}
        )
        for case in tally.cases:
            element = xml.SubElement(suite, "testcase", classname=name, name=clean(case.name))
            said = clean(case.said)
            if case.outcome == FAILED:
                xml.SubElement(element, "failure", message=said.split("\n")[0]).text = said
            elif case.outcome == SKIPPED:
                xml.SubElement(element, "skipped", message=said)
    xml.indent(root)
    file.parent.mkdir(parents=True, exist_ok=True)
    xml.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)


def clean(text):
    return UNWRITABLE.sub("?", text)
