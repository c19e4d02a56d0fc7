"""Records inside their batches: reading and building them, the codecs around them, batches written otherwise than they came.

Begin in `batches`. May import: `limits`, `idempotency` (the batch's header is the kernel's). Knows no log, no request and no
socket: whoever must look into a batch does so here.
"""
