"""Transcription with Whisper and models like it (WhisperForConditionalGeneration).

Chunks of audio with their transcription options come in; a transcript of each chunk goes out.
"""
