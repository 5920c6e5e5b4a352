"""Shots: windows of successive frames go in, the probabilities that each frame ends a shot come out.

`detector.ShotDetector` is the model. transnetv2.py has its network, and window_requests.py reads requests.
"""
