"""The page as files that any host can serve: Python and the pricing core run in the browser."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

from meshwright.report.whatif_page.answers import Answers
from meshwright.report.whatif_page.choices import choices_record
from meshwright.report.whatif_page.files import PAGE_FILES, page_file
from meshwright.report.whatif_page.state import DEFAULTS
from meshwright.values.errors import ConfigError

__all__ = [
    "CORE_TAG",
    "PYODIDE",
    "Core",
    "core_version",
    "find_core",
    "static_files",
    "write_files",
]

PYODIDE = "314.0.7"
"""The release of Pyodide, CPython 3.14 as WebAssembly; tried with this one."""
CORE_TAG = "cp314-cp314-pyemscripten_2026_0_wasm32"
"""What its compiled packages are named by (PEP 783)."""
_RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide-lock.json", "python_stdlib.zip")
"""Copied as they are; the compiled part is packed."""
_COMPILED = "pyodide.asm.wasm"
_ROOMS = ("api", "cost", "platforms", "report", "search", "serving", "sizing", "software")
_VALUES = ("trust", "values")
_PURE = ("pydantic", "annotated_types", "typing_inspection", "typing_extensions", "yaml")
"""Packages that the rooms import, taken from where they are installed here."""
_MARK = b'data-core="static"'
"""By which the page's script knows that there is no server."""
_WHEN = (2020, 1, 1, 0, 0, 0)
"""The time of every file in an archive, so that equal inputs make equal pages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Core:
    """What the browser needs that this package does not hold."""

    runtime: Path
    """A folder with Pyodide's files, as its npm package unpacks."""
    pydantic_core: Path
    """The wheel of pydantic's compiled part for it."""


def core_version() -> str:
    """The release of pydantic's compiled part that belongs to the pydantic installed here."""
    return metadata.version("pydantic_core")


def find_core(folder: Path) -> Core:
    """Find Pyodide and the wheel in a folder or below it; ConfigError says what is missing."""
    runtime = next((found.parent for found in sorted(folder.rglob(_COMPILED))), None)
    if runtime is None:
        raise ConfigError(f"{folder}: no {_COMPILED}; `npm pack pyodide@{PYODIDE}` brings it")
    if missing := [name for name in _RUNTIME if not (runtime / name).is_file()]:
        raise ConfigError(f"{runtime}: no {', '.join(missing)}; take Pyodide {PYODIDE} whole")
    name = f"pydantic_core-{core_version()}-{CORE_TAG}.whl"
    wheel = next(iter(sorted(folder.rglob(name))), None)
    if wheel is None:
        raise ConfigError(f"{folder}: no {name}; PyPI has it among pydantic-core's files")
    return Core(runtime=runtime, pydantic_core=wheel)


def static_files(answers: Answers, core: Core) -> dict[str, bytes]:
    """Return the files of the page by their names."""
    first = {"choices": choices_record(), "price": answers.price(DEFAULTS)}
    page = page_file("index.html").replace(b'<html lang="en"', b'<html lang="en" ' + _MARK)
    files = {name: page_file(name) for name in PAGE_FILES}
    return {
        **files,
        "index.html": page,
        "worker.js": page_file("worker.js"),
        "first.json": json.dumps(first).encode(),
        **{f"core/{name}": (core.runtime / name).read_bytes() for name in _RUNTIME},
        f"core/{_COMPILED}.gz": gzip.compress((core.runtime / _COMPILED).read_bytes(), 9, mtime=0),
        "core/meshwright.zip": _archive(_sources()),
        "core/pydantic.zip": core.pydantic_core.read_bytes(),
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> int:
    """Write them, an older page's in their place; ConfigError where the folder holds anything
    else."""
    index = folder / "index.html"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; name a folder")
    is_ours = index.is_file() and _MARK in index.read_bytes()
    if folder.is_dir() and any(folder.iterdir()) and not is_ours:
        raise ConfigError(f"{folder}: holds other files; name a new folder or an empty one")
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return sum(map(len, files.values()))


def _archive(files: Iterator[tuple[str, bytes]]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, _WHEN), content, zipfile.ZIP_DEFLATED, 9)
    return held.getvalue()


def _sources() -> Iterator[tuple[str, bytes]]:
    """This package's rooms that the page asks, and the pure packages that they import."""
    here = _folder_of("meshwright")
    yield "meshwright/__init__.py", (here / "__init__.py").read_bytes()
    for room in (*_ROOMS, *_VALUES):
        yield from _below(here / room, here.parent)
    for package in _PURE:
        place = _folder_of(package)
        if place.is_file():
            yield place.name, place.read_bytes()
        else:
            yield from _below(place, place.parent, only=".py")


def _folder_of(package: str) -> Path:
    file = Path(str(import_module(package).__file__))
    return file.parent if file.name == "__init__.py" else file


def _below(folder: Path, root: Path, *, only: str = "") -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix.endswith(only):
            yield path.relative_to(root).as_posix(), path.read_bytes()
