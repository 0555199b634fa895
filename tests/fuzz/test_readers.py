"""Two thousand inputs for the readers of others' files, and proof that a finding would be said."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fuzz.readers import READERS, Reader, finding_of, mutated, texts_of
from tests.fuzz.seeds import write_seeds

from meshwright.values.errors import ConfigError

INPUTS = 2000
EACH = -(-INPUTS // len(READERS))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    write_seeds(folder)
    return folder


@pytest.mark.parametrize("name", READERS)
def test_a_reader_refuses_in_a_line_what_it_cannot_read(
    seeds: Path, tmp_path: Path, name: str
) -> None:
    reader, chance = READERS[name], random.Random(name)
    texts = texts_of(reader, seeds)
    for _ in range(EACH):
        data = mutated(chance.choice(texts), chance, others=texts)
        assert finding_of(reader, data, tmp_path) is None, data


@pytest.mark.parametrize("name", READERS)
def test_the_valid_file_is_read(seeds: Path, tmp_path: Path, name: str) -> None:
    """A seed that is refused would leave the reader behind its first line untried."""
    read = 0
    for text in texts_of(READERS[name], seeds):
        try:
            READERS[name].read(text, tmp_path)
            read += 1
        except ConfigError:
            continue
    assert read


def raises(error: Exception) -> Reader:
    def read(data: bytes, folder: Path) -> Iterator[None]:
        raise error

    return Reader(read=read)


@pytest.mark.parametrize("error", [KeyError("x"), ZeroDivisionError(), AttributeError("y")])
def test_a_finding_is_said(error: Exception, tmp_path: Path) -> None:
    found = finding_of(raises(error), b"", tmp_path)
    assert found is not None
    assert found[0].startswith(type(error).__name__)
    assert finding_of(raises(ConfigError("no")), b"", tmp_path) is None
