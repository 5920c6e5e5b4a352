"""Everything that looks at results: the pages of `reelscribe browse`, the same pages as files, and notebooks."""
