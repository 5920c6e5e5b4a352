"""A run over many machines, whose results are byte for byte those of one.

`driver.ClusterRun` is the entry. The driver lists the sources (listing.py) and leases them to nodes (leases.py); it
alone writes the ledger. A node (node.py) annotates what is leased to it on the main path of a run on one machine, with
a link to the ledger in place of the ledger (store_link.py). What both tell each other is in messages.py, and figures.py
adds up how the nodes are. Only ray_cluster.py knows Ray, which places nodes and carries the messages.
"""
