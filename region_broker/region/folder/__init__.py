"""The identity of a data folder: whose it is, which history it holds, and whether it is whole (T32, T36).

Begin in `identity_file`. May import the disk's port, the frame of small files (`log.indexes`), and
`geo_replicator.folder_life`, which decides.
"""
