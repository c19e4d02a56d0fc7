"""TLS contexts of servers and clients, and how they change when their files do.

INV-TLS1  `context()` is of one whole set of files that fits together; while the files are not such a set, the former one goes on, and
          why the new one is not taken is told (log, metric, `refusal`)
INV-TLS2  a changed set counts once two looks in a row found the same bytes, and the bytes that were judged are those that were
          loaded: what somebody is just writing is not taken
INV-TLS3  a change makes a new context, for handshakes that begin after it; no connection ends or changes by it, and no session
          of the former context is resumed under the new one
INV-TLS4  TLS 1.2 or newer, with forward secrecy and AEAD ciphers only; no compression, no renegotiation
INV-TLS5  where a client shows a certificate, it is checked against the CA and, where there is one, the CRL of that CA; one that is
          not good ends the handshake, also where none is required. Under TLS 1.3 that is so at each connection; TLS 1.2 resumes a
          session for two hours at most, which no change of files outlives (INV-TLS3): so what has ended meanwhile may, what was
          revoked may not come back by it
INV-TLS6  a CRL that is older than one that this process has used, by the number that its CA gave it, is not taken: a copy from before would let in
          what was revoked since. Whoever says that it is right starts the node anew

A node starts with `ServerTls(files, "required")`, which raises `TlsRefused`; gives `.context()` to each new handshake; and runs
`watch(TlsState([...]), clock)` in its task group. Files are read in a thread.

A CRL must be there for every CA that signs what is to be let in, once there is one for any: OpenSSL refuses what it cannot look up.
Not here: sockets and handshakes (`ports.system.network`), who a certificate speaks for (`tls_identity`), judging files
(`tls_files`).
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NoReturn

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from idempotency.ports import Clock
from region_broker.ports.offload import Offload
from region_broker.security.certificate_ends import (
    DAY_MS,
    End,
    Judgement,
    Urgency,
    first_end_by_file,
    judge,
    judgements,
)
from region_broker.security.tls_contents import CrlSource, TlsFiles, TlsRefused, read_contents

__all__ = [
    "ClientAuth",
    "ClientTls",
    "ServerTls",
    "TlsCollector",
    "TlsFiles",
    "TlsRefused",
    "TlsState",
    "watch",
]

ClientAuth = Literal["none", "requested", "required"]
LOOK_INTERVAL_MS: Final = 2_000
CIPHERS_OF_TLS_1_2: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

logger = logging.getLogger("tidemark.tls")


class _Held(msgspec.Struct, frozen=True):
    """A context, and of what it is."""

    context: ssl.SSLContext
    digest: bytes
    ends: tuple[End, ...]
    crl_numbers: Mapping[CrlSource, int]
    """The newest of each CA that was in use, up to now."""


Fits = Callable[[bytes], None]
"""Told the certificate file of a set before it counts; raises `TlsRefused`."""


def _anybodys(_certificate: bytes) -> None:
    """Take the certificate of whomever."""


class _Reread:
    """A context of files that are read again when somebody looks."""

    def __init__(self, files: TlsFiles, make: Callable[[], ssl.SSLContext], fits: Fits) -> None:
        self.files = files
        self._make = make
        self._fits = fits
        self._held = self._read({})
        self._newest_digest = self._held.digest
        self.refusal = ""
        """Why the files as they are now are not in use; "" while they are."""

    def context(self) -> ssl.SSLContext:
        """Return the newest context: for one handshake, not to be kept."""
        return self._held.context

    @property
    def ends(self) -> tuple[End, ...]:
        """When what is in use ends."""
        return self._held.ends

    def look(self) -> bool:
        """Read the files, and return whether a new context counts from now on. Waits for the disk; may run in any thread."""
        try:
            digest = read_contents(self.files).digest()
            if digest == self._held.digest:
                self._newest_digest, self.refusal = digest, ""
                return False
            if digest != self._newest_digest:  # INV-TLS2: it may be half of it
                self._newest_digest = digest
                return False
            self._held = self._read(self._held.crl_numbers)
        except TlsRefused as refused:
            # What is found next is to be found twice again: no look in a row with the last one has found it (INV-TLS2).
            self._newest_digest, self.refusal = b"", str(refused)
            return False
        self._newest_digest, self.refusal = self._held.digest, ""
        return True

    def _read(self, used: Mapping[CrlSource, int]) -> _Held:
        """Return a context of what the files hold; `used`: the numbers of CRLs up to now. Raises `TlsRefused`."""
        from region_broker.security.tls_files import crl_numbers, judged  # noqa: PLC0415 -- INV-LEAN3

        contents = read_contents(self.files)
        ends = judged(self.files, contents)
        numbers = crl_numbers(contents)
        _check_no_older(self.files.crl, numbers, used)
        self._fits(contents.certificate)
        try:
            context = self._make()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            named = ", ".join(path for path in msgspec.structs.astuple(self.files) if path)
            raise TlsRefused(f"OpenSSL takes no TLS context from {named}: {error}") from error
        digest = contents.digest()
        if read_contents(self.files).digest() != digest:  # INV-TLS2
            raise TlsRefused("the files were changed while they were read: they are read again")
        return _Held(context, digest, ends, {**used, **numbers})


def _check_no_older(
    path: str, numbers: Mapping[CrlSource, int], used: Mapping[CrlSource, int]
) -> None:
    """Refuse a CRL that was replaced by a newer one before (INV-TLS6)."""
    for source, number in numbers.items():
        if number < used.get(source, number):
            raise TlsRefused(
                f"{path} holds CRL {number} of {source.issuer!r}, and CRL {used[source]} has been in use: an older copy would let in what was"
                " revoked since. Put the newest in place; if this one is right, restart the node"
            )


class ServerTls(_Reread):
    """What a listener offers. `client_auth`: whether a client shows a certificate, as Kafka's `ssl.client.auth`."""

    def __init__(
        self, files: TlsFiles, client_auth: ClientAuth = "none", fits: Fits = _anybodys
    ) -> None:
        """Read the files; raises `TlsRefused`."""
        if not files.certificate:
            raise TlsRefused("a listener of TLS has no certificate: name one and its key")
        if client_auth != "none" and not files.ca:
            raise TlsRefused(
                f"certificates of clients are {client_auth}, and no CA is named to check them against: name the CA"
            )
        self.client_auth = client_auth
        super().__init__(files, lambda: _server_context(files, client_auth), fits)


class ClientTls(_Reread):
    """What this node, or a command, shows and demands where it connects. Without a certificate none is shown.

    Without a CA those of the system count. `check_host`: whether the other side's certificate must name the host that was
    connected to; only who looks at the node's identity in it instead (`tls_identity.node_of`) may go without.
    """

    def __init__(self, files: TlsFiles, *, check_host: bool = True, fits: Fits = _anybodys) -> None:
        """Read the files; raises `TlsRefused`."""
        super().__init__(files, lambda: _client_context(files, check_host=check_host), fits)


def _server_context(files: TlsFiles, client_auth: ClientAuth) -> ssl.SSLContext:
    context = _strict(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.load_cert_chain(files.certificate, files.key)
    context.verify_mode = _VERIFY[client_auth]
    if client_auth != "none":
        _check_by(context, files)
        context.num_tickets = 0  # INV-TLS5: of TLS 1.3. `ssl` cannot keep TLS 1.2 from it, and without tickets it fills memory
    return context


def _client_context(files: TlsFiles, *, check_host: bool) -> ssl.SSLContext:
    context = _strict(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.check_hostname = check_host
    context.hostname_checks_common_name = False
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key)
    if files.ca:
        _check_by(context, files)
    else:
        context.load_default_certs()
    return context


def _strict(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context without what is not safe any more (INV-TLS4)."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS_OF_TLS_1_2)
    return context


def _check_by(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Trust what is in the CA file, be it a root or not, and look the other side's certificate up in the CRL."""
    context.load_verify_locations(cafile=files.ca)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if files.crl:
        context.load_verify_locations(cafile=files.crl)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


# --- looking again -------------------------------------------------------------------------------


class TlsState:
    """The contexts of a node, and what there is to say of them."""

    def __init__(self, contexts: Sequence[ServerTls | ClientTls]) -> None:
        """Look after these."""
        self.contexts = contexts
        self._refusals_told: frozenset[str] = frozenset()
        self._day_told_by_end: dict[End, int] = {}

    @property
    def refusals(self) -> list[str]:
        """Why files that have changed are not in use, each reason once."""
        return sorted({each.refusal for each in self.contexts if each.refusal})

    def look(self, changed: set[TlsFiles]) -> None:
        """Look at all files, and add to `changed` those that count anew. Waits for the disk; may run in any thread."""
        changed.update(each.files for each in self.contexts if each.look())

    def judgements(self, now_wall_ms: int) -> list[Judgement]:
        """Return what is to be said of the ends of all files in use."""
        return judgements(self._ends(), now_wall_ms)

    def first_judgements(self, now_wall_ms: int) -> list[Judgement]:
        """Return how soon the first end of each file in use is."""
        return [judge(end, now_wall_ms) for end in first_end_by_file(self._ends()).values()]

    def _ends(self) -> Iterator[End]:
        return (end for each in self.contexts for end in each.ends)

    def tell(self, now_wall_ms: int) -> None:
        """Log what is new: refusals once, ends once a day (INV-CTE1)."""
        refusals = frozenset(self.refusals)
        for refusal in sorted(refusals - self._refusals_told):
            logger.error("changed files of TLS are not taken, the former ones go on: %s", refusal)
        self._refusals_told = refusals
        day = now_wall_ms // DAY_MS
        near = [each for each in self.judgements(now_wall_ms) if each.urgency is not Urgency.FAR]
        for judgement in near:
            if self._day_told_by_end.get(judgement.end) != day:
                level = logging.ERROR if judgement.is_refused else logging.WARNING
                logger.log(level, "%s", judgement.text)
        self._day_told_by_end = {each.end: day for each in near}


async def watch(state: TlsState, clock: Clock, offload: Offload = asyncio.to_thread) -> NoReturn:
    """Look at all files every two seconds, and tell what there is to tell; ends only when it is cancelled."""
    while True:
        state.tell(clock.wall_ms())
        await clock.sleep_ms(LOOK_INTERVAL_MS)
        changed: set[TlsFiles] = set()
        await offload(partial(state.look, changed))
        for files in changed:
            named = ", ".join(path for path in msgspec.structs.astuple(files) if path)
            logger.info("changed files of TLS count for new handshakes: %s", named)


class TlsCollector(Collector):
    """Offers how long the files in use are good for, and whether changed ones are refused."""

    def __init__(self, state: TlsState, clock: Clock) -> None:
        """Ask `state` whenever somebody asks for metrics."""
        self._state = state
        self._clock = clock

    def describe(self) -> list[Metric]:
        """Name nothing beforehand."""
        return []

    @override
    def collect(self) -> Iterator[Metric]:
        """Return what is true now."""
        left = GaugeMetricFamily(
            "tidemark_tls_certificate_seconds_left",
            "Until the first certificate, CA or CRL in a file ends; below 0 once it has",
            labels=["file"],
        )
        for judgement in self._state.first_judgements(self._clock.wall_ms()):
            left.add_metric([judgement.end.path], judgement.left_ms / 1000)
        yield left
        yield GaugeMetricFamily(
            "tidemark_tls_files_refused",
            "Reasons for which changed files of TLS are not in use",
            value=len(self._state.refusals),
        )
