"""Exports of `annotations.jsonl`: subtitles, plain text, CSV and Parquet tables, chapters, pages, or a compressed file.

`formats.export` is the entry. It reads annotations.jsonl line by line (annotations_reader.py). For each source it
writes subtitles (subtitles.py), transcripts (plain_text.py) and chapters (chapters.py) under a name of its own
(folder.py), and adds rows to the tables (tables.py). Pages for a browser are in `reelscribe.viewer.site`, which reads
the file itself. `beside.write_beside` puts subtitles and records next to their sources.
"""
