"""Whether two regions hold the same: both data folders are read, every checksum and transaction is judged.

Begin in `job`; `segments` are read, `evidence` reduces, `diff`, `by_key`, `replica` and `transactions` judge. The same judges run in
one process and in Spark (`spark_job`). May import: `idempotency`, the codecs of `geo_replicator`.
"""
