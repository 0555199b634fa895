"""A small model on transformers' continuous batching, by one process and by two: what is served,
and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.runs.loads.client import Target, find_dialect, find_model, send_load
from meshwright.runs.loads.load import Lengths, closed_loop
from meshwright.runs.loads.measure import EngineProcess, free_port, running_engine
from meshwright.software.deepspeed.trainer import decoder_config
from meshwright.software.defaults import complete_details
from meshwright.software.settings import ModelDetails
from meshwright.values.models.catalogue import named_model
from meshwright.values.workload import Workload

httpx = pytest.importorskip("httpx")
pytest.importorskip("transformers", reason="the extra serve is not installed")
pytest.importorskip("accelerate", reason="the extra serve is not installed")

pytestmark = pytest.mark.slow

START_S = 120.0


@dataclass(frozen=True)
class Servers:
    one: EngineProcess
    two: EngineProcess


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    config = tmp_path_factory.mktemp("model") / "config.json"
    small = {
        "num_layers": 2,
        "hidden": 64,
        "ffn": 128,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "vocab": 256,
    }
    model = replace(named_model("tiny-llama"), **small)  # type: ignore[arg-type]  # fields by name
    details = complete_details(ModelDetails(), model=model, work=Workload(seq_len=256))
    config.write_text(
        json.dumps(decoder_config(model, details, max_positions=256, name="transformers"))
    )
    ours = [
        "-m",
        "meshwright.trainer.serving",
        str(config),
        "--port",
        "{port}",
        "--dtype",
        "fp32",
        "--device",
        "cpu",
    ]
    ours += ["--max-model-len", "64", "--max-num-seqs", "4"]
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)}
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                running_engine(
                    [sys.executable, *words, *ours], port=free_port(), environment=environment
                )
            )
            for words in ([], several)
        ]
        for engine in started:
            engine.wait_ready("/health", seconds=START_S)
        yield Servers(*started)


def tokens(engine: EngineProcess, prompt: list[int], count: int) -> list[int]:
    body = {"model": "meshwright", "prompt": prompt, "max_tokens": count, "stream": True}
    with httpx.stream(
        "POST", f"{engine.url}/v1/completions", json=body, trust_env=False, timeout=60.0
    ) as answer:
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return [int(word) for choice in choices for word in choice["text"].split()]


def test_two_processes_answer_as_one_does(servers: Servers) -> None:
    for prompt in ([5, 9, 200, 31], list(range(3, 40))):
        alone = tokens(servers.one, prompt, 8)
        assert len(alone) == 8
        assert tokens(servers.two, prompt, 8) == alone


@pytest.mark.parametrize("which", ["one", "two"])
def test_a_load_is_answered_in_full(servers: Servers, which: str) -> None:
    target = Target(url=getattr(servers, which).url, vocab=256)
    assert find_model(target) == "meshwright"
    dialect = find_dialect(target)
    assert dialect.left_out == ()
    answers = send_load(
        target, dialect, closed_loop(4, Lengths(input_len=20, output_len=6), requests=8)
    )
    assert [(answer.error, answer.prompt_tokens, answer.output_tokens) for answer in answers] == [
        (None, 20, 6)
    ] * 8


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompt": "a text"}, "prompt: expected a list of token ids"),
        ({"prompt": [1, 256]}, "prompt: expected a list of token ids from 0 to 255"),
        ({"prompt": []}, "prompt: expected a list of token ids"),
        ({"max_tokens": 62}, "expected 64 together at most"),
        ({"stream": False}, "ask with stream=true"),
        ({"best_of": 2}, "best_of: not known here"),
    ],
)
def test_what_it_can_not_do_is_refused(
    servers: Servers, changes: dict[str, Any], says: str
) -> None:
    body = {"model": "meshwright", "prompt": [1, 2, 3], "max_tokens": 2, "stream": True, **changes}
    answer = httpx.post(f"{servers.one.url}/v1/completions", json=body, trust_env=False)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_a_model_that_is_not_there_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from meshwright.trainer.serving.engine import open_engine
    from meshwright.values.errors import ConfigError

    with pytest.raises(ConfigError, match=r"nowhere\.json: no such file"):
        open_engine(
            str(tmp_path / "nowhere.json"),
            dtype="fp32",
            device="cpu",
            max_len=8,
            max_sequences=1,
            max_tokens=None,
        )
