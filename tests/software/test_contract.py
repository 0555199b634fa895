"""The contract suite over every folder of software, and a made-up one in a package of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.software.contract_suite import (
    check_exports,
    check_logs,
    check_read_back,
    check_stack,
    check_training,
)

from meshwright.search.rules.software import stack_rules
from meshwright.software.folders import Software, all_software
from meshwright.software.registry import TARGETS
from meshwright.values.stack import Stack, figure_source, find_stack, stack_names
from meshwright.values.stack_files import StackEntry, all_entries

ROOT = Path(__file__).resolve().parents[2]
MADE_UP = Path(__file__).parent / "made_up"
SOFTWARE = pytest.mark.parametrize("software", all_software(), ids=lambda one: one.name)


@pytest.mark.parametrize("entry", all_entries(), ids=lambda entry: entry.name)
def test_stack(entry: StackEntry) -> None:
    check_stack(entry)


@SOFTWARE
def test_exports(software: Software) -> None:
    check_exports(software)


@SOFTWARE
def test_files_are_read_back(software: Software) -> None:
    check_read_back(software)


@SOFTWARE
def test_logs(software: Software) -> None:
    check_logs(software)


@SOFTWARE
def test_training(software: Software) -> None:
    check_training(software)


def test_order_of_help() -> None:
    assert [target.name for target in TARGETS[:3]] == ["megatron-lm", "megatron-bridge", "nemo2"]
    assert stack_names()[0] == "megatron"


def test_stacks_of_the_documentation_are_those_of_the_files() -> None:
    """docs/stacks.md names each stack and the one that it builds on."""
    text = (ROOT / "docs" / "stacks.md").read_text(encoding="utf-8")
    table = text.split("| stack | like | what differs |")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (?:`([^`]+)`)? *\|", table, re.MULTILINE))
    assert rows == {entry.name: entry.builds_on or "" for entry in all_entries()}


@pytest.mark.parametrize("entry", all_entries(), ids=lambda entry: entry.name)
def test_what_a_file_leaves_out_is_inherited(entry: StackEntry) -> None:
    stack = find_stack(entry.name)
    basis = find_stack(entry.builds_on) if entry.builds_on else Stack(name="plain")
    free = {"name", "source", "family"} | entry.figures.keys()
    for name in Stack.__dataclass_fields__.keys() - free:
        assert getattr(stack, name) == getattr(basis, name), name
    if entry.rules is None:
        assert stack_rules(stack) is stack_rules(find_stack(entry.builds_on or stack.family))


def test_a_figure_names_the_stack_that_it_comes_from() -> None:
    """Megatron-Bridge's tensor-parallel overlap is Megatron-Core's; its graphs are its own."""
    assert figure_source("megatron-bridge", "tp_overlap").startswith("as megatron: Transformer")
    assert figure_source("megatron-bridge", "launch_hidden").startswith("one graph of the whole")
    assert figure_source("megatron-bridge", "moment_bytes") == ""


ENTRY_POINT = "[meshwright.software]\nloom = {package}\n"
BY_HAND = """
import json
from tests.software.contract_suite import *
from meshwright import plan
from meshwright.software.folders import all_software
from meshwright.values.stack import stack_names
from meshwright.values.stack_files import find_entry

software = all_software()[-1]
check_stack(find_entry("loom"))
for check in (check_exports, check_read_back, check_logs, check_training):
    check(software)
ask = dict(model="llama3-8b", cluster="h100:16", seq_len=8192, gbs=64, top=3)
found = plan(**ask, stack="loom").plans[0]
_, exported = simple_export(software.targets()[0])
print(json.dumps({
    "name": software.name,
    "last": stack_names()[-1],
    "step_s": found.step_s,
    "cp": found.layout.cp,
    "like_s": plan(**ask, stack="megatron-no-overlap", pins={"cp": [1]}).plans[0].step_s,
    "said": next(read_back(exported, software)).layout,
    "log": read_log("[loom] step 7 took 2.5 s, loss 3.25\\n").step_s,
}))
"""


def installed(folder: Path, package: str = "loom_meshwright") -> dict[str, str]:
    """Return the environment of a Python that finds the made-up software as installed."""
    info = folder / "loom-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loom\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINT.format(package=package))
    path = [str(folder), str(MADE_UP), str(ROOT), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_made_up_software_of_another_package(tmp_path: Path) -> None:
    """It plans, exports, reads its export back and reads its log as those of this package do."""
    done = run(BY_HAND, installed(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["name"], found["last"]) == ("loom", "loom")
    assert found["cp"] == 1
    # a loom takes 1 s of host time a step; the stack that it builds on takes 0.02 s
    assert found["step_s"] > found["like_s"] + 0.9
    assert found["said"]["tp"] == found["said"]["pp"] == 2
    assert found["log"] == [2.5]


def test_its_command_line(tmp_path: Path) -> None:
    words = ["export", "llama3-8b", "--cluster", "h100:64", "--seq", "8192", "--gbs", "128"]
    words += ["--layout", "tp=2,pp=2,mbs=1", "--stack", "loom", "--to", "loom"]
    code = f"import sys; sys.argv = ['meshwright', *{[*words, '-o', str(tmp_path / 'out')]!r}]"
    done = run(f"{code}\nfrom meshwright.cli import main\nmain()", installed(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "loom.json").read_text())["layout"]["tp"] == 2


def test_a_package_that_is_gone_is_named(tmp_path: Path) -> None:
    code = "from meshwright.values.stack import find_stack\nfind_stack('loom')"
    done = run(code, installed(tmp_path, package="no_such_package"))
    assert (
        "ConfigError: software loom: its package no_such_package can't be imported" in done.stderr
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[megatron]\nrank = 1\n", "is one of Meshwright's own"),
        ("[loom]\nbuilds_on = 'loom'\n", "stack loom builds on itself: loom > loom"),
        ("[loom]\nbuilds_on = 'megatorn'\n", "did you mean 'megatron'"),
        ("[loom]\n[[loom.figures]]\ntp_overlap = 1\n", "tp_overlap has no source"),
        ("[loom]\n[[loom.figures]]\nsource = 'a page'\ntp_overlp = 1\n", "'tp_overlap'"),
        ("[loom]\n[[loom.figures]]\nsource = 'a page'\np2p = 'often'\n", "'often'"),
        ("[loom]\n[[loom.figures]]\nsource = 'a page'\ntp_overlap = true\n", "expected a number"),
        ("[loom]\n[[loom.figures]]\nsource = 'a page'\nembedded = 1\n", "expected true or false"),
        ("[loom]\n[loom.rules]\naxes = ['tp']\n", "its rules have no source"),
        ("[loom]\n[loom.rules]\nsource = 'a page'\naxes = ['xp']\n", "'xp'"),
        ("loom = 1\n", "stands outside a stack's section"),
        ("[loom\n", "stack.toml"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    package = tmp_path / "broken_loom"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "stack.toml").write_text(text)
    code = (
        "from meshwright.values.stack import find_stack\n"
        "from meshwright.search.rules.software import stack_rules\n"
        "stack_rules(find_stack('loom'))"
    )
    done = run(code, installed(tmp_path, package="broken_loom"))
    last = done.stderr.strip().splitlines()[-1]
    assert message in last and "Error: " in last, done.stderr
