"""The arrays of a page without numpy, held against numpy."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, broadcastable_shapes

from meshwright.api.whatif import answers_of
from meshwright.report.whatif_page.arrays import numpy_module
from meshwright.report.whatif_page.questions import reply

ours: Any = numpy_module()
FLOATS = st.floats(-1e6, 1e6, allow_nan=False, width=64)
ELEMENTS = {np.float64: FLOATS, np.int64: st.integers(-1000, 1000), np.bool_: st.booleans()}
TYPES = {"f": ours.float64, "i": ours.int64, "b": ours.bool_}


def same(mine: Any, theirs: Any) -> None:
    """Equal to the last digit, of one shape and kind."""
    theirs = np.asarray(theirs)
    mine = ours.asarray(mine)
    assert mine.shape == theirs.shape
    assert mine.kind == theirs.dtype.kind
    assert np.array_equal(
        np.array(mine.values, dtype=theirs.dtype).reshape(theirs.shape), theirs, equal_nan=True
    )


def mine_of(theirs: np.ndarray[Any, Any]) -> Any:
    return ours.array(theirs.tolist(), TYPES[theirs.dtype.kind]).reshape(theirs.shape)


TYPED = st.sampled_from([np.float64, np.int64, np.bool_])


def some(kind: Any, shape: Any) -> Any:
    return arrays(kind, shape, elements=ELEMENTS[kind])


@st.composite
def pairs(draw: Any) -> tuple[Any, Any]:
    shape = draw(array_shapes(max_dims=3, max_side=4))
    other = draw(broadcastable_shapes(shape, max_dims=3, max_side=4))
    return draw(some(draw(TYPED), shape)), draw(some(draw(TYPED), other))


@settings(max_examples=150)
@given(pairs(), st.sampled_from(["add", "multiply", "maximum", "minimum", "less", "equal"]))
def test_two_are_stretched_to_each_other(given_: tuple[Any, Any], name: str) -> None:
    a, b = given_
    signs = {"less": lambda x, y: x < y, "equal": lambda x, y: x == y}
    called = signs.get(name) or getattr(ours, name)
    same(called(mine_of(a), mine_of(b)), getattr(np, name)(a, b))


@settings(max_examples=100)
@given(pairs(), st.sampled_from(["-", "/", "//", "%"]))
def test_division_and_difference(given_: tuple[Any, Any], sign: str) -> None:
    a, b = (x.astype(np.int64) if x.dtype == np.bool_ else x for x in given_)
    b = np.where(np.abs(b) < 1e-6, 1, b)  # a quotient beyond floats warns
    signs = {
        "-": lambda x, y: x - y,
        "/": lambda x, y: x / y,
        "//": lambda x, y: x // y,
        "%": lambda x, y: x % y,
    }
    same(signs[sign](mine_of(a), mine_of(b)), signs[sign](a, b))


@settings(max_examples=150)
@given(st.data())
def test_sums_are_added_in_the_same_order(data: Any) -> None:
    shape = data.draw(st.sampled_from([(1,), (7,), (8,), (130,), (300,), (3, 20), (2, 3, 9)]))
    values = data.draw(some(data.draw(TYPED), shape))
    axis = data.draw(st.sampled_from([None, *range(len(shape))]))
    for name in ("sum", "max", "min", "any", "all"):
        same(getattr(mine_of(values), name)(axis=axis), getattr(values, name)(axis=axis))
    same(mine_of(values).cumsum(axis=axis), values.cumsum(axis=axis))
    same(mine_of(values).argmax(axis=axis), values.argmax(axis=axis))


KEYS: list[Any] = [
    0,
    -1,
    slice(1, None),
    slice(None, None, -1),
    (slice(None), 1),
    (None, Ellipsis, 0),
    (Ellipsis, None),
    [1, 0, 1],
    (slice(None), [0, 2]),
    ([0, 1], [2, 0]),
    ([0, 1], slice(None), [1, 0]),
    (slice(None), [[0], [1]], [1, 0]),
    np.array([True, False]),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_keys_select_the_same(key: Any) -> None:
    values = np.arange(24).reshape(2, 3, 4)
    own = mine_of(key) if isinstance(key, np.ndarray) else key
    same(mine_of(values)[own], values[key])
    changed, theirs = mine_of(values), values.copy()
    changed[own] = 7
    theirs[key] = 7
    same(changed, theirs)


@settings(max_examples=60)
@given(arrays(np.int64, st.integers(1, 12), elements=st.integers(0, 5)), st.data())
def test_sorting_searching_and_joining(values: Any, data: Any) -> None:
    mine = mine_of(values)
    same(ours.sort(mine), np.sort(values))
    same(mine.argsort(), np.argsort(values, kind="stable"))
    for found, theirs in zip(
        ours.unique(mine, return_index=True, return_inverse=True),
        np.unique(values, return_index=True, return_inverse=True),
        strict=True,
    ):
        same(found, theirs)
    same(ours.repeat(mine, mine), np.repeat(values, values))
    same(ours.concatenate([mine, mine]), np.concatenate([values, values]))
    same(ours.stack([mine, mine], axis=1), np.stack([values, values], axis=1))
    same(ours.flatnonzero(mine), np.flatnonzero(values))
    same(ours.isin(mine, (1, 3)), np.isin(values, (1, 3)))
    points = np.array([0.0, 1.5, 2.0, 4.0])
    same(
        ours.interp(mine.astype(float), mine_of(points), mine_of(points**2)),
        np.interp(values, points, points**2),
    )
    limit = data.draw(st.integers(0, 5))
    same(ours.where(mine > limit, mine, 0.5), np.where(values > limit, values, 0.5))
    same(ours.clip(mine, 1, limit + 1), np.clip(values, 1, limit + 1))
    same(ours.searchsorted(mine_of(points), mine), np.searchsorted(points, values))


def test_columns_are_unique_and_rows_are_put_in_place() -> None:
    values = np.array([[3, 1, 3], [0, 2, 0]])
    mine = mine_of(values)
    for found, theirs in zip(
        ours.unique(mine, axis=1, return_inverse=True),
        np.unique(values, axis=1, return_inverse=True),
        strict=True,
    ):
        same(found, theirs)
    order = np.argsort(values, axis=1)
    same(ours.take_along_axis(mine, mine_of(order), axis=1), np.take_along_axis(values, order, 1))
    put, theirs = mine.copy(), values.copy()
    ours.put_along_axis(put, mine_of(order), 9, axis=1)
    np.put_along_axis(theirs, order, 9, axis=1)
    same(put, theirs)


def test_files_are_read_as_numpy_wrote_them() -> None:
    held = io.BytesIO()
    kept = {
        "a": np.arange(6, dtype=np.int16).reshape(2, 3),
        "b": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "c": np.frombuffer(b"words", dtype=np.uint8),
    }
    np.savez_compressed(held, **kept)  # type: ignore[arg-type]
    held.seek(0)
    with ours.load(held, allow_pickle=False) as found:
        same(found["a"], kept["a"].astype(np.int64))
        same(found["b"], kept["b"])
        assert found["c"].tobytes() == b"words"


LLAMA = "model=llama3-8b&cluster=h100:16&seq=4096&gbs=64"
QUESTIONS = (
    ("price", f"{LLAMA}&layout=tp=2,pp=2,mbs=1"),
    ("price", f"{LLAMA}&layout=tp=4,pp=4,vpp=2,mbs=1,recompute=full&tokens=1T"),
    ("price", "model=mixtral-8x7b&cluster=b200:32&gbs=64&layout=ep=8,mbs=1&precision=fp8"),
    ("price", "model=llama3-8b&cluster=h100:8&gbs=64&stack=trl&finetune=qlora&layout=mbs=1"),
    ("price", "model=llama3-8b&cluster=mi300x:64&gbs=96&layout=tp=8,mbs=1&moved=gpus&was=32"),
    ("near", f"{LLAMA}&layout=tp=2,pp=2,mbs=1"),
    ("pictures", f"{LLAMA}&layout=tp=2,pp=2,mbs=1&wide=700"),
    ("plan", "model=tiny-llama&cluster=h100:2&seq=512&gbs=8&layout=tp=1"),
    ("export", f"{LLAMA}&layout=tp=2,pp=2,mbs=1&to=megatron-lm"),
    ("serve", "what=serve&model=llama3-8b&cluster=h100:2"),
    ("compare", "what=compare&model=tiny-llama&clusters=h100:2,b200:2&tokens=1B"),
)
ALONE = """
import json, sys
from meshwright.api.browser import start
answer = start()
print(json.dumps([json.loads(answer(*question)) for question in json.loads(sys.argv[1])]))
"""


def test_the_pages_questions_have_the_same_answers_without_numpy() -> None:
    """In a process of its own, as in the browser; a new name of numpy's that pricing uses fails
    here."""
    words = [sys.executable, "-c", ALONE, json.dumps(QUESTIONS)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = answers_of()
    for question, found in zip(QUESTIONS, json.loads(done.stdout), strict=True):
        wanted = json.loads(json.dumps(reply(answers, *question)))
        assert "refused" not in wanted, wanted
        assert_near(found, wanted, question[0])


def assert_near(found: Any, wanted: Any, place: str) -> None:
    """Equal but for a sum's last bits, which hang on how many columns were priced at once."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), place
        for key in wanted:
            assert_near(found[key], wanted[key], f"{place}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), place
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_near(one, other, f"{place}[{i}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12), place
    else:
        assert found == wanted, place


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError):
        ours.fft  # noqa: B018
    with pytest.raises(IndexError):
        ours.arange(3)[5]
    with pytest.raises(ValueError, match="stretch"):
        ours.zeros(3) + ours.zeros(2)
