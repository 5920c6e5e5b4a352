"""The index of a folder of results: a cache for search and for the library, which is made of the results alone.

It is in OUT/.browse, and deleting it costs only the time to build it again. `SourceIndex` keeps it up to date with
annotations.jsonl and, while a run lasts, with the ledger. Which records are new is seen by path, size, digest, error
and settings, so a retry that changes a few failed frames of a source is only seen when the run ends. Hits come in the
order of sources: ranking them would take all of them, and captions are too short for it.
"""
