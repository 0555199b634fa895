#!/usr/bin/env python3
"""Write what the configurations of NVIDIA's NeMo launcher say, from a clone of its repository.

    scripts/distil_launcher.py PATH_OF_A_CLONE

The table `compat/launcher/conf.csv` has one line per file and key. `FOLDER/*` holds what most of
the files below say; a folder in it, and a file, say what they have otherwise, and `~` a key that
they have not; a file that is as its folder has one empty line. Comments and order are not kept.
Taken are the configurations that Meshwright does: root, data preparation, and the training of
language models.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from meshwright.values.text import read_yaml  # noqa: E402

TABLE = ROOT / "src" / "meshwright" / "compat" / "launcher" / "conf.csv"
CONF = "launcher_scripts/conf"
FAMILIES = (
    *("baichuan2", "bert", "chatglm", "falcon", "gpt3", "grok", "llama", "mistral", "mixtral"),
    *("mt5", "nemotron", "qwen2", "starcoder2", "t5"),
)
DATA = ("gpt/download_slim_pajama", "generic/custom_dataset")
ABSENT = "~"
_FLOAT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
"""What OmegaConf reads as a number, and YAML 1.1 as a text."""


def main() -> int:
    """Read the repository, write the table."""
    repository = Path(sys.argv[1])
    found = {name: dict(leaves(read_yaml(text, what=name))) for name, text in files(repository)}
    found["config"] = {key: value for key, value in found["config"].items() if kept(key)}
    rows = list(lines(found))
    TABLE.parent.mkdir(exist_ok=True)
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("file", "key", "value"))
        writer.writerows(rows)
    return 0


def files(repository: Path) -> Iterator[tuple[str, str]]:
    """Every configuration that is taken, by its name in the tree."""
    listed = git(repository, "ls-tree", "-r", "--name-only", "HEAD", CONF).splitlines()
    for path in listed:
        name = path.removeprefix(f"{CONF}/").removesuffix(".yaml")
        group, _, rest = name.partition("/")
        family = rest.partition("/")[0]
        pile = group == "data_preparation" and rest.endswith("_pile")
        training = group == "training" and family in FAMILIES
        if name == "config" or training or pile or rest in DATA:
            yield name, git(repository, "show", f"HEAD:{path}")


def git(repository: Path, *words: str) -> str:
    """What git says."""
    done = subprocess.run(
        ["git", "-C", str(repository), *words], check=True, capture_output=True, text=True
    )
    return done.stdout


def kept(key: str) -> bool:
    """Whether a key of the root is one of a configuration, not of Hydra or of another stage."""
    return key not in ("defaults", "hydra") and not key.endswith("_config")


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no mapping, with its dotted path."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif prefix + key != "hydra.searchpath":
            is_number = isinstance(value, str) and _FLOAT.fullmatch(value)
            yield prefix + key, float(value) if is_number else value


def lines(found: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """What most files below a folder say, the outer folder first, then what each says otherwise."""
    texts = {
        name: {key: json.dumps(value) for key, value in values.items()}
        for name, values in found.items()
    }
    known: dict[str, dict[str, str]] = {"": {}}
    inside: dict[str, list[str]] = defaultdict(list)
    for name in texts:
        for depth in range(1, name.count("/") + 1):
            inside["/".join(name.split("/")[:depth])].append(name)
    for folder, names in inside.items():
        outer = known[folder.rpartition("/")[0]]
        known[folder] = usual([texts[name] for name in names]) if len(names) > 1 else outer
        yield from differences(f"{folder}/*", known[folder], outer)
    for name, values in texts.items():
        yield from differences(name, values, known[name.rpartition("/")[0]])


def usual(files: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The commonest value of every key that most files have."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for values in files:
        for key, text in values.items():
            counted[key][text] += 1
    return {
        key: said.most_common(1)[0][0]
        for key, said in counted.items()
        if said.total() * 2 > len(files)
    }


def differences(
    name: str, values: Mapping[str, str], outer: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Lines of what is said otherwise than outside."""
    rows = [(name, key, text) for key, text in values.items() if outer.get(key) != text]
    rows += [(name, key, ABSENT) for key in outer if key not in values]
    yield from rows or [(name, "", ABSENT)]


if __name__ == "__main__":
    raise SystemExit(main())
