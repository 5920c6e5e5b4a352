"""Make RGB of a model's input size from decoded frames.

frame_scaler.py is the entry: size, rotation and colours. tone_mapping.py maps colours of a high dynamic range, and
interlacing.py treats frames of two fields.
"""
