from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml, write_yaml

TEXT = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    ["a\nb\n", "\x85", " \n", "# no", "yes", "1e3", "\u2028", "\ufeff", "|\n|\n"]
)
VALUES = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_what_is_written_reads_back(values: dict[str, Any]) -> None:
    assert read_yaml(write_yaml(values), what="here") == values


def test_equal_parts_are_written_twice_and_lines_as_lines() -> None:
    part = {"name": "a"}
    assert (
        write_yaml({"one": part, "two": part, "run": "set -e\necho\n"})
        == "one:\n  name: a\ntwo:\n  name: a\nrun: |\n  set -e\n  echo\n"
    )


@pytest.mark.parametrize("text", ["- a", "a: [", "", "\0"])
def test_what_is_no_mapping_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^here: "):
        read_yaml(text, what="here")
