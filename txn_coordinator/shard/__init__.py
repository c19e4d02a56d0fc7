"""The parts of one ledger shard's core: each keeps its own rules, `txn_coordinator.core` puts them together.

Begin in `end_requests`; what may follow what stands in `txn_coordinator.states`, how the next record is built in
`txn_coordinator.transitions`. Pure: may import its neighbours and the kernel, nothing that waits.
"""
