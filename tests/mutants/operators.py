"""What a mutant can be: one small change of one place in a module's text, found in its syntax tree.

INV-MU1  a mutant differs from its module, and compiles
INV-MU2  never changed: assertions, docstrings, annotations, decorators, logging, and the words of errors and reasons

Not here: which of them are drawn (`draw`), running tests (`scratch`).
"""

import ast
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

_SWAPPED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_LOGGERS: Final = frozenset({"log", "logger"})
_SYMMETRIC: Final = frozenset({"min", "max"})


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """The text between two places (in bytes of UTF-8) of a module is `replacement`."""

    path: str
    begin: int
    end: int
    operator: str
    replacement: str

    def applied(self, source: str) -> str:
        """Return the module's text with the change."""
        raw = source.encode()
        return (raw[: self.begin] + self.replacement.encode() + raw[self.end :]).decode()

    def was(self, source: str) -> str:
        """Return the text that is replaced."""
        return source.encode()[self.begin : self.end].decode()

    def function(self, source: str) -> str:
        """Return the dotted name of the class or function around the change, "" where there is none."""
        line = source.encode()[: self.begin].count(b"\n") + 1
        names: list[str] = []
        inside: list[ast.stmt] = ast.parse(source).body
        while inside:
            around = next((each for each in inside if _holds(each, line)), None)
            if isinstance(around, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.append(around.name)
            inside = (
                [each for each in ast.iter_child_nodes(around) if isinstance(each, ast.stmt)]
                if around
                else []
            )
        return ".".join(names)

    def diff(self, source: str) -> str:
        """Return the change as people read it."""
        before, after = source.splitlines(), self.applied(source).splitlines()
        return "\n".join(
            difflib.unified_diff(before, after, self.path, self.path, lineterm="", n=2)
        )


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of its text (INV-MU1)."""
    return [mutant for mutant in proposed(path, source) if is_one(mutant, source)]


def proposed(path: str, source: str) -> list[Mutant]:
    """Return what may be a mutant of a module, in the order of its text; `is_one` says of each whether it is."""
    starts = [0]
    for line in source.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    nodes = list(_changeable(ast.parse(source)))
    found = {
        Mutant(path, *_place(starts, node), operator, replacement)
        for node in nodes
        for operator, propose in OPERATORS.items()
        for replacement in propose(node)
    } | {
        Mutant(path, *_place(starts, node.test), "negated", _text(_not(node.test)))
        for node in nodes
        if isinstance(node, ast.If | ast.While | ast.IfExp)
    }
    return sorted(found)


def is_one(mutant: Mutant, source: str) -> bool:
    """Return whether what was proposed differs from its module, and compiles (INV-MU1)."""
    if (mutant.was(source), mutant.replacement) == ("return False", "return None"):
        return False  # who asks for the truth is told the same
    changed = mutant.applied(source)
    try:
        compiled = ast.parse(changed)
    except SyntaxError:
        return False
    return ast.dump(compiled) != ast.dump(ast.parse(source))


def _place(starts: list[int], node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None, node
    assert node.end_col_offset is not None, node
    return starts[node.lineno - 1] + node.col_offset, starts[
        node.end_lineno - 1
    ] + node.end_col_offset


def _changeable(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield what may be changed at and below `node` (INV-MU2)."""
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "bases"}:
            continue
        if isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_alone(child):
                yield from _changeable(child)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_logging(node.value)
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_logging(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return ast.unparse(node.func.value).rpartition(".")[2].strip("_").lower() in _LOGGERS


def _compare(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            ops = [*node.ops[:index], _SWAPPED[type(operator)](), *node.ops[index + 1 :]]
            yield _text(ast.Compare(node.left, ops, node.comparators))


def _and_or(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _text(ast.BoolOp(other, node.values))


def _constant(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield f"({node.value + 1})"
        yield f"({node.value - 1})"


def _negated(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.BoolOp):
        for index, value in enumerate(node.values):
            values = [*node.values[:index], _not(value), *node.values[index + 1 :]]
            yield _text(ast.BoolOp(node.op, values))
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        for generator in node.generators:
            for index, value in enumerate(generator.ifs):
                generator.ifs[index] = _not(value)
                yield _text(node)
                generator.ifs[index] = value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _text(node.operand)


def _dropped(node: ast.AST) -> Iterator[str]:
    if (
        isinstance(node, ast.AugAssign | ast.Delete | ast.Continue | ast.Break)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or (
            isinstance(node, ast.Assign)
            and all(isinstance(one, ast.Attribute | ast.Subscript) for one in node.targets)
        )
    ):
        yield "pass"


def _arguments(node: ast.AST) -> Iterator[str]:
    if (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) not in _SYMMETRIC
        and not any(isinstance(one, ast.Starred) for one in node.args)
    ):
        for index in range(len(node.args) - 1):
            args = list(node.args)
            args[index], args[index + 1] = args[index + 1], args[index]
            yield ast.unparse(ast.Call(node.func, args, node.keywords))


def _returned(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Return) and node.value is not None:
        yield "return None"
        yield f"return {ast.unparse(_not(node.value))}"


def _not_raised(node: ast.AST) -> Iterator[str]:
    # An AssertionError is raised where an assertion would stand that never holds.
    if isinstance(node, ast.Raise) and not ast.unparse(node).startswith("raise AssertionError"):
        yield "pass"


def _not(node: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), node)


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


OPERATORS: Final[dict[str, Callable[[ast.AST], Iterator[str]]]] = {
    "compare": _compare,
    "and-or": _and_or,
    "constant": _constant,
    "negated": _negated,
    "dropped": _dropped,
    "arguments": _arguments,
    "returned": _returned,
    "not-raised": _not_raised,
}
