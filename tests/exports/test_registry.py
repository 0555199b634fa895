from __future__ import annotations

import pkgutil
from importlib import import_module

from meshwright import exports
from meshwright.exports.registry import SOURCES, TARGETS
from meshwright.exports.target import ExportTarget, ImportSource


def written(kind: type) -> list[object]:
    """Every value of a kind that some module of the room defines."""
    modules = [import_module(found.name) for found in pkgutil.walk_packages(exports.__path__, "meshwright.exports.")]
    values = [value for module in modules for value in vars(module).values() if isinstance(value, kind)]
    return list({id(value): value for value in values}.values())


def test_every_written_target_can_be_asked_for() -> None:
    assert {target.name for target in written(ExportTarget) if isinstance(target, ExportTarget)} == {target.name for target in TARGETS}


def test_every_written_reader_is_tried() -> None:
    assert {source.title for source in written(ImportSource) if isinstance(source, ImportSource)} == {source.title for source in SOURCES}


def test_names_are_taken_once() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)
