from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest

from meshwright.cost.headroom import MOST_HEADROOM, headroom_bytes
from meshwright.trust import intervals as confidence
from meshwright.trust import untold
from meshwright.trust.intervals import (
    LEVELS,
    LONG_TOKENS,
    QUANTITIES,
    Assumption,
    Kind,
    Spread,
    find_spread,
    fits_within,
    interval,
    intervals_of,
    kind_of,
    spread_of,
    widened,
)
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import find_stack, lowest_basis
from meshwright.values.workload import Workload

KIND = Kind(
    stack="megatron",
    family="megatron",
    model="dense",
    generation="hopper",
    vendor="NVIDIA",
    basis="megatron",
)
WORK = Workload(seq_len=4096, gbs=64, precision="bf16")
UNKNOWN = Kind(stack="nobody's", family="nobody's", model="moe", generation="none", vendor="nobody")
OWN = Spread(
    quantity="step_time",
    level="generation",
    kind="megatron, dense, hopper",
    p10=0.93,
    p25=0.97,
    p50=1.0,
    p75=1.05,
    p90=1.12,
    low=0.9,
    high=1.15,
    runs=51,
    models=16,
    tables=4,
)
OF_ALL = replace(OWN, level="all", kind="any run", low=0.5, high=2.0)


def test_names_of_a_kind_from_fine_to_coarse() -> None:
    assert [KIND.at(level) for level in LEVELS] == [
        *(
            "megatron, dense, hopper",
            "megatron, dense, nvidia",
            "megatron, dense, any chip",
            "built on megatron, dense",
            "megatron, dense",
            "dense",
            "dense, any work",
            "any run",
        ),
    ]


def test_kind_of_a_run() -> None:
    found = kind_of(
        model=find_model("mixtral-8x7b"),
        chip=find_chip("mi300x"),
        stack=find_stack("torchtitan"),
        work=WORK,
    )
    assert found == Kind(
        stack="torchtitan",
        family="fsdp",
        model="moe",
        generation="cdna3",
        vendor="AMD",
        basis="fsdp",
    )


def test_software_without_runs_of_its_own_is_known_by_what_it_builds_on() -> None:
    built = replace(KIND, stack="someone's", generation="none", vendor="nobody")
    alike = replace(OWN, level="basis", kind="built on megatron, dense")
    spreads: dict[tuple[Any, str], Spread] = {
        ("step_time", each.kind): each for each in (OWN, alike, OF_ALL)
    }
    assert find_spread(spreads, built, "step_time") is alike
    assert "of software built on megatron, dense" in alike.words(built)
    assert find_spread(spreads, replace(built, basis=""), "step_time") is OF_ALL
    assert lowest_basis("megatron-bridge") == "megatron" == lowest_basis("megatron")
    assert lowest_basis("nobody's") == ""


def test_small_models_are_a_kind_of_their_own_in_time_alone() -> None:
    kind = kind_of(
        model=find_model("gpt3-0.126b"),
        chip=find_chip("h100"),
        stack=find_stack("megatron"),
        work=WORK,
    )
    assert kind == replace(KIND, model="small dense")
    assert kind.of("step_time").at("generation") == "megatron, small dense, hopper"
    assert kind.of("peak_memory") == KIND
    own = {
        (spread.quantity, spread.kind): spread
        for spread in (OWN, replace(OWN, quantity="peak_memory"), OF_ALL)
    }
    assert find_spread(own, kind, "step_time") is OF_ALL
    assert find_spread(own, kind, "peak_memory").quantity == "peak_memory"


def test_finest_known_kind_is_taken() -> None:
    spreads = {(spread.quantity, spread.kind): spread for spread in (OWN, OF_ALL)}
    assert find_spread(spreads, KIND, "step_time") is OWN
    assert find_spread(spreads, replace(KIND, generation="ada"), "step_time") is OF_ALL


def test_words_name_the_kind_and_say_when_it_is_another() -> None:
    assert (
        OWN.words(KIND)
        == "published runs of this kind took x1.00 of the prediction in the median (megatron,"
        " dense, hopper: 51 runs, 4 tables); allow x0.90 to x1.15"
    )
    assert (
        replace(OF_ALL, runs=1, tables=1).words(UNKNOWN)
        == "too few published runs of nobody's, moe, none: lower confidence; published runs of any"
        " kind took x1.00 of the prediction in the median (1 run, 1 table); allow x0.50 to x2.00"
    )


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("kind", [KIND, UNKNOWN], ids=["known", "unknown"])
def test_every_run_has_an_interval(kind: Kind, quantity: confidence.Quantity) -> None:
    low, high = interval(kind, quantity, 10.0)
    assert 0 < low < high
    spread = spread_of(kind, quantity)
    assert spread.is_own is (kind is KIND)
    assert spread.p10 <= spread.p25 <= spread.p50 <= spread.p75 <= spread.p90
    assert low * high == pytest.approx(100.0, rel=1e-3), "as far up as down"


def test_adapters_and_long_sequences_are_kinds_of_their_own() -> None:
    parts: dict[str, Any] = {
        "model": find_model("llama3-8b"),
        "chip": find_chip("h100"),
        "stack": find_stack("megatron"),
    }
    lora = kind_of(**parts, work=replace(WORK, lora_rank=16))
    long = kind_of(**parts, work=replace(WORK, seq_len=2 * LONG_TOKENS))
    assert [lora.at("work"), long.at("work")] == ["dense lora", "dense long"]
    assert lora.at("model") == long.at("model") == KIND.at("model")
    assert kind_of(**parts, work=replace(WORK, seq_len=LONG_TOKENS)) == KIND


def test_what_was_assumed_adds_in_squares() -> None:
    """Worked: half widths of ln 1.1 and of the table's two, by Pythagoras; the middle stays."""
    doubts = untold._doubts()
    extra = [doubts["step_time", name].half_width for name in ("micro batch", "recompute")]
    low, high = widened((100 / 1.1, 110.0), "step_time", ("micro batch", "recompute"))
    half = math.sqrt(math.log(1.1) ** 2 + sum(one**2 for one in extra))
    assert (low, high) == pytest.approx((100 * math.exp(-half), 100 * math.exp(half)))
    assert widened((90.0, 110.0), "step_time", ()) == pytest.approx((90.0, 110.0))


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_every_assumption_has_a_width(quantity: confidence.Quantity) -> None:
    plain = interval(KIND, quantity, 1.0)
    for assumption in get_args(Assumption):
        low, high = interval(KIND, quantity, 1.0, (assumption,))
        assert low <= plain[0] and plain[1] <= high
    assert (
        interval(KIND, "step_time", 1.0, ("micro batch",))[1] > interval(KIND, "step_time", 1.0)[1]
    )


def test_words_say_one_interval_and_what_was_not_told() -> None:
    found = intervals_of(KIND, step_s=1.0, peak_bytes=1.0, assumptions=("micro batch",))
    low, high = found.step_s
    assert found.error.endswith(f"allow x{low:.2f} to x{high:.2f}, not told: micro batch")
    assert found.error.count(" to x") == 1


def test_intervals_in_the_units_of_the_contract() -> None:
    found = intervals_of(KIND, step_s=2.0, peak_bytes=40.0 * 2**30).to_dict()
    assert found["step_s"] == list(interval(KIND, "step_time", 2.0))
    assert found["peak_memory_gib"] == pytest.approx(list(interval(KIND, "peak_memory", 40.0)))


def test_headroom_is_what_the_upper_end_needs() -> None:
    """Worked: of 80 GiB, runs that take up to 1.15 of the prediction need 80 / 1.15 = 69.57
    predicted, 10.43 free; never beyond a fifth."""
    assert math.isclose(headroom_bytes(80.0, high=OWN.high), 80.0 - 80.0 / 1.15)
    assert headroom_bytes(80.0, high=OF_ALL.high) == 80.0 * MOST_HEADROOM
    assert headroom_bytes(80.0, high=0.9) == 0.0


def test_slack_alone_is_a_risk() -> None:
    """85 of 80: with 5 that the allocator gives back there is room, with 4.9 there is not; what
    leaves the headroom free with its slack fits."""
    verdicts = [
        fits_within(peak, limit_bytes=80.0, headroom_bytes=10.0, slack_bytes=slack)
        for peak, slack in ((85.0, 5.0), (85.0, 4.9), (70.0, 5.0), (75.0, 5.0))
    ]
    assert verdicts == ["at risk", "no", "yes", "at risk"]


def test_verdicts() -> None:
    verdicts = [
        fits_within(peak, limit_bytes=80.0, headroom_bytes=10.0)
        for peak in (70.0, 70.1, 80.0, 80.1)
    ]
    assert verdicts == ["yes", "at risk", "at risk", "no"]
