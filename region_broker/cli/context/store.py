"""Contexts: named clusters in one file of the user's, so that no command needs its addresses twice.

INV-CTX1  an option beats the environment, which beats the context, which beats what `tidemark dev` listens on
INV-CTX2  the file is replaced as a whole or not at all; one that cannot be read is an error, never overwritten

`$TIDEMARK_CONTEXTS` names the file; by default it is ``tidemark/contexts.json`` in `$XDG_CONFIG_HOME` or ``~/.config``.
Not here: the commands (`command`).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Self

FILE_VARIABLE: Final = "TIDEMARK_CONTEXTS"
NAME_VARIABLE: Final = "TIDEMARK_CONTEXT"
# Where the first two regions of `tidemark dev` listen.
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092,127.0.0.1:9102"
DEFAULT_URL: Final = "http://127.0.0.1:9093,http://127.0.0.1:9103"


class ContextError(Exception):
    """The contexts cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One cluster: Kafka addresses and HTTP addresses, each with commas; and who one is there.

    Of what is secret the path of a file is kept, and nothing else (INV-CCR1).
    """

    bootstrap: str = DEFAULT_BOOTSTRAP
    url: str = DEFAULT_URL
    ca: str = ""
    certificate: str = ""
    key: str = ""
    protocol: str = ""
    mechanism: str = ""
    user: str = ""
    password_file: str = ""
    http_token_file: str = ""


@dataclass(frozen=True, slots=True)
class Contexts:
    """What the file holds: contexts by name, and which one counts ("": none)."""

    path: Path
    current: str = ""
    named: Mapping[str, Context] = field(default_factory=dict)

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the user's file; without one there are no contexts. Raises `ContextError` (INV-CTX2)."""
        path = _path(environment)
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            named = {str(name): Context(**fields) for name, fields in raw["contexts"].items()}
            return cls(path, str(raw["current"]), named)
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ContextError(
                f"{path} does not hold contexts ({error}): mend or remove it, or name another file in"
                f" {FILE_VARIABLE}"
            ) from error

    def save(self) -> None:
        """Replace the file (INV-CTX2); raises `ContextError`."""
        contexts = {
            name: {key: value for key, value in asdict(context).items() if value}
            for name, context in sorted(self.named.items())
        }
        text = json.dumps({"current": self.current, "contexts": contexts}, indent=2) + "\n"
        fresh = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(self.path)
        except OSError as error:
            raise ContextError(f"{self.path} cannot be written: {error}") from error

    def with_context(self, name: str, context: Context) -> "Contexts":
        """Return these with `name` set; the first one becomes the current one."""
        return replace(self, named={**self.named, name: context}, current=self.current or name)

    def without(self, name: str) -> "Contexts":
        """Return these without `name`; raises `ContextError` where there is none."""
        self.of(name)
        kept = {each: context for each, context in self.named.items() if each != name}
        return replace(self, named=kept, current="" if self.current == name else self.current)

    def using(self, name: str) -> "Contexts":
        """Return these with `name` as the current one; raises `ContextError` where there is none."""
        self.of(name)
        return replace(self, current=name)

    def of(self, name: str) -> Context:
        """Return a context by name; raises `ContextError` where there is none."""
        if name not in self.named:
            known = ", ".join(sorted(self.named)) or "none yet: `tidemark context set NAME`"
            raise ContextError(f"there is no context {name!r}; there are: {known}")
        return self.named[name]


def chosen(environment: Mapping[str, str] = os.environ) -> Context:
    """Return the context that counts: the one `TIDEMARK_CONTEXT` names, the current one, or that of `tidemark dev`.

    Raises `ContextError`.
    """
    contexts = Contexts.load(environment)
    name = environment.get(NAME_VARIABLE) or contexts.current
    return contexts.of(name) if name else Context()


def _path(environment: Mapping[str, str]) -> Path:
    named = environment.get(FILE_VARIABLE)
    if named:
        return Path(named)
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "tidemark" / "contexts.json"
