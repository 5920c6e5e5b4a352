"""A local web page over the results of a run: an index for search, what each page shows, and the server."""
