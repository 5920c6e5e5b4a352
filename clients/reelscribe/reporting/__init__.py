"""The account that a run gives of itself: measurements, the bottleneck, the time left, and how all of this is shown.

A node counts sums for each of its tracks (counters.py, node_meter.py), and meter.py adds them up over the nodes and
keeps account of the sources. What limits the speed (bottleneck.py) and how much time is left (time_left.py) follow from
the sums at two moments. progress.py shows both while the run lasts, and metrics.py
serves them to Prometheus. plan.py is the line at the start of a run; summary.py and status.py are the tables about one
that has ended, or that another process sees. formatting.py and units.py have what they share.
"""
