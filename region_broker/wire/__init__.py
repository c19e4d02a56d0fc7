"""Bytes on sockets: frames, the order of requests and answers, memory that requests may take, and the codec.

Begin in `server` (sockets), `connection` (order, without I/O) and `codec` (requests and answers). Knows no API's meaning.
May import: `limits`, `metrics`, `ports`, `idempotency`.
"""
