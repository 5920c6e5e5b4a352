"""Tracks: a run has one for each kind of annotations that it makes of its sources.

track.py has the track itself, planned.py what a driver knows of it, and medium.py what differs between kinds of
annotations. captions.py, clips.py,
transcripts.py and shots.py are the media, each with the options that users choose. summaries.py makes a summary of
their texts, and prompts.py is about what models are asked.
"""
