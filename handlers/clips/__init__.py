"""Clip models: several frames of a video in the order of time go in, a description of what happens comes out.

`describer.Describer` is the model. patches.py makes pixel values, the package `families` has what differs between the
families of models, and clip_requests.py reads requests.
"""
