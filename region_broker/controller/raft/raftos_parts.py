"""raftos' node, state, roles and timer, as a build put them into `_vendor`, and nothing else of raftos.

INV-RV1  of raftos' network, storage, configuration, ciphers, serializers and replicated types nothing is loaded: where a module
         that is loaded names one of them, it gets a name that refuses to be used

`import raftos` loads all of it: msgpack and cryptography, which are no dependencies of ours, and a key is derived from a
constant on the way (100,000 rounds of PBKDF2: 106 ms). So its package is not run. Its modules `exceptions`, `timer`,
`state` and `server` are, unchanged, in a package that is made here, beside stand-ins for `conf`, `storage` and `network`,
which they import. None of it stays in `sys.modules`: who imports raftos gets raftos.

What is declared for the type checker is what `shell` and `roles` inherit; they say what they replace, and why.
Not here: how raftos comes into the tree (`.ci/vendor_raftos.py`), what is wrong with it (docs/adr/0043-raft-on-raftos.md).
"""

import sys
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, NoReturn

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


if TYPE_CHECKING:
    from region_broker.controller.raft.effects import Received

    class RaftosTimer:
        """Calls back again and again."""

        interval: float | Callable[[], float]
        callback: Callable[[], None]
        loop: AbstractEventLoop
        is_active: bool
        handler: TimerHandle

        def start(self) -> None: ...
        def stop(self) -> None: ...
        def reset(self) -> None: ...
        def get_interval(self) -> float: ...
        def _run(self) -> None: ...

    class RaftosBaseState:
        """What the roles share."""

        state: "RaftosState"

        def __init__(self, state: "RaftosState") -> None: ...

    class RaftosFollower(RaftosBaseState):
        """Stops its `election_timer` with itself."""

        election_timer: RaftosTimer

        def start(self) -> None: ...
        def stop(self) -> None: ...

    class RaftosCandidate(RaftosBaseState):
        """Stops its `election_timer` with itself."""

        election_timer: RaftosTimer

        def start(self) -> None: ...
        def stop(self) -> None: ...

    class RaftosLeader(RaftosBaseState):
        """Stops its two timers with itself."""

        heartbeat_timer: RaftosTimer
        step_down_timer: RaftosTimer

        def start(self) -> None: ...
        def stop(self) -> None: ...

    class RaftosState:
        """Has one role at a time: `state`."""

        server: "RaftosNode"
        id: str
        loop: AbstractEventLoop
        state: RaftosFollower | RaftosCandidate | RaftosLeader

        def start(self) -> None: ...
        def stop(self) -> None: ...
        def request_handler(self, data: "Received") -> None: ...
        @staticmethod
        def _get_id(host: object, port: object) -> str: ...
        @property
        def cluster(self) -> list[str]: ...
        def _change_state(
            self, new_state: type[RaftosFollower | RaftosCandidate | RaftosLeader]
        ) -> None: ...

    class RaftosNode:
        """Hands what arrives to its state, and knows the others of its cluster."""

        cluster: set[tuple[object, object]]
        loop: AbstractEventLoop
        state: RaftosState

        def update_cluster(self, address_list: tuple[object, object]) -> None: ...
        @property
        def cluster_count(self) -> int: ...
        def request_handler(self, data: "Received") -> None: ...

else:
    with _package():
        _modules = {short: _load(short) for short in _LOADED}
    RaftosTimer = _modules["timer"].Timer
    RaftosBaseState = _modules["state"].BaseState
    RaftosFollower = _modules["state"].Follower
    RaftosCandidate = _modules["state"].Candidate
    RaftosLeader = _modules["state"].Leader
    RaftosState = _modules["state"].State
    RaftosNode = _modules["server"].Node
