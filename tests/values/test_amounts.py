"""No request takes a number that is none, is negative where none can be, or is absurd."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

from meshwright.compat.apss import ApssRequest
from meshwright.runs.training.request import TrainRequest
from meshwright.search.request import PlanRequest
from meshwright.serving.request import ServingRequest
from meshwright.software.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.values.amounts import MOST, check_amounts
from meshwright.values.errors import ConfigError

PLAN = {"model": "llama3-8b", "cluster": "h100:8", "seq_len": 4096, "gbs": 8}
# Those of the embedded trainer's own settings are in tests/trainer/test_job.py.
MAKERS: Mapping[type, Callable[[dict[str, Any]], object]] = {
    PlanRequest: lambda given: PlanRequest.of(PLAN | given),
    ServingRequest: lambda given: ServingRequest.of(
        **{"model": "llama3-8b", "cluster": "h100:8", "input_len": 9, "output_len": 9, **given}
    ),
    TrainRequest: lambda given: TrainRequest(plan=PLAN, **given),
    ApssRequest: lambda given: ApssRequest(**given).plan_request(),
    Dataset: lambda given: Dataset(path="a", **given),
    TrainingSettings: lambda given: TrainingSettings(**given),
    ModelDetails: lambda given: ModelDetails(**given),
}
NONE = (math.nan, math.inf, -math.inf, -1e300, 1e300, -7)


def numbers(kind: type) -> Iterator[str]:
    """Fields that hold one number."""
    for name, hint in get_type_hints(kind).items():
        if not name.startswith("_") and {int, float} & {hint, *get_args(hint)}:
            yield name


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_no_field_takes_what_is_no_amount(kind: type) -> None:
    assert is_dataclass(kind) or kind is PlanRequest
    MAKERS[kind]({})
    names = list(numbers(kind))
    assert names
    taken = []
    for name in names:
        for value in NONE:
            try:
                MAKERS[kind]({name: value})
            except ConfigError as error:
                assert str(value) in str(error)
            else:
                taken.append((name, value))
    assert taken == []


def test_the_rule_by_hand() -> None:
    class Own:
        share, count, flag, word = 0.5, 0, True, "7"
        most, none = MOST, None

    check_amounts(Own(), ["share", "none"])
    check_amounts(Own(), ["count"], least=0)
    for name, said in (
        ("count", "count=0: expected a positive number$"),
        ("flag", "flag=True"),
        ("word", "word=7: expected a positive number$"),
        ("most", "to below 9.22337e\\+18"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_amounts(Own(), [name])
    with pytest.raises(ConfigError, match=r"share=0\.5: expected a number from 0 to below 0\.5"):
        check_amounts(Own(), ["share"], least=0, below=0.5)
