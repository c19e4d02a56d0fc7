"""What a drill of regions measured, round by round, and its summary: pure sums.

Not here: what is wrong (`judge`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.nodes.figures import quantile


@dataclass(frozen=True, slots=True)
class Played:
    """One round. Times in seconds: from when the primary region was lost until the other one acted, and until a client's next commit
    was answered; None where no region was lost. `pause_s`: the longest time without any answered commit.
    """

    number: int
    kind: str
    what: str
    acting_after_s: float | None
    commit_after_s: float | None
    pause_s: float
    whole_after_s: float
    errors: Mapping[str, int]


def spread_ms(values: Sequence[float]) -> dict[str, int]:
    """Return median, p99 and longest of times in seconds, as milliseconds; empty for none."""
    if not values:
        return {}
    return {
        "median_ms": round(1000 * quantile(values, 0.5)),
        "p99_ms": round(1000 * quantile(values, 0.99)),
        "longest_ms": round(1000 * max(values)),
    }


def summary(played: Sequence[Played]) -> dict[str, Any]:
    """Return how long what took, over all rounds and by what was done."""
    by_what: dict[str, list[Played]] = defaultdict(list)
    for each in played:
        by_what[each.what].append(each)
    errors: dict[str, int] = defaultdict(int)
    for each in played:
        for name, count in each.errors.items():
            errors[name] += count
    return {
        **_times(played),
        "errors": dict(sorted(errors.items())),
        "by_case": {
            what: {"rounds": len(each), **_times(each)} for what, each in sorted(by_what.items())
        },
    }


def _times(played: Sequence[Played]) -> dict[str, Any]:
    return {
        "acting_after": spread_ms(
            [p.acting_after_s for p in played if p.acting_after_s is not None]
        ),
        "commit_after": spread_ms(
            [p.commit_after_s for p in played if p.commit_after_s is not None]
        ),
        "pause": spread_ms([p.pause_s for p in played]),
        "whole_after": spread_ms([p.whole_after_s for p in played]),
    }


def lines(told: Mapping[str, Any]) -> list[str]:
    """Return a summary for people."""
    names = ("acting_after", "commit_after", "pause", "whole_after")
    found = [f"{name.replace('_', ' '):13} {_spread(told[name])}" for name in names]
    for what, each in told["by_case"].items():
        found.append(f"{what} ({each['rounds']} rounds)")
        found += [
            f"    {name.replace('_', ' '):13} {_spread(each[name])}" for name in names if each[name]
        ]
    errors = ", ".join(f"{name} {count}" for name, count in told["errors"].items())
    return [*found, f"errors that reached an application: {errors or 'none'}"]


def _spread(found: Mapping[str, int]) -> str:
    if not found:
        return "-"
    return f"median {found['median_ms']} ms, p99 {found['p99_ms']} ms, longest {found['longest_ms']} ms"
