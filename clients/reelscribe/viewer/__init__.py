"""Everything that looks at results: the pages of `reelscribe browse`, the same pages as files, and notebooks.

`index` finds sources and texts, `media` has the bytes and pictures of sources, `content` makes the values of pages of
both, and `pages` makes HTML of these values. `browse` is the server, `site` is the export of pages as files, and
`notebook` is the display of values in a notebook. A run needs none of it.
"""
