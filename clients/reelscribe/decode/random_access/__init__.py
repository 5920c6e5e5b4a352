"""Which packets of a video need not be decoded: those before a keyframe, and those of disposable frames.

clean_keyframes.py and disposable.py look into packets, whose parts nal_units.py finds. decode_order.py and
entry_points.py look at the index of a file.
"""
