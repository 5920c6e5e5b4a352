"""The content of pages, made of the index, the records and the state of the run; `reelscribe.viewer.pages` shows it."""
