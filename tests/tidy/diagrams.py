"""Diagrams of the documentation that are made from the tables of transitions that the code runs by.

Not here: where they stand (`generated`).
"""

from collections.abc import Iterable

from txn_coordinator.states import VALID_PREVIOUS


def transaction_states(_old: str) -> str:
    """Return the states of a transactional id, and what may follow what."""
    edges = [
        (previous.name, target.name)
        for target, before in VALID_PREVIOUS.items()
        for previous in sorted(before)
    ]
    return _state_diagram("EMPTY", edges, last="DEAD")


def _state_diagram(first: str, edges: Iterable[tuple[str, str]], *, last: str) -> str:
    lines = [f"    {before} --> {after}" for before, after in edges]
    return "\n".join(
        ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, f"    {last} --> [*]", "```", ""]
    )  # fmt: skip
