"""Pages on which people look at results: the values that they show, and the HTML that is made of them.

Nothing here reads records, opens a database or listens: `views` are plain values that others fill in, `parameters` are
the queries of users, `links` are the addresses, `drawings` are numbers for SVG, and `render` makes text of them. So the
same pages come from a server and lie in exported folders.
"""
