"""Sources that are no files of this machine: objects in stores, and files on web servers.

`address` tells them from paths, `stores` finds the store of an address, `s3`, `google`, `azure` and `web` are the kinds
of stores, `buckets` is what the first three have in common, and `spool` keeps copies on this machine, which decode
processes read, for as long as they are needed.
"""
