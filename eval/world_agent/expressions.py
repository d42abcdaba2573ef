"""A small integer language for guards, writes and rules, shared by both engines.

    door.locked == false and self.holder == door.holder
    min(air - leak // 2, 900)

Numbers are whole; comparisons keep types apart (`1 == true` is false); there are no calls but min, max and abs.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from typing import Any

Scalar = bool | int | str | None
Path = tuple[str, ...]
Lookup = Callable[[Path], Scalar]

LONGEST = 500
"""Characters of one expression."""
LARGEST = 10**12
"""Bound on the size of every number that is computed."""

_CONSTANTS: dict[str, Scalar] = {"true": True, "false": False, "null": None}
_CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max, "abs": abs}
_ARITHMETIC: dict[type, tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("+", lambda a, b: a + b),
    ast.Sub: ("-", lambda a, b: a - b),
    ast.Mult: ("*", lambda a, b: a * b),
    ast.FloorDiv: ("//", lambda a, b: a // b),
    ast.Mod: ("%", lambda a, b: a % b),
}
_ORDER: dict[type, Callable[[int, int], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


class ExpressionError(ValueError):
    """An expression that is no expression, or that meets a value it cannot use; one line."""


def same(a: Any, b: Any) -> bool:
    """Equality that keeps types apart: `1` is not `true`."""
    return type(a) is type(b) and bool(a == b)


def whole(value: Scalar) -> int:
    """The value as a whole number. Raises ExpressionError for anything else, truth values included."""
    if type(value) is not int:
        raise ExpressionError(f"{value!r} is no whole number")
    if abs(value) > LARGEST:
        raise ExpressionError("a number became too large")
    return value


def _truth(value: Scalar) -> bool:
    if type(value) is not bool:
        raise ExpressionError(f"{value!r} is neither true nor false")
    return value


class Expression:
    """A parsed expression. `paths`: the dotted names that it reads, in order of appearance."""

    def __init__(self, text: str):
        if not isinstance(text, str) or not text.strip():
            raise ExpressionError("an expression is a text that is not empty")
        if len(text) > LONGEST:
            raise ExpressionError(f"an expression has at most {LONGEST} characters")
        self.text = text.strip()
        self.paths: list[Path] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.text, mode="eval")
            self._run = self._compile(tree.body)
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            if isinstance(error, ExpressionError):
                raise
            raise ExpressionError(f"{self.text!r} does not parse as an expression") from None

    def evaluate(self, lookup: Lookup) -> Scalar:
        """The value, with names resolved by `lookup`. Raises ExpressionError."""
        return self._run(lookup)

    def truth(self, lookup: Lookup) -> bool:
        """The value of a condition. Raises ExpressionError when it is neither true nor false."""
        return _truth(self._run(lookup))

    def _path(self, node: ast.expr) -> Path | None:
        if isinstance(node, ast.Name):
            return (node.id,)
        if isinstance(node, ast.Attribute):
            head = self._path(node.value)
            return None if head is None else (*head, node.attr)
        return None

    def _compile(self, node: ast.expr) -> Callable[[Lookup], Scalar]:
        path = self._path(node)
        if path is not None:
            return self._name(path)
        match node:
            case ast.Constant(value=bool() | str() as value):
                return lambda _: value
            case ast.Constant(value=int() as value):
                number = whole(value)
                return lambda _: number
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                return self._arithmetic(op, self._compile(left), self._compile(right))
            case ast.UnaryOp(ast.USub(), operand):
                inner = self._compile(operand)
                return lambda look: -whole(inner(look))
            case ast.UnaryOp(ast.Not(), operand):
                inner = self._compile(operand)
                return lambda look: not _truth(inner(look))
            case ast.BoolOp(op, values):
                parts = [self._compile(value) for value in values]
                join = all if isinstance(op, ast.And) else any
                return lambda look: join(_truth(part(look)) for part in parts)
            case ast.Compare(left, [op], [right]):
                return self._compare(op, self._compile(left), self._compile(right))
            case ast.IfExp(test, body, orelse):
                condition, yes, no = self._compile(test), self._compile(body), self._compile(orelse)
                return lambda look: yes(look) if _truth(condition(look)) else no(look)
            case ast.Call(ast.Name(name), args, []) if name in _CALLS and args:
                if (name == "abs" and len(args) != 1) or (name != "abs" and len(args) < 2):
                    raise ExpressionError(f"{self.text!r}: {name} with {len(args)} values")
                call, inputs = _CALLS[name], [self._compile(arg) for arg in args]
                return lambda look: call(*(whole(each(look)) for each in inputs))
        raise ExpressionError(
            f"{self.text!r}: only names, whole numbers, quoted texts, + - * // %, comparisons, and, or, not, "
            "if-else, min, max, abs"
        )

    def _name(self, path: Path) -> Callable[[Lookup], Scalar]:
        if len(path) == 1 and path[0] in _CONSTANTS:
            constant = _CONSTANTS[path[0]]
            return lambda _: constant
        self.paths.append(path)
        return lambda look: look(path)

    def _arithmetic(
        self, op: ast.operator, left: Callable[[Lookup], Scalar], right: Callable[[Lookup], Scalar]
    ) -> Callable[[Lookup], Scalar]:
        sign, compute = _ARITHMETIC[type(op)]

        def run(look: Lookup) -> int:
            a, b = whole(left(look)), whole(right(look))
            if sign in ("//", "%") and b == 0:
                raise ExpressionError(f"{self.text!r} divides by zero")
            return whole(compute(a, b))

        return run

    def _compare(
        self, op: ast.cmpop, left: Callable[[Lookup], Scalar], right: Callable[[Lookup], Scalar]
    ) -> Callable[[Lookup], Scalar]:
        if isinstance(op, ast.Eq | ast.NotEq):
            wanted = isinstance(op, ast.Eq)
            return lambda look: same(left(look), right(look)) is wanted
        if type(op) not in _ORDER:
            raise ExpressionError(f"{self.text!r}: comparisons are == != < <= > >=")
        compute = _ORDER[type(op)]
        return lambda look: compute(whole(left(look)), whole(right(look)))
