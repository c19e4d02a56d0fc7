"""Who alone knows what clients saw: what a stage must ask before it takes a region's folder away.

INV-SHS3  no folder is emptied or wound back that alone knows what clients saw: nothing can be shown by it. So another region
          must have a folder that is whole, or has become so by mirroring; one that acts is not emptied while another acts
          out of its reach

Not here: whether a copy is older than what others know (the stages).
"""

from collections.abc import Callable, Iterable, Mapping

from chaos.judges.operator import View, Views

Stood = tuple[int, int]


class Knowledge:
    """Which regions acted when they were seen last, and whose folders were damaged and are not whole again."""

    def __init__(self) -> None:
        """Begin with whole folders, and nobody seen."""
        self.damaged: set[str] = set()
        self._acted: set[str] = set()
        self._seen: dict[str, Stood] = {}
        self._seen_at_damage: dict[str, Mapping[str, Stood]] = {}

    def note_damage(self, name: str) -> None:
        """Take note that a folder was emptied or wound back: it knows less than it did."""
        self.damaged.add(name)
        self._seen_at_damage[name] = dict(self._seen)

    def note_who_acts(self, views: Mapping[str, View | None]) -> None:
        """Take what regions say of themselves; who does not answer (None) is left as it was seen last."""
        for name, view in views.items():
            if view is not None:
                (self._acted.add if view["acting"] else self._acted.discard)(name)

    def others_know(
        self, name: str, views: Views, look: Callable[[str], View | None], *, alone: bool
    ) -> bool:
        """Return whether another region, up and whole, shows tidemarks, and none acts out of reach (INV-SHS3).

        `look` asks a region anew; `alone`: `name` can talk to no other one.
        """
        self.note_who_acts(views)
        self._seen |= {each: _stood(view) for each, view in views.items()}
        self._note_who_is_whole(views, look)
        if alone and name in self._acted and self._acted & (views.keys() - {name}):
            return False
        return any(
            view["phase"] != "unborn" and view["tidemark"]["number"] > 0
            for other, view in views.items()
            if other != name and other not in self.damaged
        )

    def _note_who_is_whole(self, views: Views, look: Callable[[str], View | None]) -> None:
        """A region that acts and those that have reached what it published know the same.

        One that acts with a damaged folder publishes numbers again that a mirror has reached long ago: nothing is known
        before that mirror has reached another tidemark since.
        """
        for name, acting in views.items():
            if acting["acting"] and acting["tidemark"]["number"] > 0:
                alike = {name, *_mirrors_of(acting, (o for o in views if o != name), look)}
                if name in self.damaged:
                    before = self._seen_at_damage[name]
                    still = {o for o, stood in before.items() if _stood(views.get(o)) == stood}
                    alike -= still - {name}
                if alike - self.damaged:
                    self.damaged -= alike


def _stood(view: View | None) -> Stood:
    """Return the tidemark that a region shows: (region epoch, number)."""
    mark = {} if view is None else view["tidemark"]
    return mark.get("region_epoch", 0), mark.get("number", 0)


def _mirrors_of(
    acting: View, others: Iterable[str], look: Callable[[str], View | None]
) -> Iterable[str]:
    mark = acting["tidemark"]
    for other in others:
        view = look(other)
        if view is not None and view["role"] == "mirror":
            reached = view["tidemark"]
            same_epoch = reached["region_epoch"] == mark["region_epoch"]
            if same_epoch and reached["number"] >= mark["number"]:
                yield other
