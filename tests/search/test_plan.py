from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml

import meshwright
from meshwright.cli.plan_files import read_request, request_to_yaml
from meshwright.search.problem import dims_of, model_of, resolve
from meshwright.search.request import PlanRequest, parse_pins
from meshwright.search.result import PlanResult
from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import presets

PLAN_KEYS = [
    *(
        "rank",
        "layout",
        "step_s",
        "tokens_per_s_per_gpu",
        "mfu",
        "tflops_per_gpu",
        "fits",
        "interval",
    ),
    *("peak_memory_gib", "time", "memory", "provenance"),
]


def plan(**fields: Any) -> PlanResult:
    return meshwright.plan(
        **{"model": "llama3-8b", "cluster": "h100:16", "seq_len": 8192, "gbs": 64, **fields}
    )


def test_json_contract() -> None:
    found = json.loads(json.dumps(plan(top=3).to_dict(), allow_nan=False))
    assert list(found) == ["request", "plans", "rejected", "search"]
    always = ["layouts", "seconds", "exhaustive", "bound_gap"]
    assert list(found["search"])[:4] == always
    proved = {"bound_step_s", "simulated", "exhaustive_over"}
    assert proved <= set(found["search"])
    assert set(found["search"]) - set(always) <= proved | {"tie", "nearest_published_run"}
    assert [entry["rank"] for entry in found["plans"]] == [1, 2, 3]
    for entry in found["plans"]:
        assert list(entry) == PLAN_KEYS
        assert entry["fits"] in ("yes", "at risk")
        assert list(entry["interval"]) == ["step_s", "peak_memory_gib"]
        for name, figure in (
            ("step_s", entry["step_s"]),
            ("peak_memory_gib", max(entry["peak_memory_gib"])),
        ):
            low, high = entry["interval"][name]
            assert 0 < low < high and low < 1.5 * figure and high > figure / 1.5
        assert len(entry["peak_memory_gib"]) == entry["layout"]["pp"]
        assert math.isclose(sum(entry["time"].values()), entry["step_s"], rel_tol=1e-9)
        assert math.isclose(
            sum(entry["memory"].values()), max(entry["peak_memory_gib"]), rel_tol=1e-9
        )
        assert all(seconds >= 0 for seconds in entry["time"].values())


def test_a_version_of_megatron_says_where_it_changes_nothing() -> None:
    def said(stack: str, version: str = "0.17") -> list[str]:
        return [
            note
            for note in plan(stack=stack, megatron_version=version, pins={"tp": [1]}).notes
            if note.startswith("megatron_version")
        ]

    assert said("megatron") == []
    assert said("fsdp") == [
        "megatron_version=0.17 changes nothing: the rules of stack fsdp have no versions"
    ]
    with pytest.raises(ConfigError, match=r"megatron_version=core_v0\.21.*read up to 0\.20"):
        said("megatron", "core_v0.21.0rc1")


def test_figures_agree_with_each_other() -> None:
    """Worked: tokens/s per GPU is gbs * seq / step / chips; MFU is FLOP/s over the H100's 989.4
    TFLOPS."""
    best = plan().plans[0]
    assert math.isclose(best.tokens_per_s_per_gpu, 64 * 8192 / best.step_s / 16)
    assert math.isclose(best.mfu, best.flops_per_s_per_gpu / 989.4e12, rel_tol=1e-3)
    assert 0 < best.causal_mfu < best.mfu < 1


def test_ranks_are_in_order_and_distinct() -> None:
    plans = plan(top=20).plans
    steps = [entry.step_s for entry in plans if entry.fits == "yes"]
    assert steps == sorted(steps)
    assert len({entry.layout for entry in plans}) == len(plans)
    assert all(entry.beats_next for entry in plans[:-1])


def test_memory_objective_finds_the_smallest() -> None:
    assert plan(objective="memory").plans[0].peak_bytes <= min(
        entry.peak_bytes for entry in plan(top=20).plans
    )


def test_pinned_layout_is_the_only_one() -> None:
    pins = {
        "tp": [2],
        "cp": [1],
        "pp": [2],
        "vpp": [1],
        "mbs": [1],
        "recompute": ["full"],
        "recompute_method": ["uniform"],
    }
    result = plan(pins={**pins, "layers_per_stage": ["16+16"]})
    words = "tp=2,sp=1,pp=2,dp=4,sharding=zero1,mbs=1,gbs=64,recompute=full,layers_per_stage=16x2"
    assert result.layouts == 1
    assert [entry.layout.words() for entry in result.plans] == [words]


def test_memory_limit_is_held() -> None:
    for entry in plan(max_memory_gib=40.0, headroom=2.0).plans:
        assert entry.peak_bytes <= (40.0 if entry.fits == "at risk" else 38.0) * 2**30


@pytest.mark.parametrize(
    ("cluster", "words"), [("h100:64", "tp to 16 (2 fast domains),"), ("h100:4", "tp to 4,")]
)
def test_a_bound_is_told_where_it_bounds(cluster: str, words: str) -> None:
    """Two domains of 8 are less than 64 chips; 4 chips are all that there are."""
    assert any(words in note for note in plan(cluster=cluster).notes)


def test_batch_is_searched_by_the_rule() -> None:
    result = plan(gbs=None)
    assert any("2.1M tokens" in note for note in result.notes)
    assert all(entry.layout.gbs <= 256 for entry in result.plans)
    assert all(entry.layout.gbs <= 33 for entry in plan(gbs=None, max_gbs=33).plans)


def test_tokens_per_dollar() -> None:
    result = plan(objective="tokens_per_dollar", usd_per_hour=2.0)
    best = result.plans[0]
    assert best.tokens_per_dollar is not None
    assert math.isclose(best.tokens_per_dollar, best.tokens_per_s_per_gpu * 3600 / 2.0)


def test_nothing_fits_names_the_miss_and_a_way_out() -> None:
    result = plan(model="llama3-70b", cluster="h100:8")
    assert result.plans == ()
    assert result.rejected["memory: more than a chip has"] == result.layouts
    miss = result.nearest_miss
    assert miss is not None
    assert math.isclose(
        sum(miss.memory_bytes.values()) - miss.over_bytes,
        resolve(result.request).setting.limit_bytes,
    )
    remedy = miss.remedies[0]
    assert remedy.change == f"more chips: --cluster h100:{remedy.num_chips}"
    assert plan(model="llama3-70b", cluster=f"h100:{remedy.num_chips}").plans


def test_cards_at_home_are_told_of_adapters_when_no_training_from_the_start_fits() -> None:
    """Two cards of 24 GB hold no Adam of eight billion parameters (16 bytes each), and adapters
    beside frozen weights (2 bytes each) they do."""
    home = {"model": "llama3-8b", "cluster": "rtx4090:2", "seq_len": 2048, "gbs": 16}
    miss = plan(**home).nearest_miss
    assert miss is not None
    tuned = [remedy for remedy in miss.remedies if "--finetune" in remedy.change]
    assert [r.change.partition(": ")[2] for r in tuned] == ["--finetune lora --stack trl"]
    done = plan(**home, finetune="lora", stack="trl").plans[0]
    assert (done.layout, done.step_s) == (tuned[0].layout, tuned[0].step_s)
    pinned = plan(**home, pins={"tp": [2]}).nearest_miss  # TRL has no tensor parallelism
    assert pinned is not None
    assert not [remedy for remedy in pinned.remedies if "--finetune" in remedy.change]


def test_pins_that_keep_it_from_fitting_are_named() -> None:
    result = plan(pins={"tp": [1], "pp": [1], "recompute": ["none"], "sharding": ["none"]})
    assert result.nearest_miss is not None
    assert result.nearest_miss.remedies[0].change.startswith("leave the pins out")


REFUSED: dict[str, dict[str, Any]] = {
    "'llama3-71b' is no known model; did you mean": {"model": "llama3-71b"},
    "'h1000' is no known chip; did you mean 'h100'": {"cluster": "h1000:8"},
    "'seq_lan' is no known request key; did you mean 'seq_len'?": {"seq_lan": 1},
    "pins: 'tpp' is no known layout key; did you mean 'tp'": {"pins": {"tpp": [1]}},
    "gbs=7: no data-parallel size of 37 chips divides it; nearest that work: gbs=37 on 37 chips, or take 36 or 38 chips": {  # noqa: E501
        "cluster": "h100:37",
        "gbs": 7,
    },
    "no layout keeps the rules under tp=3: tp=3 * cp=1 * pp=1 = 3 does not divide 16 chips": {
        "pins": {"tp": [3]}
    },
    "no layout keeps the rules under cp=3: seq_len=8192 is not divisible by 2 * cp = 6": {
        "pins": {"cp": [3]},
        "cluster": "h100:12",
    },
    "no layout keeps the rules under mbs=3: gbs=64 is not divisible by mbs * dp": {
        "pins": {"mbs": [3]}
    },
    "seq_len=-1: expected a whole number of 1 or more": {"seq_len": -1},
    "gbs=0: expected a whole number of 1 or more": {"gbs": 0},
    "gbs=64 and max_gbs=128: give one of them": {"max_gbs": 128},
    "headroom=-1.0: expected 0 or more": {"headroom": -1.0},
    "max_memory_gib=500.0: a process on h100 sees 79.1 GiB": {"max_memory_gib": 500.0},
    "a100-80 has no fp8 matrix unit": {"cluster": "a100-80:8", "precision": "fp8"},
    "'megatrn' is no known stack; did you mean 'megatron'": {"stack": "megatrn"},
    "objective='fast': input should be": {"objective": "fast"},
    "key of model; did you mean 'hidden'": {"model": {"hiden": 1}},
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_requests_get_one_clear_line(message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(**REFUSED[message])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_requests_round_trip() -> None:
    for fields in (
        {"model": "llama3-8b", "cluster": "h100:16", "seq_len": 8192},
        {
            "model": dims_of(model_of("deepseek-v3")),
            "cluster": "h100:16",
            "seq_len": 4096,
            "max_gbs": 100,
            "headroom": 3.0,
        },
        {
            "model": "llama3-8b",
            "cluster": "h100:16",
            "seq_len": 1,
            "pins": parse_pins(["tp=1,2", "sp=on", "recompute_modules=mlp+layernorm"]),
        },
    ):
        request = PlanRequest.of(fields)
        assert PlanRequest.of(yaml.safe_load(request_to_yaml(request))) == request
        assert PlanRequest.of(json.loads(json.dumps(request.to_dict()))) == request


def test_every_model_round_trips_as_dims() -> None:
    for preset in presets():
        assert model_of(dims_of(preset.spec)) == preset.spec


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bad.yaml", "model: [llama\ncluster: h100:8\n", r"no YAML at line 2, column \d+"),
        ("bad.json", '{"model": "x",\n "cluster" 3}', r"no JSON at line 2, column 12"),
        ("list.yaml", "- 1\n", "expected keys and values"),
        ("tab.yaml", "model:\n\t- x\n", r"no YAML at line 2, column 1"),
    ],
)
def test_broken_request_files_name_the_place(
    tmp_path: Any, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_request(tmp_path / name)
