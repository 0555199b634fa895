"""merge, verify, stats and blend on pairs of .bin/.idx that are worked by hand."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.test_indexed import DOCUMENTS, megatron, write

from meshwright.data.indexed import IndexedFile
from meshwright.data.pairs import blend, merge, prefixes_of, stats
from meshwright.data.verifying import verify
from meshwright.values.errors import ConfigError


def test_two_pairs_by_hand(tmp_path: Path) -> None:
    write(tmp_path / "a", [[[5, 6, 7]], [[8, 50256]]], "<u2")
    write(tmp_path / "b", [[], [[1], [2, 3]]], "<u2")
    report = merge([str(tmp_path / "a"), str(tmp_path / "b")], output_prefix=str(tmp_path / "both"))
    assert (report.documents, report.sequences, report.tokens) == (4, 4, 8)
    file = IndexedFile(tmp_path / "both")
    assert file.tokens.tolist() == [5, 6, 7, 8, 50256, 1, 2, 3]
    assert (file.lengths.tolist(), file.pointers.tolist(), file.bounds.tolist()) == (
        [3, 2, 1, 2],
        [0, 6, 10, 12],
        [0, 1, 2, 2, 4],
    )
    assert [pair.passed for pair in verify([str(tmp_path / "both")])] == [True]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parts=st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_merged_bytes_are_megatrons(tmp_path: Path, parts: list[list[list[list[int]]]]) -> None:
    module = megatron()
    builder = module.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for number, documents in enumerate(parts):
        write(tmp_path / str(number), documents, "<u2")
        builder.add_index(str(tmp_path / str(number)))
    builder.finalize(str(tmp_path / "theirs.idx"))
    merge(
        [str(tmp_path / str(number)) for number in range(len(parts))],
        output_prefix=str(tmp_path / "ours"),
        overwrite=True,
    )
    for ending in ("bin", "idx"):
        assert (tmp_path / f"ours.{ending}").read_bytes() == (
            tmp_path / f"theirs.{ending}"
        ).read_bytes()


def test_a_merge_goes_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write(tmp_path / f"p{number}", [[[number, number + 1]]], "<u2")
    names = [str(tmp_path / f"p{number}") for number in range(3)]
    merge(names, output_prefix=str(tmp_path / "whole"))

    class Killed(BaseException):
        pass

    def dies(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("meshwright.data.pairs._write_index", dies)
        with pytest.raises(Killed):
            merge(names, output_prefix=str(tmp_path / "killed"))
    scratch = tmp_path / ".meshwright" / "merge-killed" / "bin"
    scratch.write_bytes(scratch.read_bytes() + b"torn")
    merge(names, output_prefix=str(tmp_path / "killed"))
    for ending in ("bin", "idx"):
        assert (tmp_path / f"killed.{ending}").read_bytes() == (
            tmp_path / f"whole.{ending}"
        ).read_bytes()


def test_a_second_merge_says_that_the_pair_is_there(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"p{number}", [[[number, number + 1]]], "<u2")
    names = [str(tmp_path / f"p{number}") for number in range(2)]
    first = merge(names, output_prefix=str(tmp_path / "all"))
    made = (tmp_path / "all.bin").stat().st_mtime_ns
    second = merge(names, output_prefix=str(tmp_path / "all"))
    assert (first.was_there, second.was_there) == (False, True)
    assert (second.documents, second.tokens, second.manifest) == (2, 4, first.manifest)
    assert (tmp_path / "all.bin").stat().st_mtime_ns == made
    with pytest.raises(ConfigError, match="not what these pairs make"):
        merge(names[:1], output_prefix=str(tmp_path / "all"))
    later_s = (tmp_path / "all.manifest.json").stat().st_mtime + 10
    os.utime(tmp_path / "p0.bin", (later_s, later_s))
    with pytest.raises(ConfigError, match="not what these pairs make"):
        merge(names, output_prefix=str(tmp_path / "all"))
    (tmp_path / "all.bin").unlink()
    os.utime(tmp_path / "p0.bin", (0, 0))
    with pytest.raises(ConfigError, match="not what these pairs make"):
        merge(names, output_prefix=str(tmp_path / "all"))


def test_a_merge_goes_on_after_a_kill_before_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", [[[1, 2]], [[3]]], "<u2")

    class Killed(BaseException):
        pass

    def dies(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("meshwright.data.pairs.write_manifest", dies)
        with pytest.raises(Killed):
            merge([str(tmp_path / "a")], output_prefix=str(tmp_path / "all"))
    report = merge([str(tmp_path / "a")], output_prefix=str(tmp_path / "all"))
    assert (report.documents, report.was_there) == (2, False)
    assert [pair.passed for pair in verify([str(tmp_path / "all")])] == [True]


def test_pairs_that_do_not_fit(tmp_path: Path) -> None:
    write(tmp_path / "a", [[[5]]], "<u2")
    write(tmp_path / "b", [[[5]]], "<i4")
    names = [str(tmp_path / "a"), str(tmp_path / "b")]
    with pytest.raises(ConfigError, match=r"ids are int32, and those of .*a are uint16"):
        merge(names, output_prefix=str(tmp_path / "c"))
    with pytest.raises(ConfigError, match="is an input too"):
        merge(names, output_prefix=str(tmp_path / "a"))
    with pytest.raises(ConfigError, match="named twice"):
        prefixes_of([names[0], f"{names[0]}.idx"])
    (tmp_path / "b.bin").unlink()
    with pytest.raises(ConfigError, match=r"b\.bin does not exist"):
        prefixes_of([str(tmp_path)])


def put(path: Path, at: int, form: str, value: int) -> None:
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, at, value)
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "version": (lambda p: put(p / "a.idx", 9, "<Q", 2), "header and sizes", "version 2"),
    "type": (lambda p: put(p / "a.idx", 17, "<B", 9), "header and sizes", "token type 9"),
    "sequences": (
        lambda p: put(p / "a.idx", 18, "<Q", 3),
        "header and sizes",
        "expected 94 for 3 sequences",
    ),
    "length": (
        lambda p: put(p / "a.idx", 34, "<i", 0),
        "lengths",
        "the shortest sequence has 0 ids",
    ),
    "pointer": (
        lambda p: put(p / "a.idx", 34 + 8 + 8, "<q", 4),
        "pointers",
        "sequence 1: byte 4, expected 6",
    ),
    "first bound": (
        lambda p: put(p / "a.idx", 58, "<q", 1),
        "documents",
        "bounds go from 1 to 2, expected 0 to 2",
    ),
    "bound": (
        lambda p: put(p / "a.idx", 66, "<q", 5),
        "documents",
        "bound 2 is smaller than the one before it",
    ),
    "tokens": (
        lambda p: (p / "a.bin").write_bytes(bytes(12)),
        ".bin",
        "12 bytes for 5 tokens, expected 10",
    ),
    "id": (
        lambda p: put(p / "a.bin", 0, "<H", 60000),
        "ids",
        "the highest is 60,000, vocabulary 50,257",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_field_that_is_wrong_is_named(tmp_path: Path, damage: str) -> None:
    write(tmp_path / "a", [[[5, 6, 7]], [[8, 50256]]], "<u2")
    (before,) = verify([str(tmp_path / "a")], vocab_size=50257)
    assert before.passed
    harm, name, says = DAMAGE[damage]
    harm(tmp_path)
    (found,) = verify([str(tmp_path / "a")], vocab_size=50257)
    assert not found.passed
    assert says in next(
        check.found for check in found.checks if check.name == name and not check.passed
    )


def test_the_type_follows_the_vocabulary(tmp_path: Path) -> None:
    write(tmp_path / "a", [[[5]]], "<i4")
    (found,) = verify([str(tmp_path / "a")], vocab_size=50257)
    assert [check.found for check in found.checks if not check.passed] == [
        "int32, and Megatron writes uint16 for a vocabulary of 50,257"
    ]


def test_a_manifest_that_says_otherwise(tmp_path: Path) -> None:
    write(tmp_path / "a", [[[5, 6]]], "<u2")
    merge([str(tmp_path / "a")], output_prefix=str(tmp_path / "m"))
    put(tmp_path / "m.bin", 0, "<H", 9)
    (found,) = verify([str(tmp_path / "m")])
    assert [check.name for check in found.checks if not check.passed] == ["manifest: sha256"]


def test_quantiles_and_histogram_by_hand(tmp_path: Path) -> None:
    """Documents of 0, 1, 2, 3 and 9 tokens, the last of two sequences."""
    write(tmp_path / "a", [[], [[1]], [[1, 2]], [[1, 2, 3]], [[1] * 4, [2] * 5]], "<u2")
    (found,) = stats([str(tmp_path / "a")])
    assert (found.documents, found.sequences, found.tokens, found.mean) == (5, 5, 15, 3.0)
    assert found.quantiles == {
        0.0: 0,
        0.01: 0,
        0.05: 0,
        0.25: 1,
        0.5: 2,
        0.75: 3,
        0.95: 9,
        0.99: 9,
        1.0: 9,
    }
    assert found.histogram == ((0, 1, 1, 0), (1, 2, 1, 1), (2, 4, 2, 5), (8, 16, 1, 9))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=DOCUMENTS)
def test_quantiles_are_numpys_lower_ones(tmp_path: Path, documents: list[list[list[int]]]) -> None:
    write(tmp_path / "a", documents, "<u2")
    (found,) = stats([str(tmp_path / "a")])
    lengths = sorted(len(list(chain(*document))) for document in documents)
    for share, length in found.quantiles.items():
        assert length == np.quantile(lengths, share, method="inverted_cdf")
    assert sum(row[2] for row in found.histogram) == len(documents)
    assert sum(row[3] for row in found.histogram) == sum(lengths)


def test_long_documents_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.data.pairs._COUNTED", 4)
    write(tmp_path / "a", [[[1] * length] for length in (1, 5, 9)], "<u2")
    write(tmp_path / "b", [[[1] * 6]], "<u2")
    *_, both = stats([str(tmp_path / "a"), str(tmp_path / "b")])
    assert (both.prefix, both.quantiles[0.5], both.quantiles[1.0]) == ("all", 5, 9)
    assert both.histogram == ((1, 2, 1, 1), (4, 8, 2, 11), (8, 16, 1, 9))


def three(folder: Path) -> list[str]:
    for name, tokens in (("a", 1), ("b", 2), ("c", 4)):
        write(folder / name, [[[1] * tokens]], "<u2")
    return [str(folder / name) for name in "abc"]


def test_weights_follow_the_tokens_and_sum_to_one(tmp_path: Path) -> None:
    """1/7, 2/7 and 4/7: 142857.14, 285714.29 and 571428.57 millionths; the last lost the most by
    rounding down."""
    mixture = blend(three(tmp_path))
    assert mixture.words() == ["0.142857", "0.285714", "0.571429"]
    assert blend(three(tmp_path), temperature=2).words() == ["0.226541", "0.320377", "0.453082"]
    assert mixture.epochs(70) == pytest.approx([10, 10, 10], rel=1e-5)


def test_the_words_of_each_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert blend(["a", "b"], weights={"b": 3.0, "a": 1.0}).forms() == {
        "megatron": "--data-path 0.250000 a 0.750000 b",
        "nemo": "'model.data.data_prefix=[0.250000,a,0.750000,b]'",
        "bridge": '\'dataset.blend=[["a","b"],[0.250000,0.750000]]\'',
    }


@given(weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=3))
def test_printed_weights_sum_to_one(
    tmp_path_factory: pytest.TempPathFactory, weights: list[float]
) -> None:
    names = three(tmp_path_factory.mktemp("pairs"))[: len(weights)]
    written = blend(names, weights=weights).words()
    assert sum(round(float(word) * 10**6) for word in written) == 10**6
    shares = [weight / sum(weights) for weight in weights]
    assert all(
        abs(float(word) - share) <= 1e-6 for word, share in zip(written, shares, strict=True)
    )


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ([1.0], "1 for 3 pairs"),
        ([1.0, 0.0, 1.0], "expected numbers above 0"),
        ({"x": 1.0}, "x=...: is none of the pairs"),
        ([1.0, 1e-9, 1.0], "pair 2"),
    ],
)
def test_weights_that_are_refused(tmp_path: Path, weights: list[float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        blend(three(tmp_path), weights=weights)
