"""What came of a run: saved batches in the ledger, and the records that are made from them.

Answers come in batch by batch and are committed to OUT/ledger.sqlite; lines of OUT/annotations.jsonl go out.
"""
