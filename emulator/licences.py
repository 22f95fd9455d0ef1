#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Prints the licences of the crates that are linked into efa-emu. Most of them require that its packages include them.

usage: licences.py                  as text
       licences.py --bill VERSION   the crates of a version of efa-emu as a bill of materials: JSON of CycloneDX
"""

import json
import re
import subprocess
import sys
from pathlib import Path

MANIFEST = Path(__file__).resolve().parent / "Cargo.toml"
TEXTS = re.compile(r"(licen[cs]e|copying|notice|copyright|unlicense)", re.IGNORECASE)


def metadata():
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", str(MANIFEST)]
    host = re.search(r"^host: (.*)$", subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout, re.MULTILINE)
    command += ["--filter-platform", host[1]]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def linked(data):
    """Returns the external crates that efa-emu links, directly or not: no dependencies of tests and builds, no procedural macros."""
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    packages = {package["id"]: package for package in data["packages"]}
    todo = [id for id, package in packages.items() if package["name"] == "efa-emu"]
    found = set()
    while todo:
        node = nodes[todo.pop()]
        if node["id"] in found or any("proc-macro" in target["kind"] for target in packages[node["id"]]["targets"]):
            continue
        found.add(node["id"])
        todo += [other["pkg"] for other in node["deps"] if any(kind["kind"] is None for kind in other["dep_kinds"])]
    return [packages[id] for id in found if packages[id]["source"]]


def texts(package):
    """Returns the texts of the licence files in the folder of a crate."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(file for file in folder.iterdir() if file.is_file() and TEXTS.match(file.name))
    return [file.read_text(errors="replace").strip() for file in files]


def bill(packages, version):
    def component(kind, name, version, licence):
        # Old crates have a slash in the place of OR.
        expression = licence.replace("/", " OR ")
        purl = f"pkg:cargo/{name}@{version}"
        return {"type": kind, "name": name, "version": version, "licenses": [{"expression": expression}], "purl": purl, "bom-ref": purl}

    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "metadata": {"component": component("application", "efa-emu", version, "BSD-2-Clause")},
        "components": [component("library", *(package[key] for key in ("name", "version", "license"))) for package in packages],
    }


def main():
    packages = sorted(linked(metadata()), key=lambda package: (package["name"], package["version"]))
    if sys.argv[1:2] == ["--bill"]:
        print(json.dumps(bill(packages, *sys.argv[2:]), indent=1))
        return
    numbers = {}
    for package in packages:
        found = [numbers.setdefault(text, len(numbers) + 1) for text in texts(package)]
        where = f"texts {', '.join(map(str, found))}" if found else "no text comes with it"
        print(f"{package['name']} {package['version']}: {package['license']}; {where}")
    for text, number in numbers.items():
        print(f"\n{'=' * 30} text {number} {'=' * 30}\n\n{text}")


if __name__ == "__main__":
    main()
