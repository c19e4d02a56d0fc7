"""The ports of the platform: what the product asks of disk and network; clock and chance are the kernel's (`idempotency.ports`).

Protocols stand here, what fulfils them on a real machine in `system`. `node` hands them in; nothing else touches the machine. Begin
in `disk`. May import: the kernel.
"""
