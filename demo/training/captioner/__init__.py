"""Makes the demo captioner, a small BLIP-2: its architecture, its training and its evaluation."""
