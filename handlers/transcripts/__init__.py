"""Transcription of audio with Whisper and with CTC models of transformers.

Request bodies that hold samples or an audio file come in; transcripts with segments and words go out.
"""
