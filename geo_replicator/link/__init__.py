"""One mirror's link to the primary: what it decides, and what runs it.

Begin in `core`, the pure machine; `driver` carries its effects out, `reaching` says which tidemarks are reached. May import
what stands in `geo_replicator` and the kernel.
"""
