"""How commands get their options, and how they explain them.

Options come from dataclasses (`flatten`), and their values from the command line, the environment and the files
`reelscribe.toml` (`commands`, `settings_file`). `--help` shows them by group (`help`).
"""
