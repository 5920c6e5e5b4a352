"""What a run tells of itself: what it measures, what limits it, how long it will take, and how all of this is shown.

meter.py and track_meter.py count; limits.py finds what limits the speed, and forecast.py the time that is left.
progress.py shows both while the run lasts, and metrics.py serves them to Prometheus. outlook.py is the line at the
start of a run; summary.py and status.py are the tables about one that has ended, or that another process sees. words.py
has the words that they share.
"""
