"""How long clients went without an acknowledged write, by fault and role: pure sums over the times of acknowledgements.

INV-CNF1  a pause is counted from the last acknowledgement before a fault, until the region was whole again and a while longer

Not here: what is acknowledged (`clients`), what happens (`play`).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

ANYBODY = "anybody"


@dataclass(frozen=True, slots=True)
class Played:
    """One fault as it was played. `kind`: what and to whom; `whole_s`: when all was in sync again; times monotonic."""

    kind: str
    began_s: float
    whole_s: float
    ended_s: float
    errors: Mapping[str, int]


def longest_pause_s(acked_s: Sequence[float], began_s: float, ended_s: float) -> float:
    """Return the longest time without an acknowledgement that ends between these two; `acked_s` ascends (INV-CNF1)."""
    before = max((at for at in acked_s if at < began_s), default=began_s)
    inside = [at for at in acked_s if began_s <= at < ended_s]
    return max(b - a for a, b in pairwise([before, *inside, ended_s]))


def pauses_s(acked_s: Mapping[str, Sequence[float]], played: Played) -> dict[str, float]:
    """Return the longest pause of the worst client of each class (`class-number`), and that of all together."""
    found: dict[str, float] = defaultdict(float)
    for client, times in acked_s.items():
        kind = client.split("-")[0]
        pause_s = longest_pause_s(times, played.began_s, played.ended_s)
        found[kind] = max(found[kind], pause_s)
    merged = sorted(at for times in acked_s.values() for at in times)
    found[ANYBODY] = longest_pause_s(merged, played.began_s, played.ended_s)
    return dict(found)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of them does not exceed; 0 for none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def table(acked_s: Mapping[str, Sequence[float]], played: Sequence[Played]) -> list[str]:
    """Return lines that say per kind: pauses, time until in sync, errors."""
    by_kind: dict[str, list[Played]] = defaultdict(list)
    for each in played:
        by_kind[each.kind].append(each)
    lines = []
    for kind, rounds in sorted(by_kind.items()):
        found = [pauses_s(acked_s, each) for each in rounds]
        errors: Counter[str] = Counter()
        for each in rounds:
            errors.update(each.errors)
        lines.append(f"{kind} ({len(rounds)} rounds)")
        lines += [
            f"    {who:8} without an acknowledged write: {_spread([each[who] for each in found])}"
            for who in sorted({name for each in found for name in each})
        ]
        whole = [each.whole_s - each.began_s for each in rounds]
        lines.append(f"    all in sync again after:           {_spread(whole)}")
        named = ", ".join(f"{name} {count}" for name, count in sorted(errors.items()))
        lines.append(f"    errors that reached an application: {named or 'none'}")
    return lines


def _spread(values: Sequence[float]) -> str:
    return f"median {quantile(values, 0.5):.2f} s, p99 {quantile(values, 0.99):.2f} s, max {max(values):.2f} s"
