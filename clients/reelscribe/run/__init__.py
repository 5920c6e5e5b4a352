"""A run: many sources through one or several tracks, into one output folder.

`driver.Run` is the entry. The driver lists the sources (file_search.py, listing.py), leases them to nodes (leases.py)
and to others when nodes are lost (lost_nodes.py), and alone writes ledger and results (folder.py). A node (node.py)
annotates many sources at once: each kind of annotations has a track (the package `tracks`), which decodes a source,
sends the batches to a model and saves the answers in a store (store.py). What both tell each other is in messages.py.
On one machine there is one node, in the same process; the package `cluster` has nodes on other machines. single_file.py
annotates one file without a folder, and in_memory.py arrays.
"""
