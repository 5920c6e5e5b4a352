"""A run: many sources through a captioner, a speech model or both, into one output folder.

`bulk.BulkRun` is the entry: it finds the sources (sources.py), annotates many at once (annotating.py), and writes their
records in order. A track decodes a source for one model, sends the batches to its servers and saves the answers
(track.py; captioning.py for frames, transcribing.py for audio). options.py holds what users choose, and plan.py what a
run has before it. The package `reporting` measures the run and shows it. one_source.py is the way for programs that
want no output folder.
"""
