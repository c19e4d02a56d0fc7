"""What lies in a partition's folder: segment files as tables of batch headers, and the sidecars that hold such tables.

Begin in `scanner`. May import the kernel's codecs; knows neither plan nor findings.
`region_broker` writes sidecars with it.
"""
