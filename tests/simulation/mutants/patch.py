"""Edits of the running product: a text is replaced in the source of one named function, for a while.

INV-TPA1  an edit is made in the function that it names, where its old text stands exactly once, or it fails loudly
Whoever holds the function has the edited one meanwhile, and the old one afterwards: only its code is exchanged.
"""

import ast
import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any


class DoesNotApply(Exception):
    """The product is not what the edit was written for."""


@dataclass(frozen=True, slots=True)
class Edit:
    """`where`: module and function, as in ``idempotency.window:BatchWindow.find``."""

    where: str
    old: str
    new: str


@contextlib.contextmanager
def edited(edits: Sequence[Edit]) -> Iterator[None]:
    """Run with these edits; raises DoesNotApply."""
    kept: list[tuple[FunctionType, CodeType]] = []
    try:
        for where in dict.fromkeys(edit.where for edit in edits):
            function = function_at(where)
            code = _code_with([each for each in edits if each.where == where], function)
            kept.append((function, function.__code__))
            function.__code__ = code
        yield
    finally:
        for function, code in reversed(kept):
            function.__code__ = code


def function_at(where: str) -> FunctionType:
    """Return the function that `where` names, also behind a property, a class method or a decorator."""
    module_name, _, path = where.partition(":")
    found: Any = importlib.import_module(module_name)
    try:
        for part in path.split("."):
            found = inspect.getattr_static(found, part)
    except AttributeError as error:
        raise DoesNotApply(f"there is no {where}") from error
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise DoesNotApply(f"{where} is no function")
    return found


def _code_with(edits: Sequence[Edit], function: FunctionType) -> CodeType:
    text = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        count = text.count(edit.old)
        if count != 1:
            raise DoesNotApply(f"{edit.where} has {count} times, and not once: {edit.old!r}")
        text = text.replace(edit.old, edit.new)
    tree = ast.parse(text)
    [definition] = tree.body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    definition.decorator_list = []
    # A method may speak of its class: `super()` and `__class__` need a cell around it.
    names = function.__code__.co_freevars
    holder = ast.parse(f"def holder():\n    {' = '.join([*names, 'None'])}\n")
    outer = holder.body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body.append(definition)
    compiled = compile(ast.fix_missing_locations(holder), function.__code__.co_filename, "exec")
    return _inner(compiled, function)


def _inner(compiled: CodeType, function: FunctionType) -> CodeType:
    [holder] = [each for each in compiled.co_consts if isinstance(each, CodeType)]
    for each in holder.co_consts:
        if isinstance(each, CodeType) and each.co_name == function.__name__:
            if each.co_freevars != function.__code__.co_freevars:
                raise DoesNotApply(f"{function.__qualname__} closes over other names than before")
            return each
    raise DoesNotApply(f"{function.__qualname__} is lost")
