"""Diagrams of the documentation that are made from the tables of transitions that the code runs by.

Not here: where they stand (`generated`).
"""

from collections.abc import Iterable, Mapping, Set
from enum import Enum
from typing import Final, TypeVar

from geo_replicator import cut_rounds, failover
from geo_replicator.failover import Phase
from geo_replicator.link import core as link
from region_broker.groups.classic import states as groups
from txn_coordinator.states import VALID_PREVIOUS

_State = TypeVar("_State", bound=Enum)
ANY_PHASE_MIN: Final = 5
"""An event that leads to one phase from so many others is drawn once, from a state that stands for them."""


def transaction_states(_old: str) -> str:
    """Return the states of a transactional id, and what may follow what."""
    edges = [
        (previous.name, target.name)
        for target, before in VALID_PREVIOUS.items()
        for previous in sorted(before)
    ]
    return _state_diagram("EMPTY", edges, last="DEAD")


def failover_phases(_old: str) -> str:
    """Return the phases of a region, and the events of its journal that lead from one to another."""
    whole = Phase.UNBORN.name
    named: dict[tuple[str, str], list[str]] = {}
    from_most: dict[tuple[str, str], list[str]] = {}
    for (event, before), after in failover.TRANSITIONS.items():
        alike = [
            phase
            for (each, phase), to in failover.TRANSITIONS.items()
            if (each, to) == (event, after)
        ]
        if before is after:
            continue
        if len(alike) >= ANY_PHASE_MIN:
            found = from_most.setdefault(("any_but_" + whole, after.name), [])
            if event.__name__ not in found:
                found.append(event.__name__)
        else:
            named.setdefault((before.name, after.name), []).append(event.__name__)
    edges = [(*edge, ", ".join(events)) for edge, events in (named | from_most).items()]
    return _state_diagram(whole, edges)


def link_states(_old: str) -> str:
    """Return the states of a mirror's link; that each may break is drawn once."""
    edges = [
        (before.name, after.name)
        for before, after in _pairs(link.LEGAL)
        if after is not link.LinkState.PAUSED
    ]
    return _state_diagram(
        link.LinkState.STOPPED.name, [*edges, ("any", link.LinkState.PAUSED.name)]
    )


def round_phases(_old: str) -> str:
    """Return the phases of a cut leader's rounds."""
    edges = [(before.name, after.name) for before, after in _pairs(cut_rounds.LEGAL)]
    return _state_diagram(cut_rounds.RoundPhase.NEW.name, edges)


def group_states(_old: str) -> str:
    """Return the states of a classic group."""
    edges = [(before.name, after.name) for before, after in _pairs(groups.LEGAL)]
    return _state_diagram("EMPTY", edges, last="DEAD")


def _pairs(legal: Mapping[_State, Set[_State]]) -> Iterable[tuple[_State, _State]]:
    order = list(legal)
    for before, targets in legal.items():
        yield from ((before, after) for after in sorted(targets, key=order.index))


def _state_diagram(first: str, edges: Iterable[tuple[str, ...]], *, last: str = "") -> str:
    lines = [
        f"    {before} --> {after}" + "".join(f" : {label}" for label in labels)
        for before, after, *labels in edges
    ]
    ends = [f"    {last} --> [*]"] if last else []
    return "\n".join(
        ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, *ends, "```", ""]
    )
