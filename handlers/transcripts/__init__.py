"""Transcription of audio with the speech models of transformers: Whisper, CTC, Parakeet-TDT, Canary and Qwen3-ASR.

Request bodies that hold samples or an audio file come in; transcripts with segments and words go out.
"""
