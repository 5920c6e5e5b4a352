"""How commands get their options, and how they explain them.

Options come from dataclasses (`flatten`), and their values from the command line, the environment and the files
`reelscribe.toml` (`commands`, `settings_file`). `--help` and the man page show them by group (`help`, `manual`).
"""
