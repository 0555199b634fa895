from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest

from meshwright import export, plan, software
from meshwright.software.contract import ExportTarget, ImportSource
from meshwright.software.registry import SOURCES, TARGETS, find_target
from meshwright.values.errors import UnknownNameError


def written(kind: type) -> list[object]:
    """Every value of a kind that some module of the room defines."""
    modules = [
        import_module(found.name)
        for found in pkgutil.walk_packages(software.__path__, "meshwright.software.")
    ]
    values = [
        value for module in modules for value in vars(module).values() if isinstance(value, kind)
    ]
    return list({id(value): value for value in values}.values())


def test_every_written_target_can_be_asked_for() -> None:
    assert {
        target.name for target in written(ExportTarget) if isinstance(target, ExportTarget)
    } == {target.name for target in TARGETS}


def test_every_written_reader_is_tried() -> None:
    assert {
        source.title for source in written(ImportSource) if isinstance(source, ImportSource)
    } == {source.title for source in SOURCES}


def test_names_are_taken_once() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)


@pytest.mark.parametrize(
    ("target", "model", "cluster"),
    [
        ("nanotron", "llama3-8b", "a100-40:32"),
        ("torchtitan", "llama3-8b", "h100:8"),
        ("megatron-bridge", "qwen3-30b-a3b", "h100:16"),
    ],
)
def test_what_is_searched_for_a_software_can_be_written_for_it(
    target: str, model: str, cluster: str
) -> None:
    """`benchmarks/searched_exports.py` has all targets over more models and clusters."""
    stack = find_target(target).stacks[0]
    found = plan(model=model, cluster=cluster, seq_len=8192, gbs=64, stack=stack, top=20).plans
    assert len({each.layout.pp for each in found}) > 1
    for each in found:
        export(
            each.layout.words(), to=target, model=model, cluster=cluster, seq_len=8192, stack=stack
        )


def test_engines_are_named_where_they_are_targets() -> None:
    with pytest.raises(UnknownNameError, match="meshwright serving export --to vllm"):
        find_target("vllm")
