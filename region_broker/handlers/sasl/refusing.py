"""What is told of a login that is refused: a number, a row of the audit trail, and a line of the log.

Not here: what the client is answered (`sasl_handshake`, `sasl_authenticate`), and when.
"""

from region_broker.handlers.dispatch.services import RequestContext
from region_broker.security.identity import Identity
from region_broker.security.sasl.desk import LoginDesk
from region_broker.security.sasl.refusals import LoginRefused


def tell_refused(
    ctx: RequestContext, desk: LoginDesk, who: Identity, refused: LoginRefused
) -> None:
    """Tell everybody who counts refusals; `who`: as far as that is known, with the mechanism."""
    ctx.services.metrics.logins.labels(who.mechanism, "refused").inc()
    ctx.services.audit.login(who, right=False, reason=str(refused))  # INV-SSL1
    desk.tell(ctx.peer, refused)
