"""Nodes of a run on other machines, whose results are those of one machine.

`session.RemoteNodes` are the nodes that a `run.driver.Run` is given. A remote node (remote_node.py) is a node as on one
machine, with a link to the ledger in place of the ledger (store_link.py); mail.py has what both sides send. serving.py
and tokens.py are about the models and the servers of nodes. Only ray_cluster.py knows Ray, which places nodes and
carries the mail.
"""
