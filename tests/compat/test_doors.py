"""Every word of the old tools' documents, run; docs/doors.md lists them from the same table.

`doors.csv` has one line per command, option, key, column and step. MESHWRIGHT_ACCEPT=1 writes the
page's list again.
"""

from __future__ import annotations

import csv
import inspect
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright import cli
from meshwright.compat import llmacc
from meshwright.compat.autoconfigurator.words import compose
from meshwright.compat.launcher.data import data_steps
from meshwright.compat.launcher.line import Line, read_line
from meshwright.compat.launcher.training import train_step
from meshwright.nemo import AutoConfigurator
from meshwright.values.errors import ConfigError

ROWS = list(csv.DictReader((Path(__file__).parent / "doors.csv").read_text().splitlines()))
PAGE = Path(__file__).parents[2] / "docs" / "doors.md"
START, END = "<!-- doors -->\n", "<!-- end of doors -->\n"
LAUNCHER = (
    "cluster_type=bcp",
    "stages=[training]",
    "data_dir=/mount/data",
    "base_results_dir=/mount/results",
)


def rows(*ways: str) -> list[Any]:
    found = [row for row in ROWS if row["way"].partition(" ")[0] in ways]
    return [pytest.param(row, id=f"{row['part']}: {row['line'][:50]}") for row in found]


def together(way: str) -> list[str]:
    """The words of all rows of a way, the last of each key."""
    words = [row["line"] for row in ROWS if row["way"] == way]
    return list({word.partition("=")[0]: word for word in words}.values())


def at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


@cache
def composed(way: str) -> Mapping[str, Any]:
    """The configuration of all words of a way at once."""
    if way == "nemo1":
        return compose(together(way))
    group = way.partition(" ")[2]
    choice = [f"data_preparation={group}"] if group else ["training=gpt3/7b_improved"]
    own = together(way)
    said = {word.partition("=")[0] for word in own}
    usual = [word for word in LAUNCHER if word.partition("=")[0] not in said]
    return read_line([*usual, *choice, *own]).config


@pytest.mark.parametrize("row", rows("nemo1", "launcher", "data", "training"))
def test_a_key_is_known_and_has_its_value(row: dict[str, str]) -> None:
    key, _, text = row["line"].partition("=")
    wanted = yaml.safe_load(text)
    found = at(composed(row["way"]), key)
    assert found == wanted or str(found) == text


def test_keys_of_a_training_are_what_nemo_reads() -> None:
    """All but the launcher's own block `run`."""
    line = read_line([*LAUNCHER, "training=gpt3/7b_improved", *together("training")])
    config = train_step(line, prepared=None, chip="a100-80", setup=None).config
    for row in ROWS:
        key, _, text = row["line"].partition("=")
        if row["way"] == "training" and not key.startswith("training.run."):
            found = at(config, key.removeprefix("training."))
            assert found == yaml.safe_load(text) or str(found) == text, key


def texts(line: Line) -> Iterator[str]:
    """The names of a line's jobs."""
    for stage in line.stages:
        if stage == "data_preparation":
            yield from (one.name for one in data_steps(line, setup=None).steps)
        elif stage == "training":
            yield train_step(line, prepared=None, chip="a100-80", setup=None).step.name
        else:
            yield stage


@pytest.mark.parametrize("row", rows("steps"))
def test_a_step_is_a_job(row: dict[str, str]) -> None:
    line = read_line([word for word in LAUNCHER if "stages" not in word] + shlex.split(row["line"]))
    assert any(name.endswith(row["says"]) for name in texts(line))


@pytest.mark.parametrize("row", rows("refused"))
def test_a_stage_that_is_not_ours_is_refused_by_name(row: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=row["says"]):
        read_line([LAUNCHER[0], *LAUNCHER[2:], row["line"]])


@pytest.mark.parametrize("row", rows("nemo2"))
def test_an_argument_of_nemo_2_is_taken(row: dict[str, str], tmp_path: Path) -> None:
    name, _, text = row["line"].partition("=")
    assert name in inspect.signature(AutoConfigurator).parameters
    given: dict[str, Any] = {"seq_length": 2048, "global_batch_size": 64}
    given |= {name: json.loads(text)} if text else {}
    runner = AutoConfigurator("llama3-8b", path_to_logs=tmp_path, **given)
    assert runner.problem.num_chips == 8


@cache
def answered(line: str, folder: str) -> str:
    """What AIAK's door prints."""
    out = Path(folder) / "out.txt"
    words = ["apss", *shlex.split(line, comments=True)]
    with out.open("w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        patch.chdir(folder)
        assert cli.run(words) == 0
    return out.read_text()


@pytest.mark.parametrize("row", rows("apss"))
def test_a_flag_or_key_of_aiak(
    row: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    line = row["line"].partition(" #")[0].strip()
    found = answered(line, str(tmp_path_factory.getbasetemp()))
    assert row["says"] in found
    wanted = re.search(r"--top (\d+)", line)
    assert len(found.splitlines()) == int(wanted[1] if wanted else 5)


@pytest.mark.parametrize("row", rows("llmacc"))
def test_a_line_of_llmacc(row: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert llmacc.run(shlex.split(row["line"])) == 0
    out, err = capsys.readouterr()
    assert row["says"] in out
    repaired = "--dataset-impl" in row["line"] or "--data-parallel-size" in row["line"]
    assert not repaired or "left out" in err


def name_of(row: Mapping[str, str]) -> str:
    """What a row is about."""
    if row["way"] == "apss":
        flag = row["line"].partition("# ")[2]
        own = re.search(r"(--(?:top|mode \w+|no-legacy-limits|gpu-infos a800:\S+).*)$", row["line"])
        return flag or str(own[1] if own else row["says"].strip("'"))
    if row["way"] == "llmacc":
        last = re.findall(r"--[a-z-]+(?: [^-]\S*)?", row["line"])
        return str(last[0] if row["part"] == "task types" else last[-1])
    if row["way"] == "steps":
        return row["says"].strip("-")
    return str(row["line"] if row["way"] == "refused" else row["line"].partition("=")[0])


def listed() -> str:
    """The page's list: names of one part that are alike stand in one line."""
    grouped: dict[tuple[str, str, str, str], list[str]] = {}
    for row in ROWS:
        at_place = (row["document"], row["part"], row["status"], row["why"])
        grouped.setdefault(at_place, []).append(f"`{name_of(row)}`")
    lines, document = [f"{len(ROWS)} words, each run by `tests/compat/test_doors.py`.\n"], ""
    for (of, part, status, why), names in grouped.items():
        if of != document:
            document = of
            lines.append(f"\n### {of}\n\n| part | | words |\n|---|---|---|\n")
        said = f"{status}: {why}" if why else status
        lines.append(f"| {part} | {said} | {', '.join(dict.fromkeys(names))} |\n")
    return "".join(lines)


def test_the_page_lists_every_word() -> None:
    before, _, rest = PAGE.read_text().partition(START)
    text, _, after = rest.partition(END)
    if os.environ.get("MESHWRIGHT_ACCEPT"):
        PAGE.write_text(f"{before}{START}{listed()}{END}{after}")
        return
    assert text == listed(), "MESHWRIGHT_ACCEPT=1 writes the list again"
