"""Speakers: audio goes in, embeddings of the voices in it come out, by which a client tells speakers apart.

`speaker_model.SpeakerModel` is the model. voice_activity.py finds where somebody speaks, and voice_encoder.py has the
network.
"""
