"""The index of a folder of results: a cache for search and for the library, which is made of the results alone.

It is in OUT/.browse, and deleting it costs only the time to build it again. `SourceIndex` keeps it up to date with
annotations.jsonl and, while a run lasts, with the ledger.
"""
