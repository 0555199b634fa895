from __future__ import annotations

import math

import pytest
from tests.search.examples import layout, problem
from tests.values.hardware.profiles import ON_CPU, ON_H100

from meshwright.search.origins import origins_of
from meshwright.search.problem import Files, Problem, resolve
from meshwright.search.quote import quotes
from meshwright.search.request import PlanRequest

MODEL = "layers=4,hidden=1024,heads=8,vocab=32000"


def on_cpu() -> Problem:
    fields = {
        "model": MODEL,
        "cluster": "local",
        "seq_len": 1024,
        "gbs": 8,
        "precision": "fp32",
        "profile": "here.npz",
        "stack": "fsdp",
    }
    return resolve(PlanRequest.of(fields), files=Files(profile=ON_CPU))


def on_h100(cluster: str = "h100:16") -> Problem:
    fields = {
        "model": "llama3-8b",
        "cluster": cluster,
        "seq_len": 8192,
        "gbs": 64,
        "profile": "here.npz",
    }
    return resolve(PlanRequest.of(fields), files=Files(profile=ON_H100))


def test_all_but_the_softwares_own_time_is_measured_on_one_processor() -> None:
    asked = on_cpu()
    mine = layout("mbs=1", asked)
    [found] = origins_of([mine], asked.setting)
    [quote] = quotes([mine], asked.setting)
    assert math.isclose(found.formula_frac, quote.time_s["overhead"] / quote.step_s, rel_tol=0.02)
    assert found.tables_frac == found.kin_frac == 0.0


def test_what_the_profile_lacks_stands_on_shipped_tables() -> None:
    fields = {
        "model": "llama3-8b",
        "cluster": "h100:16",
        "seq_len": 8192,
        "gbs": 64,
        "profile": "here.npz",
        "precision": "fp8",
    }
    asked = resolve(PlanRequest.of(fields), files=Files(profile=ON_H100))
    [found] = origins_of([layout("tp=2", asked)], asked.setting)
    assert found.tables_frac > 0.1 and found.profile_frac > 0.1


@pytest.mark.parametrize(
    ("cluster", "origin"),
    [("h100:16", "tables_frac"), ("h100-pcie:16", "kin_frac"), ("mi300x:16", "formula_frac")],
)
def test_without_a_profile_the_chip_says_what_it_stands_on(cluster: str, origin: str) -> None:
    asked = problem("llama3-8b", cluster, gbs=64)
    found = origins_of([layout("tp=2", asked), layout("pp=2", asked)], asked.setting)
    for one in found:
        assert getattr(one, origin) > 0.6
        assert one.profile_frac == one.beyond_frac == 0.0
        assert math.isclose(
            one.profile_frac + one.tables_frac + one.kin_frac + one.formula_frac, 1.0
        )


def test_shares_of_all_origins_sum_to_one() -> None:
    for asked in (on_h100(), on_cpu()):
        for found in origins_of([layout("mbs=1", asked)], asked.setting):
            shares = found.to_dict()
            assert math.isclose(
                sum(shares[name] for name in ("profile", "tables", "kin", "formula")),
                1.0,
                rel_tol=1e-3,
            )
            assert 0.0 <= found.beyond_frac <= found.profile_frac <= 1.0


def test_no_layout_has_no_shares() -> None:
    assert origins_of([], on_h100().setting) == []
