"""The results of a run: the ledger, and the records that are made from it.

The run saves each batch of results in OUT/ledger.sqlite as soon as it has been answered. When all of a source is done,
its record is read from the ledger and becomes a line of OUT/annotations.jsonl.
"""
