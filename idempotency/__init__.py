"""What a partition, a client and a link must agree on: the kernel of exactly-once, pure.

Begin in `partition_state`, which judges a batch, a marker or a mirrored batch and takes it in; `producer_state`,
`window` and `sequence` are its producers, `visibility` what readers may see, `cut_index` what a tidemark asks. The
layouts that several packages share are here, too (`record_batch`, `ledger_records`). Imports nothing of ours.
"""
