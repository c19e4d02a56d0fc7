"""Numbers with types of their own: where a name says producer id, epoch, sequence number or round, its type says it too."""

import ast
import re
from collections.abc import Iterator
from typing import Final

import pytest

from idempotency import identity
from tests.tidy.tree import PACKAGES, code_files, shown, tree_of

# The names of Kafka's group epochs (`member_epoch`, `group_epoch`, ...) are not among them: nothing else is near them.
TYPES: Final = {
    "ProducerId": r"(\w+_)?producer_id",
    "ProducerEpoch": r"(\w+_)?producer_epoch|retry_epoch|marker_epoch|ended_from_epoch",
    "LeaderEpoch": r"(\w+_)?leader_epoch(_last)?|written_epoch",
    "RegionEpoch": r"(\w+_)?region_epoch|(lineage|promised|acting|abandoned)_epoch|highest_epoch_known",
    "CoordinatorEpoch": r"coordinator_epoch",
    "SequenceNumber": r"(\w+_)?sequence",
    "Round": r"(\w+_)?round_?|stamp|below_stamp|stamp_at_least",
}
AROUND_INT: Final = frozenset({"int", "None", "Final", "Optional", "ClassVar"})


def type_of(name: str) -> str | None:
    """Return the type that a value of this name has, None for all others."""
    own = name.rpartition(".")[2].lstrip("_")
    return next((kind for kind, names in TYPES.items() if re.fullmatch(names, own)), None)


def bare_numbers(tree: ast.Module) -> Iterator[str]:
    """Yield each parameter, field and result that is a bare int under a name of `TYPES`."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as annotation):
                pass
            case ast.AnnAssign(target=target, annotation=annotation):
                name = ast.unparse(target)
            case ast.FunctionDef(name=name, returns=ast.expr() as annotation):
                pass
            case ast.AsyncFunctionDef(name=name, returns=ast.expr() as annotation):
                pass
            case _:
                continue
        if is_bare(annotation) and (kind := type_of(name)):
            yield f"{node.lineno}: {name} is a {kind}"


def is_bare(annotation: ast.expr) -> bool:
    """Return whether nothing but an int is said, perhaps as a text, or beside None."""
    words = set(re.findall(r"\w+", ast.unparse(annotation)))
    return "int" in words and words <= AROUND_INT


def test_a_number_that_could_be_mixed_up_has_its_own_type() -> None:
    bare = [
        f"{shown(path)}:{found}"
        for path in code_files(*PACKAGES)
        for found in bare_numbers(tree_of(path))
    ]
    assert not bare, (
        "take the type from idempotency.identity, and give it where the value is decoded"
    )


def test_the_types_are_those_of_the_kernel() -> None:
    assert all(hasattr(identity, kind) for kind in TYPES)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def fence(producer_id: int) -> None: ...", ["1: producer_id is a ProducerId"]),
        ("class Batch:\n    base_sequence: int = -1", ["2: base_sequence is a SequenceNumber"]),
        ("async def leader_epoch(self) -> int: ...", ["1: leader_epoch is a LeaderEpoch"]),
        ("self._region_epoch: int | None = None", ["1: self._region_epoch is a RegionEpoch"]),
        ("def end(marker_epoch: 'int') -> None: ...", ["1: marker_epoch is a ProducerEpoch"]),
        ("def begin(stamp: None | int) -> None: ...", ["1: stamp is a Round"]),
        ("def ask(member_epoch: int, stamp: Round, offset: int) -> int: ...", []),
    ],
)
def test_a_bare_number_is_found(code: str, found: list[str]) -> None:
    assert list(bare_numbers(ast.parse(code))) == found
