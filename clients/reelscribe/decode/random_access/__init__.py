"""Where decoding may begin inside a video, so that several processes read the frames that one process would.

clean_keyframes.py looks into packets while they are indexed, and entry_points.py at the index.
"""
