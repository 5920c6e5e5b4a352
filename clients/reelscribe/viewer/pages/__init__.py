"""Pages on which people look at results: what each page shows, and how that becomes HTML.

Nothing here reads records, opens a database or listens: `views` are plain values that others fill in, `queries` are
what users ask, `links` says where things are, and `render` makes text of them. So the same pages come from a server and
lie in exported folders.
"""
