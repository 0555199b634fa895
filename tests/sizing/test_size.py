"""Bytes of a checkpoint, against published ones and by hand."""

from __future__ import annotations

import pytest

from meshwright.sizing.checkpoints import Optimizer, checkpoint_size
from meshwright.values.errors import UnknownNameError
from meshwright.values.models.catalogue import find_model, parse_dims
from meshwright.values.stack import find_stack
from meshwright.values.units import GIB

NEMO_8B = "layers=32,hidden=4096,heads=32,ffn=10880,vocab=50304,gated=true,tied=false"
"""`7b_improved` of NeMo's launcher, whose checkpoints are 89.2 GiB."""


def test_the_checkpoint_of_nemos_8b() -> None:
    size = checkpoint_size(parse_dims(NEMO_8B), stack=find_stack("nemo"))
    assert size.params == pytest.approx(6.838e9, rel=1e-4)
    assert size.total_bytes / GIB == pytest.approx(89.2, abs=0.05)
    assert size.total_bytes == size.weight_bytes + size.master_bytes + size.state_bytes


@pytest.mark.parametrize(
    ("stack", "precision", "parts"),
    [
        ("megatron", "bf16", (2, 4, 8)),
        ("megatron", "fp8", (2, 4, 8)),
        ("megatron", "fp32", (4, 0, 8)),
        ("torchtitan", "bf16", (4, 0, 8)),  # fp32 weights alone, cast when they are gathered
        ("deepspeed", "bf16", (2, 4, 8)),  # half-precision weights beside fp32 ones
        ("nemo-automodel", "bf16", (2, 0, 4)),  # updates bf16 weights, moments in bf16
    ],
)
def test_bytes_of_a_parameter_follow_the_software(
    stack: str, precision: str, parts: tuple[int, int, int]
) -> None:
    model = find_model("gpt3-5b")
    size = checkpoint_size(model, stack=find_stack(stack), precision=precision)  # type: ignore[arg-type]  # of the parameters above
    assert (size.weight_bytes, size.master_bytes, size.state_bytes) == tuple(
        part * size.params for part in parts
    )


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [("adam-bf16", 4), ("adam-8bit", 2.03125), ("lion", 4), ("sgd-momentum", 4), ("sgd", 0)],
)
def test_other_optimizers(optimizer: Optimizer, states: float) -> None:
    size = checkpoint_size(find_model("gpt3-5b"), stack=find_stack("megatron"), optimizer=optimizer)
    assert size.state_bytes == states * size.params


def test_muon_has_adam_outside_the_layers() -> None:
    """By hand: 2 layers of 4 h^2 + 3 h ffn = 16 h^2, a table of V h, five norms of h: 4 bytes
    inside, 8 outside."""
    words = "layers=2,hidden=64,heads=4,ffn=256,vocab=1000,gated=true,tied=true"
    size = checkpoint_size(parse_dims(words), stack=find_stack("megatron"), optimizer="muon")
    matrices, outside = 2 * 16 * 64**2, 1000 * 64 + 5 * 64
    assert size.params == matrices + outside
    assert size.state_bytes == pytest.approx(4 * matrices + 8 * outside)


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'adam'"):
        checkpoint_size(find_model("gpt3-5b"), stack=find_stack("megatron"), optimizer="adamm")  # type: ignore[arg-type]  # the error
