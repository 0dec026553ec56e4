"""The `logitport` command, with one file for each subcommand."""
