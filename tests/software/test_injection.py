"""No value of a plan becomes anything but that value in what any software is handed.

Each text that a plan holds x each hostile value is read back as its reader does, and executed where
it is a script.
"""

from __future__ import annotations

import ast
import json
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from tests.platforms.hostile import ATTACKS, Bench, attack
from tests.software.contract_suite import LAYOUTS
from tests.software.examples import training_plan
from tests.software.test_serving_targets import choice

from meshwright.platforms.kubernetes.serving import Where, export_serving
from meshwright.software.contract import Exported, export_plan
from meshwright.software.registry import TARGETS, find_target
from meshwright.software.serving import SERVING_TARGETS
from meshwright.software.settings import Dataset, TrainingSettings
from meshwright.values.errors import ConfigError

MARK = "marked"
BASE: Mapping[str, Any] = {"tokenizer": "/models/llama3", "save_dir": "/out"}
FIELDS: Mapping[str, Callable[[str], Mapping[str, Any]]] = {
    **{
        name: lambda value, name=name: {name: value}  # type: ignore[misc]
        for name in ("tokenizer", "save_dir", "load_dir")
    },
    "data": lambda value: {"data": (Dataset(path=value), Dataset(path="/b", weight=2.0))},
    "data-alone": lambda value: {"data": (Dataset(path=value),)},
    "files": lambda value: {
        "tokenizer": None,
        "tokenizer_kind": "gpt2-bpe",
        "vocab_file": value,
        "merge_file": value,
    },
    "extra": lambda value: {"extra": (value,)},
    "extra-behind": lambda value: {"extra": ("--odd", value)},
}
"""Every text of the settings."""
Read = Callable[[str, Bench], Any]


def _run_script(text: str, bench: Bench) -> list[str]:
    code, said = bench.run("bash", "-c", text)
    assert code == 0, said
    return bench.ran()


def _python(text: str, _bench: Bench) -> Any:
    return ast.parse(text)


def _overrides(text: str, _bench: Bench) -> Any:
    parse = OverridesParser.create().parse_override
    found = [parse(line) for line in text.splitlines() if line]
    return [[one.key_or_group, one.value()] for one in found]


READERS: Mapping[str, Read] = {
    ".py": _python,
    ".sh": _run_script,
    ".yaml": lambda text, _: list(yaml.unsafe_load_all(text)),
    ".json": lambda text, _: json.loads(text),
    ".toml": lambda text, _: tomllib.loads(text),
    ".txt": lambda text, _: [shlex.split(line) for line in text.split("\n")],
}
"""How a file is read where it runs; YAML by the reader that makes objects."""


def _leaves(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every part of what was read, with its place."""
    if isinstance(content, ast.AST):
        yield path, type(content).__name__
        for name, value in ast.iter_fields(content):
            yield from _leaves(value, (*path, name))
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(content, list | tuple):
        for at, value in enumerate(content):
            yield from _leaves(value, (*path, at))
    else:
        yield path, content


def _export(target: str, given: Mapping[str, Any]) -> Exported:
    found = find_target(target)
    stack = found.stacks[0] if found.stacks else "megatron"
    refused: ConfigError | None = None
    for layout in LAYOUTS:
        try:
            settings = TrainingSettings(**{**BASE, **given})
            plan = training_plan(layout=layout, stack=stack, settings=settings)
            return export_plan(plan, target=found)
        except ConfigError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _read(exported: Exported, bench: Bench) -> dict[tuple[Any, ...], Any]:
    """Return all that an export says, by its place."""
    parts: dict[str, Any] = {"command": list(exported.command)}
    parts["environment"] = [[one.name, one.value] for one in exported.environment]
    for file in exported.files:
        read = _overrides if file.name == "overrides.txt" else READERS[Path(file.name).suffix]
        parts[file.name] = read(file.text, bench)
    return dict(_leaves(parts))


def _filled(leaf: Any, value: str) -> Any:
    return leaf.replace(MARK, value) if isinstance(leaf, str) else leaf


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench.at(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", [target.name for target in TARGETS])
def test_a_value_stays_that_value(target: str, bench: Bench) -> None:
    """What is read back of a hostile export is that of a plain one with the value in its place."""
    written = 0
    for field, given in FIELDS.items():
        try:
            plain = _read(_export(target, given(MARK)), bench)
        except ConfigError:
            continue  # the target has no place for it
        for name in ATTACKS:
            value = attack(name, bench.canary(field))
            try:
                exported = _export(target, given(value))
            except ConfigError:
                continue
            found = _read(exported, bench)
            assert bench.injected() == [], (field, name)
            assert found == {place: _filled(leaf, value) for place, leaf in plain.items()}, (
                field,
                name,
            )
            written += 1
    assert written >= len(ATTACKS)


ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm"}
PLACES: Mapping[str, Callable[[str, str | None], Where]] = {
    "path": lambda value, image: Where(path=value, image=image),
    "path-behind": lambda value, image: Where(path=f"/models/a{value}", image=image),
    "image": lambda value, _: Where(path="/models/a", image=value),
    "name": lambda value, image: Where(path="/models/a", image=image, name=value),
}


@pytest.mark.parametrize("target", SERVING_TARGETS)
def test_what_serves_gets_its_words(target: str, bench: Bench) -> None:
    """Scripts of engines are run; manifests are read by the reader of YAML that makes objects."""
    image = None if target in (*ENGINES, "ray-serve") else "registry/engine:1"
    chosen = choice(ENGINES.get(target, "vllm"))
    written = 0
    for name in ATTACKS:
        for field, given in PLACES.items():
            value = attack(name, bench.canary(field))
            try:
                files = export_serving(chosen, target=target, where=given(value, image)).files
            except ConfigError:
                continue
            read = [READERS[Path(file.name).suffix](file.text, bench) for file in files]
            assert bench.injected() == [], (field, name)
            wanted = given(value, image).path if field.startswith("path") else value
            leaves = [str(leaf) for _, leaf in _leaves(read)]
            if target in ("k8s", "kserve", "dynamo", "llm-d"):  # whose containers read $$ as $
                leaves += [leaf.replace("$$", "$") for leaf in leaves]
            assert any(wanted in leaf for leaf in leaves), (field, name)
            written += 1
    assert written >= 20


def test_a_path_that_names_the_port_stays_that_path(bench: Bench) -> None:
    where = Where(path="/models/PORT it's PORT")
    script = export_serving(choice("vllm"), target="vllm", where=where).files[0].text
    words = _run_script(script, bench)
    assert where.path in words
    assert words[words.index("--port") + 1] == "8000"
