"""The export of results as pages: files that a browser opens from a folder, without a server or an installation.

`site.write_site` is the entry. It makes the pages with the renderer of `reelscribe.pages`, each source in turn, and
beside them a search index in pieces (index.py), thumbnails (pictures.py), and what players open (media.py).
"""
