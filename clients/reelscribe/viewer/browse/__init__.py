"""The server of `reelscribe browse`: its web application, its cache folder, and the thread that refreshes the index."""
