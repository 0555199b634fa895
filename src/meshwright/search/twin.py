"""A private twin of the cost model, whose constants may be moved and whose calls are watched.

The twin is a second copy of the modules' own code. Nothing that prices layouts elsewhere, in this
thread or another, ever sees a moved constant or a watched call.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from meshwright.cost._makes import terms_made
from meshwright.values.hardware.tables import ChipTables, tables_of

__all__ = ["Call", "Defined", "Trace", "Twin", "defined_constants", "scaled", "twin", "watched"]

ROOMS = ("meshwright.cost.", "meshwright.serving.", "meshwright.values.hardware.tables")
PRICERS = (
    "meshwright.values.hardware.serving_tables",
    "meshwright.search.quote",
    "meshwright.search.refine",
    "meshwright.search.mixed.reprice",
)
"""Modules beside those rooms that price with them, and so must read the twin's constants."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Defined:
    """A number that a module names, with the words beneath it."""

    module: str
    name: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of a function that makes a term."""

    module: str
    function: str
    doc: str
    terms: tuple[str, ...]
    values: dict[str, Any]
    """Its arguments and locals when it returned, and the constants that it names."""
    result: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """What one pricing ran and read."""

    calls: list[Call] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """Names in the code that ran: it may have read the globals among them."""
    reads: set[tuple[type[Any], str]] = field(default_factory=set)
    """Fields of `watched` values that the code read, each with the kind of value."""
    grids: set[tuple[str, str]] = field(default_factory=set)
    """Measured tables: the chip's name and the table's."""


class Twin:
    """The copy of the modules; use it under its `lock`."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.modules: dict[str, ModuleType] = {}
        self._import = builtins.__import__
        self._clears: list[Callable[[], None]] = []

    def module(self, name: str) -> ModuleType:
        """Return the twin of a module; it is made at the first call."""
        if name not in self.modules:
            import_module(name)  # dataclasses look their module up among the real ones
            spec = find_spec(name)
            assert spec is not None
            assert spec.loader is not None
            made = module_from_spec(spec)
            made.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._importing}
            self.modules[name] = made
            exec(spec.loader.get_code(name), made.__dict__)  # type: ignore[attr-defined]
            self._clears += [
                value.cache_clear
                for own, value in made.__dict__.items()
                # Tables hang on no constant, and take long to read.
                if own != "tables_of" and getattr(value, "__module__", None) == name
                if hasattr(value, "cache_clear")
            ]
        return self.modules[name]

    def _importing(
        self,
        name: str,
        globals: Any = None,
        locals: Any = None,
        fromlist: tuple[str, ...] = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as Python does, and a copied module from the copies."""
        if fromlist and (name.startswith(ROOMS) or name in PRICERS):
            return self.module(name)
        return self._import(name, globals, locals, fromlist, level)

    def defined(self) -> Iterator[Defined]:
        """Yield the constants that the twin's modules name."""
        for name in tuple(self.modules):
            yield from defined_constants(name)

    @contextmanager
    def with_constant(self, module: str, name: str, value: Any) -> Iterator[None]:
        """Give a module's constant another value, wherever it was imported to."""
        old = self.modules[module].__dict__[name]
        holders = [m.__dict__ for m in self.modules.values() if m.__dict__.get(name) is old]
        with self._bound([(names, name, value) for names in holders]):
            yield

    @contextmanager
    def with_tables(self, read: Callable[[str], ChipTables | None]) -> Iterator[None]:
        """Read measured tables through another function."""
        own = self.module("meshwright.values.hardware.tables").__dict__["tables_of"]
        holders = [m.__dict__ for m in self.modules.values() if m.__dict__.get("tables_of") is own]
        with self._bound([(names, "tables_of", read) for names in holders]):
            yield

    @contextmanager
    def _bound(self, changes: list[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
        before = [(names, name, names[name]) for names, name, _ in changes]
        self.forget()
        for names, name, value in changes:
            names[name] = value
        try:
            yield
        finally:
            for names, name, value in before:
                names[name] = value
            self.forget()

    def forget(self) -> None:
        """Empty the copies' own caches; those of other modules see no moved constant."""
        for clear in self._clears:
            clear()

    def tables(self, chip: str) -> ChipTables | None:
        """Return the shipped tables of a chip; the twin shares them with all others."""
        return tables_of(chip)

    def trace(self, run: Callable[[], object]) -> Trace:
        """Run a pricing, and note the calls that make terms, the names and the tables read."""
        found, makers = Trace(), self._makers()

        def noting(chip: str) -> ChipTables | None:
            tables = self.tables(chip)
            if tables is None:
                return None
            return replace(tables, grids=_Noted(tables.grids, chip, found.grids))

        def watch(frame: FrameType, event: str, result: Any) -> None:
            if event == "call":
                found.names.update(_names_of(frame.f_code))
            elif event == "return" and frame.f_code in makers:
                found.calls.append(_call(makers[frame.f_code], frame, result))

        with self.with_tables(noting):
            before = sys.getprofile()
            sys.setprofile(watch)
            _READS.append(found.reads)
            try:
                run()
            finally:
                _READS.pop()
                sys.setprofile(before)
        return found

    def _makers(self) -> dict[CodeType, FunctionType]:
        return {
            value.__code__: value
            for made in self.modules.values()
            for value in made.__dict__.values()
            if isinstance(value, FunctionType) and terms_made(value)
        }


_READS: list[set[tuple[type[Any], str]]] = []
"""Where reads of watched values are noted: of the pricing that is watched now, the last."""


def watched(value: Any) -> Any:
    """Return a dataclass's value whose fields, and those of its copies, say when they are read.

    What dataclasses do themselves is no read: to compare, hash or copy a value takes every field,
    and says nothing of those that a price stands on.
    """
    values = {one.name: getattr(value, one.name) for one in fields(value)}
    kind: Any = type(value)
    return _watching(kind)(**values)


@cache
def _watching(kind: Any) -> type[Any]:
    names = frozenset(one.name for one in fields(kind))

    def read(self: Any, name: str) -> Any:
        if _READS and name in names:
            caller = sys._getframe(1)
            ours = caller.f_globals.get("__name__", "").startswith("meshwright.")
            if ours and not caller.f_code.co_name.startswith("__"):
                _READS[-1].add((kind, name))
        return object.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__slots__": (), "__getattribute__": read})


class _Noted(dict[str, Any]):
    """Tables that note which of them were read."""

    def __init__(self, grids: Mapping[str, Any], chip: str, read: set[tuple[str, str]]) -> None:
        super().__init__(grids)
        self._chip, self._read = chip, read

    def get(self, name: str, other: Any = None) -> Any:
        if name in self:
            self._read.add((self._chip, name))
        return super().get(name, other)


def _call(function: FunctionType, frame: FrameType, result: Any) -> Call:
    names = {name: frame.f_globals.get(name) for name in frame.f_code.co_names if name.isupper()}
    values = {**frame.f_locals, **{n: v for n, v in names.items() if v is not None}}
    terms = (values["term"],) if "term" in values else terms_made(function)
    return Call(
        module=function.__module__,
        function=function.__name__,
        doc=function.__doc__ or "",
        terms=terms,
        values=values,
        result=result,
    )


@cache
def _names_of(code: CodeType) -> frozenset[str]:
    """Names and texts in one function; those that a dataclass is born with read every field, and
    say nothing."""
    if code.co_name.startswith("__"):
        return frozenset()
    texts = {text for text in code.co_consts if isinstance(text, str)}
    inner = (_names_of(part) for part in code.co_consts if isinstance(part, CodeType))
    return frozenset({*code.co_names, *texts}.union(*inner))


@cache
def defined_constants(module: str) -> tuple[Defined, ...]:
    """Return the constants that a module defines: names in capitals with a number, or numbers in
    a tuple or a table. Whole numbers count things; they are structure, and no constants."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.loader is not None
    tree = ast.parse(spec.loader.get_source(module))  # type: ignore[attr-defined]
    values = twin().module(module).__dict__
    found = []
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not isinstance(target, ast.Name) or not target.id.strip("_").isupper():
            continue
        if scaled(values[target.id], 2.0) != values[target.id]:
            found.append(Defined(module=module, name=target.id, words=_words(after)))
    return tuple(found)


def _words(node: ast.stmt | None) -> str:
    text = node.value if isinstance(node, ast.Expr) else None
    plain = isinstance(text, ast.Constant) and isinstance(text.value, str)
    return " ".join(text.value.split()) if plain else ""  # type: ignore[union-attr]


def scaled(value: Any, factor: float) -> Any:
    """Return a constant with every number in it scaled; flags and whole numbers stay."""
    if isinstance(value, float):
        return value * factor
    if isinstance(value, tuple):
        return tuple(scaled(each, factor) for each in value)
    if isinstance(value, Mapping):
        return {key: scaled(each, factor) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        numbers = {f.name: getattr(value, f.name) for f in fields(value)}
        return replace(value, **{name: scaled(each, factor) for name, each in numbers.items()})
    return value


@cache
def twin() -> Twin:
    """Return this process's twin."""
    return Twin()
