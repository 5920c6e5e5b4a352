"""The parts that every model needs in a worker: settings, weights, device batches, counters, and a second stage.

Settings of the archive's YAML and the items of requests come in; a loaded model's results and counters go out.
"""
