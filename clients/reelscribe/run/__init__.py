"""A run: many sources through one or several tracks, into one output folder.

`bulk.BulkRun` is the entry: it finds the sources (sources.py), annotates many at once (annotating.py), and writes their
records in order. Each kind of annotations has a track (the package `tracks`), which decodes a source, sends the batches
to a model and saves the answers. plan.py holds what a run has before it. The package `reporting` measures the run and
shows it. one_source.py is the way for programs that want no output folder.
"""
