"""A run: many sources through one or two models, into one folder.

Names of files and folders come in; every source is decoded, sent, saved and recorded, and a summary goes out.
"""
