"""The report that people read."""

from geo_replicator.reconciliation.findings import Finding, Kind, Side
from geo_replicator.reconciliation.report import _finding_html


def test_a_finding_names_its_place_where_it_has_one() -> None:
    somewhere = Finding(kind=next(iter(Kind)), side=next(iter(Side)), topic="orders", partition=0)
    assert "<td>orders-0<td class=n><td>" in _finding_html(somewhere)
    known = Finding(
        kind=somewhere.kind, side=somewhere.side, topic="orders", partition=-1,
        first_offset=0, last_offset=4,
    )  # fmt: skip
    assert "<td>orders<td class=n>0..4<td>" in _finding_html(known)
