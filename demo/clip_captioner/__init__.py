"""The demo clip model: its architecture, its training and its evaluation."""
