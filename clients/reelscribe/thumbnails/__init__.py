"""Thumbnails of sources: small WebP pictures of what is shown at a time, in the folder of a run or made on demand.

store.py keeps them beside the results, by the digest of the source.
"""
