"""Tracks: what a run makes of each source, one kind of annotations each.

track.py holds what all tracks have in common, and model_track.py what those have that send batches to a model, with
sender.py for the batches of one source. captions.py, transcripts.py and shots.py are the kinds; options.py holds what
users choose for them.
"""
