"""The account that a run gives of itself: measurements, the bottleneck, the time left, and how all of this is shown.

node_meter.py and track_meter.py measure a node, and meter.py adds up the nodes of a run. bottleneck.py finds what
limits the speed, and forecast.py the time that is left. progress.py shows both while the run lasts, and metrics.py
serves them to Prometheus. plan.py is the line at the start of a run; summary.py and status.py are the tables about one
that has ended, or that another process sees. formatting.py and units.py have what they share.
"""
