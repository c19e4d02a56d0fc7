"""Whether two regions hold the same: both data folders are read, every checksum and transaction is judged.

Begin in `job`; `scanner` reads, `evidence` reduces, `diff`, `replica` and `transactions` judge. The same judges run in
one process and in Spark (`spark_job`). May import: `idempotency`, the codecs of `geo_replicator`.
"""
