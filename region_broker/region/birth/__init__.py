"""The identity of a data folder: whose it is, which history it holds, and whether it is whole (T32, T36)."""
