"""The media of sources, as pages need them: their own bytes, and thumbnails and previews that are made on demand.

`media_files` opens a source if it is still the file that the run has read, and `store_reader` reads one in a store.
`source_thumbnails` and `source_previews` keep what `thumbnail_maker` and `preview_maker` make of files, each in a
child process.
"""
