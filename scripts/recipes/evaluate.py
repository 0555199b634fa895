"""Evaluates the part of Python that recipes are written in, from its syntax tree.

None of the repository's code runs: the few built-in functions that recipes call are ours
(builtins.py), and names from outside the repository stay opaque unless the caller gives them a
meaning. What depends on an opaque value is unknown, and an unknown condition counts as false.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from scripts.recipes.builtins import BUILTINS, PLAIN, of_type
from scripts.recipes.operations import OPAQUE, binary, compare, is_unknown, items, truth
from scripts.recipes.trees import Tree
from scripts.recipes.values import (
    BoundMethod,
    ClassValue,
    External,
    Frame,
    FunctionValue,
    Lazy,
    ModuleValue,
    Raised,
    Record,
    Returned,
    Unsupported,
    unknown,
)

__all__ = ["Evaluator"]

_IDLE = (ast.Assert, ast.Delete, ast.Global, ast.Nonlocal, ast.Pass)


class Evaluator:
    """Evaluates modules of a tree; each is read once."""

    def __init__(
        self, tree: Tree, *, roots: Sequence[str], externals: Mapping[str, Any] | None = None
    ) -> None:
        """`roots`: folders that modules are looked up in; `externals`: meanings of names by their
        full path (`os.path.exists`), which go before the repository's own."""
        self.externals = dict(externals or {})
        self._tree = tree
        self._roots = roots
        self._modules: dict[str, ModuleValue | None] = {}

    # --- modules and names ---
    def module(self, name: str) -> ModuleValue | None:
        """Return the module called `name`, None where the tree has none."""
        if name not in self._modules:
            self._modules[name] = None
            for root in self._roots:
                stem = root + name.replace(".", "/")
                for path, package in (
                    (stem + ".py", name.rpartition(".")[0]),
                    (stem + "/__init__.py", name),
                ):
                    if path in self._tree and self._modules[name] is None:
                        self._modules[name] = self._read(name, package=package, path=path)
        return self._modules[name]

    def _read(self, name: str, *, package: str, path: str) -> ModuleValue:
        module = ModuleValue(name=name, package=package)
        self._modules[name] = module
        frame = Frame(module=module, values=module.values)
        for statement in _parsed(self._tree[path]):
            try:
                self.execute(statement, frame)
            except (Unsupported, Raised):
                continue
        return module

    def member(self, module: str, name: str) -> Any:
        """Return what `from module import name` binds."""
        full = f"{module}.{name}"
        if full in self.externals:
            return External(full)
        held = self.module(module)
        if held is not None and name in held.values:
            return self.resolve(held.values[name])
        return self.module(full) or External(full)

    def resolve(self, value: Any) -> Any:
        """Follow an import to its value."""
        if isinstance(value, Lazy):
            if value.name is None:
                return self.module(value.module) or External(value.module)
            return self.member(value.module, value.name)
        return value

    def lookup(self, name: str, frame: Frame) -> Any:
        """Return the value of a name."""
        place: Frame | None = frame
        while place is not None:
            if name in place.values:
                return self.resolve(place.values[name])
            place = place.parent
        if name in frame.module.values:
            return self.resolve(frame.module.values[name])
        return BUILTINS.get(name, External(name))

    # --- statements ---
    def run(self, statements: Sequence[ast.stmt], frame: Frame) -> None:
        """Execute a block."""
        for statement in statements:
            self.execute(statement, frame)

    def execute(self, statement: ast.stmt, frame: Frame) -> None:
        """Execute a statement."""
        handler = getattr(self, f"_do_{type(statement).__name__}", None)
        if handler is not None:
            handler(statement, frame)
        elif not isinstance(statement, _IDLE):
            raise Unsupported(ast.dump(statement)[:80])

    def _do_Import(self, node: ast.Import, frame: Frame) -> None:
        for alias in node.names:
            if alias.asname:
                frame.values[alias.asname] = Lazy(alias.name, None)
            else:
                top = alias.name.partition(".")[0]
                frame.values[top] = External(top)

    def _do_ImportFrom(self, node: ast.ImportFrom, frame: Frame) -> None:
        source = node.module or ""
        if node.level:
            parts = frame.module.package.split(".")
            kept = parts[: len(parts) - node.level + 1]
            source = ".".join([*kept, *([source] if source else [])])
        for alias in node.names:
            if alias.name == "*":
                held = self.module(source)
                for name, value in held.values.items() if held else ():
                    if not name.startswith("_"):
                        frame.values[name] = value
            else:
                frame.values[alias.asname or alias.name] = Lazy(source, alias.name)

    def _do_FunctionDef(self, node: ast.FunctionDef, frame: Frame) -> None:
        frame.values[node.name] = FunctionValue(node=node, frame=frame)

    def _do_ClassDef(self, node: ast.ClassDef, frame: Frame) -> None:
        frame.values[node.name] = ClassValue(node=node, frame=frame)

    def _do_Expr(self, node: ast.Expr, frame: Frame) -> None:
        self.value(node.value, frame)

    def _do_Assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self.value(node.value, frame)
        for target in node.targets:
            self._put(target, value, frame)

    def _do_AnnAssign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self._put(node.target, self.value(node.value, frame), frame)

    def _do_AugAssign(self, node: ast.AugAssign, frame: Frame) -> None:
        before = self.value(_as_load(node.target), frame)
        change = self.value(node.value, frame)
        self._put(node.target, binary(node.op, before, change), frame)

    def _do_If(self, node: ast.If, frame: Frame) -> None:
        self.run(node.body if self.true(node.test, frame) else node.orelse, frame)

    def _do_For(self, node: ast.For, frame: Frame) -> None:
        for item in items(self.value(node.iter, frame)):
            self._put(node.target, item, frame)
            self.run(node.body, frame)

    def _do_With(self, node: ast.With, frame: Frame) -> None:
        self.run(node.body, frame)

    def _do_Try(self, node: ast.Try, frame: Frame) -> None:
        try:
            self.run(node.body, frame)
        except Raised:
            if not node.handlers:
                raise
            self.run(node.handlers[0].body, frame)
        else:
            self.run(node.orelse, frame)
        self.run(node.finalbody, frame)

    def _do_Raise(self, node: ast.Raise, frame: Frame) -> None:
        raise Raised(ast.unparse(node)[:200])

    def _do_Return(self, node: ast.Return, frame: Frame) -> None:
        raise Returned(None if node.value is None else self.value(node.value, frame))

    def _put(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """Bind a value to a target of an assignment."""
        if isinstance(target, ast.Name):
            frame.values[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, frame)
            if isinstance(owner, Record):
                owner.known[target.attr] = value
        elif isinstance(target, ast.Subscript):
            held = self.value(target.value, frame)
            if isinstance(held, dict | list):
                held[self.value(target.slice, frame)] = value
        elif isinstance(target, ast.Tuple):
            parts = items(value) or [unknown("part")] * len(target.elts)
            for one, part in zip(target.elts, parts, strict=True):
                self._put(one, part, frame)
        else:
            raise Unsupported(ast.dump(target)[:80])

    # --- expressions ---
    def true(self, node: ast.expr, frame: Frame) -> bool:
        """Return whether a condition holds; an unknown one does not."""
        return truth(self.value(node, frame))

    def value(self, node: ast.expr, frame: Frame) -> Any:
        """Return the value of an expression."""
        handler = getattr(self, f"_of_{type(node).__name__}", None)
        if handler is None:
            raise Unsupported(ast.dump(node)[:80])
        return handler(node, frame)

    def _of_Constant(self, node: ast.Constant, frame: Frame) -> Any:
        return node.value

    def _of_Name(self, node: ast.Name, frame: Frame) -> Any:
        return self.lookup(node.id, frame)

    def _of_List(self, node: ast.List, frame: Frame) -> list[Any]:
        return self._spread(node.elts, frame)

    def _of_Tuple(self, node: ast.Tuple, frame: Frame) -> tuple[Any, ...]:
        return tuple(self._spread(node.elts, frame))

    def _of_Set(self, node: ast.Set, frame: Frame) -> set[Any]:
        return set(self._spread(node.elts, frame))

    def _of_Dict(self, node: ast.Dict, frame: Frame) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            held = self.value(value, frame)
            if key is not None:
                found[self.value(key, frame)] = held
            elif isinstance(held, dict):
                found.update(held)
        return found

    def _spread(self, nodes: Sequence[ast.expr], frame: Frame) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found.extend(items(self.value(node.value, frame)))
            else:
                found.append(self.value(node, frame))
        return found

    def _of_JoinedStr(self, node: ast.JoinedStr, frame: Frame) -> Any:
        words: list[str] = []
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            held = self.value(inner, frame)
            if isinstance(held, OPAQUE):
                return unknown("text")
            words.append(str(held))
        return "".join(words)

    def _of_Lambda(self, node: ast.Lambda, frame: Frame) -> FunctionValue:
        return FunctionValue(node=node, frame=frame)

    def _of_IfExp(self, node: ast.IfExp, frame: Frame) -> Any:
        return self.value(node.body if self.true(node.test, frame) else node.orelse, frame)

    def _of_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Any:
        found: Any = None
        for part in node.values:
            found = self.value(part, frame)
            if truth(found) == isinstance(node.op, ast.Or):
                return found
        return found

    def _of_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Any:
        held = self.value(node.operand, frame)
        if is_unknown(held):
            return unknown("operation")
        if isinstance(node.op, ast.Not):
            return not truth(held)
        return -held if isinstance(node.op, ast.USub) else +held

    def _of_BinOp(self, node: ast.BinOp, frame: Frame) -> Any:
        return binary(node.op, self.value(node.left, frame), self.value(node.right, frame))

    def _of_Compare(self, node: ast.Compare, frame: Frame) -> Any:
        left = self.value(node.left, frame)
        for op, after in zip(node.ops, node.comparators, strict=True):
            right = self.value(after, frame)
            held = compare(op, left, right)
            if is_unknown(held) or not held:
                return held
            left = right
        return True

    def _of_Subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        held = self.value(node.value, frame)
        if isinstance(node.slice, ast.Slice):
            ends = (node.slice.lower, node.slice.upper, node.slice.step)
            index: Any = slice(*(None if end is None else self.value(end, frame) for end in ends))
        else:
            index = self.value(node.slice, frame)
        if isinstance(held, OPAQUE) or isinstance(index, OPAQUE):
            return unknown("item")
        try:
            return held[index]
        except (KeyError, IndexError) as error:
            raise Raised(repr(error)) from None

    def _of_ListComp(self, node: ast.ListComp, frame: Frame) -> list[Any]:
        found: list[Any] = []
        self._comprehend(node.generators, frame, lambda at: found.append(self.value(node.elt, at)))
        return found

    def _of_GeneratorExp(self, node: ast.GeneratorExp, frame: Frame) -> list[Any]:
        return self._of_ListComp(ast.ListComp(elt=node.elt, generators=node.generators), frame)

    def _of_SetComp(self, node: ast.SetComp, frame: Frame) -> set[Any]:
        inner = ast.ListComp(elt=node.elt, generators=node.generators)
        return set(self._of_ListComp(inner, frame))

    def _of_DictComp(self, node: ast.DictComp, frame: Frame) -> dict[Any, Any]:
        found: dict[Any, Any] = {}

        def add(at: Frame) -> None:
            found[self.value(node.key, at)] = self.value(node.value, at)

        self._comprehend(node.generators, frame, add)
        return found

    def _comprehend(
        self, loops: Sequence[ast.comprehension], frame: Frame, act: Callable[[Frame], None]
    ) -> None:
        """Call `act` for each round of a comprehension's loops."""
        if not loops:
            act(frame)
            return
        inner = Frame(module=frame.module, parent=frame)
        for item in items(self.value(loops[0].iter, frame)):
            self._put(loops[0].target, item, inner)
            if all(self.true(test, inner) for test in loops[0].ifs):
                self._comprehend(loops[1:], inner, act)

    # --- attributes and calls ---
    def _of_Attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        return self.attribute(self.value(node.value, frame), node.attr)

    def attribute(self, owner: Any, name: str) -> Any:
        """Return an attribute; of a Record, one that was never set is unknown from then on."""
        if isinstance(owner, External | ModuleValue):
            return self.member(owner.name, name)
        if isinstance(owner, ClassValue):
            return External(f"{owner.node.name}.{name}")
        if isinstance(owner, Record):
            if name not in owner.known:
                method = self._method(owner.of_class, name) if owner.of_class else None
                if method is not None:
                    return self._bind(method, owner)
                owner.known[name] = unknown(f"{owner.kind}.{name}")
            return owner.known[name]
        if isinstance(owner, PLAIN) and not name.startswith("_"):
            return getattr(owner, name)
        return unknown(name)

    def _bind(self, method: FunctionValue, owner: Record) -> Any:
        assert isinstance(method.node, ast.FunctionDef), method.node
        decorators = {ast.unparse(node) for node in method.node.decorator_list}
        bound = BoundMethod(function=method, owner=owner)
        return self.call(bound) if "property" in decorators else bound

    def _method(self, of_class: ClassValue, name: str) -> FunctionValue | None:
        for place in self._lineage(of_class):
            for node in place.node.body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return FunctionValue(node=node, frame=place.frame)
        return None

    def _lineage(self, of_class: ClassValue) -> list[ClassValue]:
        """The class and those of its bases that the repository has, nearest first."""
        found = [of_class]
        for node in of_class.node.bases:
            base = self.value(node, of_class.frame)
            if isinstance(base, ClassValue):
                found += self._lineage(base)
        return found

    def _of_Call(self, node: ast.Call, frame: Frame) -> Any:
        target = self.value(node.func, frame)
        given = self._spread(node.args, frame)
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            held = self.value(keyword.value, frame)
            if keyword.arg is not None:
                named[keyword.arg] = held
            elif isinstance(held, dict):
                named.update(held)
        return self.call(target, *given, **named)

    def call(self, target: Any, /, *given: Any, **named: Any) -> Any:
        """Return what a call answers."""
        if isinstance(target, FunctionValue):
            return self._call_function(target, given, named)
        if isinstance(target, BoundMethod):
            return self._call_function(target.function, (target.owner, *given), named)
        if isinstance(target, ClassValue):
            return self._construct(target, given, named)
        if isinstance(target, External):
            if target.name in self.externals:
                return self.externals[target.name](self, *given, **named)
            return Record(kind=f"?{target.name}", known=dict(named))
        if isinstance(target, Record) or not callable(target):
            return unknown("call")
        if getattr(target, "takes_evaluator", False):
            return target(self, *given, **named)
        if any(is_unknown(one) for one in (*given, *named.values())) and not of_type(target, list):
            return unknown("call")
        try:
            return target(*given, **named)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Raised(repr(error)) from None

    def _call_function(
        self, function: FunctionValue, given: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        frame = Frame(module=function.frame.module, parent=function.frame)
        self._fill(function, given, named, frame)
        if isinstance(function.node, ast.Lambda):
            return self.value(function.node.body, frame)
        try:
            self.run(function.node.body, frame)
        except Returned as answer:
            return answer.value
        return None

    def _fill(
        self, function: FunctionValue, given: Sequence[Any], named: Mapping[str, Any], frame: Frame
    ) -> None:
        """Bind arguments to a function's parameters."""
        declared = function.node.args
        places = [one.arg for one in (*declared.posonlyargs, *declared.args)]
        names = [*places, *(one.arg for one in declared.kwonlyargs)]
        defaults = dict(zip(reversed(places), reversed(declared.defaults), strict=False))
        for one, default in zip(declared.kwonlyargs, declared.kw_defaults, strict=True):
            if default is not None:
                defaults[one.arg] = default
        for name, node in defaults.items():
            frame.values[name] = self.value(node, function.frame)
        frame.values.update(zip(places, given, strict=False))
        rest = {name: value for name, value in named.items() if name not in names}
        frame.values.update({name: value for name, value in named.items() if name in names})
        if declared.vararg:
            frame.values[declared.vararg.arg] = tuple(given[len(places) :])
        if declared.kwarg:
            frame.values[declared.kwarg.arg] = rest

    def _construct(
        self, of_class: ClassValue, given: Sequence[Any], named: Mapping[str, Any]
    ) -> Record:
        """Make an object of a dataclass: its fields' defaults, then what is given."""
        made = Record(kind=of_class.node.name, of_class=of_class)
        order: list[str] = []
        for place in reversed(self._lineage(of_class)):
            for node in place.node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    order.append(node.target.id)
                    if node.value is not None:
                        made.known[node.target.id] = self._default(node.value, place.frame)
        made.known.update(zip(order, given, strict=False))
        made.known.update(named)
        return made

    def _default(self, node: ast.expr, frame: Frame) -> Any:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("field"):
            for keyword in node.keywords:
                held = self.value(keyword.value, frame)
                if keyword.arg in ("default", "default_factory"):
                    return held if keyword.arg == "default" else self.call(held)
        try:
            return self.value(node, frame)
        except (Unsupported, Raised):
            return unknown(ast.unparse(node))


@cache
def _parsed(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _as_load(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body
