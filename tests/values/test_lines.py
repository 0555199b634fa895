"""What may end in a script, a file or a command is one line, in every request: by introspection."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from meshwright.platforms.base_command.executor import BaseCommandOptions
from meshwright.platforms.job import Job, JobOptions, Mount
from meshwright.platforms.kubernetes.executor import KubernetesOptions
from meshwright.platforms.kubernetes.serving import Where
from meshwright.platforms.slurm.executor import SlurmOptions
from meshwright.runs.training.request import TrainRequest
from meshwright.runs.workflows.spec import DataWords, TrainWords, Vocabulary, WorkflowSpec
from meshwright.software.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.values.errors import ConfigError
from meshwright.values.models.spec import ModelSpec

DATA = DataWords(nodes=1, workers=1)
VOCABULARY = Vocabulary(vocab_file="a", merge_file="b")
NEEDED: Mapping[type, Mapping[str, Any]] = {
    TrainingSettings: {},
    ModelDetails: {},
    Dataset: {"path": "a"},
    JobOptions: {},
    Job: {"name": "a", "command": ("a",), "nodes": 1, "gpus_per_node": 1},
    Mount: {"source": "/a", "target": "/a"},
    TrainRequest: {"plan": {}},
    Vocabulary: {"vocab_file": "a", "merge_file": "b"},
    DataWords: {"nodes": 1, "workers": 1},
    TrainWords: {"model": "a", "cluster": "a", "seq": 1, "gbs": 1, "to": "a", "time": "5d"},
    WorkflowSpec: {
        **{"name": "a", "title": "a", "folder": "/a", "corpus": "slimpajama", "shards": 1},
        **{"vocabulary": VOCABULARY, "data": DATA},
    },
    SlurmOptions: {},
    BaseCommandOptions: {},
    KubernetesOptions: {},
    Where: {"path": "a"},
    ModelSpec: {
        **{"name": "a", "num_layers": 2, "hidden": 8, "ffn": 8, "num_heads": 2},
        **{"num_kv_heads": 2, "head_dim": 4, "vocab": 8},
    },
}
"""Every request whose texts end in what is written or sent, and what it cannot do without."""
SEVERAL_LINES = {
    (Job, "command"): "a script of bash, one word of a program",
    (Job, "files"): "whole files",
    (Job, "environment"): "checked by each variable",
    (DataWords, "setup"): "bash that the user writes",
}
"""Texts that may have several lines, and why."""
BREAKS = ("a\nb", "a\rb", "a\r\nb", "a\u2028b", "a\x85b", "\n", "a\n", "a\0b", "a\udc80b")


def _text_fields(kind: type) -> Iterator[tuple[str, type]]:
    """Yield each field that holds texts, with what holds them."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        for part in _parts(hints[field.name]):
            if part is str or (get_origin(part) is tuple and str in get_args(part)):
                yield field.name, tuple if get_origin(part) else str
            elif get_origin(part) is Mapping:
                yield field.name, dict


def _parts(hint: Any) -> Iterator[Any]:
    if get_origin(hint) in (Union, types.UnionType):
        for part in get_args(hint):
            yield from _parts(part)
    elif get_origin(hint) is typing.Annotated:
        yield from _parts(get_args(hint)[0])
    else:
        yield hint


FIELDS = [
    (kind, name, holder)
    for kind in NEEDED
    for name, holder in _text_fields(kind)
    if (kind, name) not in SEVERAL_LINES
]


def test_requests_can_be_made_and_have_texts() -> None:
    for kind, needed in NEEDED.items():
        assert is_dataclass(kind)
        assert kind(**needed) is not None
        bare = {entry.name for entry in fields(kind) if entry.default is MISSING}
        assert set(needed) <= bare
    assert len(FIELDS) > 60


@pytest.mark.parametrize(("kind", "name", "holder"), FIELDS)
def test_no_text_of_a_request_has_several_lines(kind: type, name: str, holder: type) -> None:
    for text in BREAKS:
        value = {"str": text, "tuple": (text,), "dict": {"A": text}}[holder.__name__]
        with pytest.raises(ConfigError):
            kind(**{**NEEDED[kind], name: value})
