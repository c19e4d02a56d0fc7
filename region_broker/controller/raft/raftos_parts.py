"""Runs of raftos, as a build put it into `_vendor`, the modules with its node, state, roles and timer, and nothing else.

INV-RV1  of raftos' network, storage, configuration, ciphers, serializers and replicated types nothing is loaded: where a module
         that is loaded names one of them, it gets a name that refuses to be used

`import raftos` loads all of it: msgpack and cryptography, which are no dependencies of ours, and a key is derived from a
constant on the way (100,000 rounds of PBKDF2: 106 ms). So its package is not run. Its modules `exceptions`, `timer`,
`state` and `server` are, unchanged, in a package that is made here, beside stand-ins for `conf`, `storage` and `network`,
which they import. None of it stays in `sys.modules`: who imports raftos gets raftos.

Not here: the classes that are inherited (`raftos_classes`), how raftos comes into the tree (`.ci/vendor_raftos.py`), what is wrong
with it (docs/adr/0043-raft-on-raftos.md).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

VENDORED: Final = Path(__file__).parent / "_vendor" / "raftos"
_PACKAGE: Final = f"{__package__}._vendor.raftos"
_LOADED: Final = ("exceptions", "timer", "state", "server")
_LEFT_OUT: Final = {
    "conf": ("config", "configure"),
    "storage": ("FileStorage", "Log", "StateMachine"),
    "network": ("UDPProtocol",),
}


class RaftosMissing(ImportError):
    """The tree was not built; the text says what to do."""


class NotOurs(Exception):
    """Code of raftos' own would have run that is replaced: a mistake of ours."""


class _LeftOut:
    """Stands where raftos has a part that is not used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise NotOurs(f"raftos' {self._name} is not used (INV-RV1)")

    def __getattr__(self, attribute: str) -> NoReturn:
        raise NotOurs(f"raftos' {self._name}.{attribute} is not used (INV-RV1)")


@contextmanager
def _package() -> Iterator[None]:
    """Have raftos' package for a while, without having run it."""
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(VENDORED)]
    modules = {_PACKAGE: package}
    for short, names in _LEFT_OUT.items():
        stand_in = modules[f"{_PACKAGE}.{short}"] = ModuleType(f"{_PACKAGE}.{short}")
        for name in names:
            setattr(stand_in, name, _LeftOut(f"{short}.{name}"))
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in [*modules, *(f"{_PACKAGE}.{short}" for short in _LOADED)]:
            sys.modules.pop(name, None)


def _load(short: str) -> ModuleType:
    name, path = f"{_PACKAGE}.{short}", VENDORED / f"{short}.py"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise RaftosMissing(
            f"raftos is not in this tree ({path} is missing). A build puts it there: run `python .ci/vendor_raftos.py` in"
            " the checkout, or install Tidemark with pip."
        )
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loaded_parts() -> dict[str, ModuleType]:
    """Return raftos' modules that are run, by their short names; raises RaftosMissing."""
    with _package():
        return {short: _load(short) for short in _LOADED}
