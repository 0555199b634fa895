from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.cost.step import Priced, price
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import Factors, find_stack
from meshwright.values.workload import Workload

LAYOUTS = [
    Layout(
        tp=2, sp=True, cp=2, ep=4, pp=2, dp=8, sharding="zero1", mbs=1, gbs=64, recompute="full"
    ),
    Layout(
        tp=1,
        cp=1,
        ep=8,
        pp=2,
        dp=32,
        sharding="zero3",
        mbs=1,
        gbs=64,
        recompute="selective",
        recompute_modules=("core_attn",),
    ),
]
OWN_TERMS = {
    "compute": ("matmul", "attention", "pointwise", "recompute", "head", "optimizer"),
    "tensor": ("tp_comm",),
    "context": ("cp_comm",),
    "expert": ("ep_comm",),
    "pipeline": ("pp_comm",),
}
BYTES = {
    "activations": ("activations", "recompute_workspace", "logits", "slack"),
    "states": ("weights", "gradients", "optimizer"),
}


def priced(factors: Factors, **changes: float) -> Priced:
    pool = parse_cluster("h100:64").pools[0]
    stack = replace(find_stack("megatron-no-overlap"), factors=factors, **changes)  # type: ignore[arg-type]
    work = Workload(seq_len=4096)
    return price(
        Layouts.of(LAYOUTS), model=find_model("mixtral-8x7b"), pool=pool, work=work, stack=stack
    )


@pytest.mark.parametrize("name", OWN_TERMS)
def test_a_factor_scales_its_own_terms_and_no_others(name: str) -> None:
    """Without launches: a host that is slower than the chip would hide the chip's factors."""
    plain, scaled = (
        priced(factors, launch_hidden=1.0) for factors in (Factors(), Factors(**{name: 1.25}))
    )
    others = {term for owner, terms in OWN_TERMS.items() if owner != name for term in terms} - {
        "recompute",
        "head",
    }
    for term in others:
        assert np.allclose(scaled.time[term], plain.time[term], rtol=1e-12), term
    for term in set(OWN_TERMS[name]) - {"recompute", "head"}:
        assert np.allclose(scaled.time[term], 1.25 * plain.time[term], rtol=1e-12), term
    assert (scaled.step_s > plain.step_s).any()


def test_data_exchange_scales_before_it_is_hidden() -> None:
    plain, scaled = priced(Factors()), priced(Factors(data=2.0))
    assert np.allclose(scaled.time["dp_comm"], 2.0 * plain.time["dp_comm"])
    hidden, half_hidden = (
        priced(Factors(), fsdp_overlap=0.2),
        priced(Factors(data=2.0), fsdp_overlap=0.2),
    )
    assert half_hidden.time["fsdp_comm"][1] > 2.0 * hidden.time["fsdp_comm"][1] > 0


@pytest.mark.parametrize("name", BYTES)
def test_memory_factors_scale_their_bytes(name: str) -> None:
    plain, scaled = priced(Factors()).memory.terms, priced(Factors(**{name: 1.25})).memory.terms
    for owner, terms in BYTES.items():
        for term in terms:
            assert np.allclose(
                scaled[term], (1.25 if owner == name else 1.0) * plain[term], rtol=1e-12
            ), term


def test_compute_and_links_together_scale_a_step_without_host_work() -> None:
    every = Factors(compute=1.5, tensor=1.5, context=1.5, expert=1.5, data=1.5, pipeline=1.5)
    plain, scaled = (
        priced(factors, launch_hidden=1.0, step_overhead_s=0.0).step_s
        for factors in (Factors(), every)
    )
    assert np.allclose(scaled, 1.5 * plain, rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, -1.0, 100.0, float("nan")])
def test_a_factor_out_of_reason_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="factor tensor"):
        Factors(tensor=value)
