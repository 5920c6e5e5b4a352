"""Two processes for the two stages of a model, each with a GPU of its own, and the transfers between them.

Device batches that the first stage encoded come in; what the second stage generated from them goes out. Which part of a
model is which stage is decided in captions/ and transcripts/. Workers import this package only for `stages: 2`.
"""
