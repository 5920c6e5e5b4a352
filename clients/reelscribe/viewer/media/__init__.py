"""The media of sources, as pages need them: their own bytes, and thumbnails and previews that are made on demand.

`media_files` opens a source if it is still the file that the run has read. `source_thumbnails` and `source_previews`
keep what `thumbnail_maker` and `preview_maker` make of it, each in a child process.
"""
