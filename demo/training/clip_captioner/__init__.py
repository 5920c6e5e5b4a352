"""Makes the demo clip model, a small Qwen3-VL: its architecture, its training and its evaluation."""
