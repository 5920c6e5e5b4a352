"""A model that is split over two processes, its two pipeline stages, each with a GPU of its own.

Device batches that the first stage encoded come in; what the second stage generated from them goes out. Workers import
this package only where the YAML asks for two stages.
"""
