"""Read the audio of one source file: mono at a model's sample rate, cut into chunks at quiet points.

audio.py is the entry. audio_reader.py decodes, mono.py mixes channels, and silence.py finds the chunks that no model
needs to hear.
"""
