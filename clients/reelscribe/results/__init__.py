"""The results of a run: the ledger, and the records that are made from it.

The run saves each batch of results in OUT/ledger.sqlite as soon as it has been answered. When a run ends, the records
of all sources in the ledger are written to OUT/annotations.jsonl.
"""
