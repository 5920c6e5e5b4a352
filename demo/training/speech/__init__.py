"""Makes the demo speech model, a small Whisper: its architecture, its training and its evaluation."""
